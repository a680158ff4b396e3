"""One forward run of the unmodified model with its joins marked, and the backward passes over its graph.

Shapes: B gradients carried together, one a row; S entries of all that the gradient is taken with respect to.
"""

from __future__ import annotations

import math
import random
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.diagnostics.path_spectrum.marks import Chosen, Shift, Switch, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import GradientEdge

    from skipway.diagnostics.path_spectrum.mode import Place

    _Targets = Sequence[torch.Tensor] | Sequence[GradientEdge]
    _Zeros = Sequence[Callable[[], torch.Tensor]]

__all__ = ["Degrees", "LiveRun", "PathSample", "degrees", "distance", "dot", "norm", "sampled_paths"]

_Vector = list[torch.Tensor]
# Bytes that the gradients carried together may take; a lot is never smaller than one.
_BUDGET: Final = 512 << 20
_MOST_TOGETHER: Final = 16


@dataclass
class LiveRun:
    """A forward run whose graph is kept.

    Args:
        loss: a scalar.
        targets: what the gradient is taken with respect to, `zeros` a gradient of zero for each.
        switch: what all marks of the run do.
        x, end: the stream where the first unit reads it and behind the last one, where they were seen.
        largest: bytes of the largest tensor of the run.
    """

    loss: torch.Tensor
    targets: _Targets
    zeros: _Zeros
    switch: Switch
    x: Place | None
    end: Place | None
    largest: int

    def gradient(self, turn: Turn | None = None, weight: float = 1.0) -> _Vector:
        """One ordinary backward pass of ``weight · loss``."""
        return self._pass(self.loss.new_tensor(weight), turn, self.targets, self.zeros, together=False)

    def at_end(self) -> torch.Tensor | None:
        """The gradient at the stream behind the last unit."""
        return self._at(self.end)

    def at_x(self) -> torch.Tensor | None:
        """The gradient at the stream where the first unit reads it."""
        return self._at(self.x)

    def _at(self, place: Place | None) -> torch.Tensor | None:
        if place is None:
            return None
        (found,) = self._pass(self.loss.new_tensor(1.0), None, [place.edge], [place.zeros], together=False)
        return place.as_seen(found)

    def together(self, weights: torch.Tensor, turn: Turn) -> _Vector:
        """B backward passes at once, of ``weights[b] · loss``; results (B, …)."""

        def rows(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return tuple(self._pass(weight, turn, self.targets, self.zeros, together=True))

        with warnings.catch_warnings():
            # An operation without a batching rule is carried row by row, which is right and only slow.
            warnings.filterwarnings("ignore", message=".*performance drop.*")
            # Recomputed dropout is the same for every row.
            return list(torch.func.vmap(rows, randomness="same")(weights))

    def many(self, weights: Sequence[float], turn: Turn, *, together: bool) -> _Vector:
        """As `together`, or the same one after the other (of one row only)."""
        if together:
            return self.together(self.loss.new_tensor(weights), turn)
        (weight,) = weights
        return [part.unsqueeze(0) for part in self.gradient(turn, weight)]

    def _pass(
        self, weight: torch.Tensor, turn: Turn | None, targets: _Targets, zeros: _Zeros, *, together: bool
    ) -> _Vector:
        if not self.loss.requires_grad:  # everything was cut off
            return [zero() for zero in zeros]
        self.switch.turn, self.switch.together = turn, together
        try:
            found = torch.autograd.grad(self.loss, targets, weight, retain_graph=True, allow_unused=True)
        finally:
            self.switch.turn, self.switch.together = None, False
        return [zero() if part is None else part for part, zero in zip(found, zeros, strict=True)]

    def rows_at_once(self, size: int) -> int:
        """How many gradients are carried together: a few times the largest tensor each, and what is found."""
        return max(1, min(_MOST_TOGETHER, _BUDGET // max(4 * self.largest + 8 * size, 1)))


@dataclass
class Degrees:
    """The gradient by degree: number of branches passed.

    Args:
        norms: L2 norm of each part; `longer` at the end, where the longest lengths are one part.
        dots: product of each part with the whole gradient.
        total: their sum.
        first: the part of degree 0.
    """

    norms: list[float]
    dots: list[float]
    total: _Vector
    first: _Vector


def degrees(run: LiveRun, whole: _Vector, length: int, *, longer: bool, together: bool) -> Degrees:
    """The parts of the gradient that went through 0 … `length` branches, and with `longer` all others as one.

    Args:
        run: the marked run.
        whole: the ordinary gradient.
        length: highest degree that stands by itself.
        longer: whether there are higher ones.
        together: whether the parts are carried in one vmapped pass for each lot, or one after the other.
    """
    rows = length + 1 + longer
    lot = run.rows_at_once(sum(t.numel() for t in whole)) if together else 1
    shift = Shift(gathers=longer)
    norms: list[torch.Tensor] = []
    dots: list[torch.Tensor] = []
    total = [torch.zeros_like(t) for t in whole]
    first: _Vector = []
    for start in range(0, rows, lot):
        count = min(lot, rows - start)
        shift.last = start + count == rows
        weights = [float(start == 0 and k == 0) for k in range(count)]
        found = run.many(weights, shift, together=together)
        if start == 0:
            first = [part[0].clone() for part in found]
        for k in range(count):
            norms.append(norm([part[k] for part in found]))
            dots.append(dot([part[k] for part in found], whole))
        for part, so_far in zip(found, total, strict=True):
            so_far.add_(part.sum(0))
    read = torch.stack([*norms, *dots]).tolist()
    return Degrees(read[:rows], read[rows:], total, first)


@dataclass(frozen=True)
class PathSample:
    """Single paths of one length: norms of their gradients and products with the whole gradient."""

    length: int
    norms: list[float]
    dots: list[float]


def sampled_paths(
    run: LiveRun, whole: _Vector, units: Sequence[int], lengths: Sequence[int], each: int, *, seed: int, together: bool
) -> list[PathSample]:
    """Gradients of single paths, drawn without repetition: at a chosen unit the branch alone, elsewhere the shortcut.

    Args:
        run: the marked run.
        whole: the ordinary gradient.
        units: numbers of the units; a path chooses among them.
        lengths: how many it chooses.
        each: paths of each length, at most as many as there are.
        seed: of the draw.
        together: whether several paths are carried in one vmapped pass.
    """
    draw = random.Random(seed)  # noqa: S311  # a sample, no secret
    chosen: list[tuple[int, frozenset[int]]] = []
    for length in lengths:
        paths: set[frozenset[int]] = set()
        while len(paths) < min(each, math.comb(len(units), length)):
            path = frozenset(draw.sample(units, length))
            if path not in paths:
                paths.add(path)
                chosen.append((length, path))
    lot = run.rows_at_once(sum(t.numel() for t in whole)) if together else 1
    norms: list[torch.Tensor] = []
    dots: list[torch.Tensor] = []
    for start in range(0, len(chosen), lot):
        rows = [path for _, path in chosen[start : start + lot]]
        found = run.many([1.0] * len(rows), Chosen(rows), together=together)
        for k in range(len(rows)):
            norms.append(norm([part[k] for part in found]))
            dots.append(dot([part[k] for part in found], whole))
    read = torch.stack([*norms, *dots]).tolist() if chosen else []
    samples = {length: PathSample(length, [], []) for length in lengths}
    for (length, _), size, product in zip(chosen, read[: len(chosen)], read[len(chosen) :], strict=True):
        samples[length].norms.append(size)
        samples[length].dots.append(product)
    return list(samples.values())


def norm(vector: _Vector) -> torch.Tensor:
    """L2 norm over all parts, in double precision where the device has it."""
    size: torch.Tensor = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(t, dtype=_wide(t)) for t in vector])
    )
    return size


def dot(a: _Vector, b: _Vector) -> torch.Tensor:
    """Inner product over all parts."""
    products = [(x.to(_wide(x)) * y.to(_wide(y)).conj()).real.sum() for x, y in zip(a, b, strict=True)]
    return torch.stack(products).sum()


def distance(a: _Vector, b: _Vector) -> torch.Tensor:
    """L2 norm of the difference."""
    return norm([x - y for x, y in zip(a, b, strict=True)])


def _wide(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "mps":
        return tensor.dtype
    return torch.complex128 if tensor.is_complex() else torch.float64

"""What must follow a unit's join if its formula is right: a prediction from a private copy of x and the noise R."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from skipway.trace import ops
from skipway.units.find import join_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.trace.graph import Node
    from skipway.units.describe import Described, Tail
    from skipway.units.links import Links

__all__ = ["BOUND_EPS", "Proof", "Watched", "is_fused_part"]

BOUND_EPS: Final = 32.0
"""Largest relative error of a proved unit, in eps of the compute dtype."""

# Size of s·R against x: small enough that 1,000 replaced branches leave the stream finite, large enough to be seen.
_NOISE: Final = 1.0 / 16.0
_FUSED: Final = ops.ADDS_MATMUL | ops.ADDS_PRODUCT | {"lerp"}


@dataclass(slots=True)
class Proof:
    """What a replacement run showed of one unit.

    Args:
        error: relative error of the prediction in eps of the compute dtype; None when the unit was not decided.
        reason: why it was not decided.
        wrong: errors of the deliberately wrong predictions that were asked for, in eps.
    """

    error: float | None = None
    reason: str = ""
    wrong: dict[str, float] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the unit is proved."""
        return self.error is not None and self.error <= BOUND_EPS


class Watched:
    """One unit during a replacement run: its copy of x, its noise, its predictions."""

    def __init__(self, unit: Described, links: Links, variants: Sequence[str]) -> None:
        self.unit, self.links, self.nodes = unit, links, links.nodes
        self.variants = variants
        self.proof = Proof()
        self.values: dict[str, dict[int, torch.Tensor]] = {v: {} for v in variants}
        self.noise: dict[int, torch.Tensor] = {}
        self.sides: dict[int, torch.Tensor] = {}
        self.size_of_x = 0.0
        self.silent = False
        self.generator = torch.Generator().manual_seed(unit.candidate.join)

    def take_x(self, x: torch.Tensor) -> None:
        """Keep a private copy of x."""
        self.size_of_x = _rms(x)
        for variant in self.variants:
            value = x.clone()
            if variant == "x":
                value = value.flip(0) * 1.1 if x.shape and x.shape[0] > 1 else value * 1.1
            self.values[variant][self.unit.candidate.x] = value

    def noise_for(self, tail: Tail, output: torch.Tensor) -> torch.Tensor:
        """R: as large that s·R is a sixteenth of x."""
        scale = 1.0
        for i in tail.nodes:
            node = self.nodes[i]
            size, scalar = node.attrs.get("size"), node.attrs.get("scalar")
            factor = abs(float(size if size is not None else scalar if scalar is not None else 1.0))
            self.silent |= factor == 0.0  # a scale of exactly 0 hides every mistake in s
            factor = factor or 1.0
            scale *= 1.0 / factor if node.op == "div" else factor
        top = torch.finfo(output.dtype).max if output.is_floating_point() else 1.0
        amplitude = min((self.size_of_x or 1.0) * _NOISE / scale, math.sqrt(top))
        noise = torch.randn(output.shape, generator=self.generator, dtype=torch.float32) * amplitude
        if self.unit.candidate.merge == "multiply":
            noise = 1.0 + noise * (_NOISE / amplitude)  # factors around 1 leave a long product finite
        noise = noise.to(output.device, output.dtype)
        self.noise[tail.output] = noise
        for variant in self.variants:
            value = noise * 1.1 if variant == "s" else noise
            self.values[variant][tail.output] = value.clone()
        return noise

    def join(self, weight: torch.Tensor | float | None) -> None:
        """Predict the value of the merge."""
        unit, root = self.unit, self.nodes[self.unit.candidate.join]
        candidate = unit.candidate
        for variant in self.variants:
            values = self.values[variant]
            h = self._shortcut(values)
            if h is None:
                self.proof.reason = "its shortcut was not seen being computed"
                return
            if variant == "h":
                h = h * 0.9
            if candidate.merge != "add":
                branch = values.get(unit.tails[0].term.node)
                if branch is None:
                    self.proof.reason = "its branch's output was not seen being replaced"
                    return
                if candidate.merge == "multiply":
                    values[candidate.join] = (h * branch).to(root.dtype)
                else:
                    sides = (h, branch) if candidate.shortcut.position == 0 else (branch, h)
                    values[candidate.join] = torch.cat(sides, dim=root.attrs.get("dim", 0))
                continue
            total = self._placed(h, root) * self._factor(candidate.shortcut.node, candidate.shortcut.add, weight, 0)
            for tail in unit.tails:
                value = values.get(tail.term.node, values.get(tail.output) if not self._real(tail.nodes) else None)
                if value is None:
                    self.proof.reason = "its branch's output was not seen being replaced"
                    return
                total = total + self._placed(value, root) * self._factor(tail.term.node, tail.term.add, weight, 1)
            for term in candidate.sides:
                total = total + self._placed(self.sides[term.node], root) * self._factor(term.node, term.add, None, 1)
            values[candidate.join] = total.to(root.dtype)

    def _real(self, nodes: Sequence[int]) -> list[int]:
        """Nodes that are operations of their own (parts of a fused addition are not)."""
        return [i for i in nodes if not is_fused_part(self.nodes[i])]

    def _shortcut(self, values: dict[int, torch.Tensor]) -> torch.Tensor | None:
        real = self._real(self.unit.shortcut_nodes)
        return values.get(real[-1] if real else self.unit.candidate.x)

    @staticmethod
    def _placed(value: torch.Tensor, root: Node) -> torch.Tensor:
        """A term in the shape in which it enters the join."""
        same = value.numel() == math.prod(root.shape)
        return value.reshape(root.shape) if same and tuple(value.shape) != root.shape else value

    def _factor(self, term: int, add: int, weight: torch.Tensor | float | None, side: int) -> torch.Tensor | float:
        """What the join itself multiplies a term by."""
        node = self.nodes[add]
        fused = node.attrs.get("fused", "")
        if fused == "lerp" and weight is not None:
            return weight if side else 1 - weight
        if fused.startswith("stack-mean"):
            return 1.0 / len(node.inputs)
        position = node.inputs.index(term) if term in node.inputs else 1
        factor = join_factor(node, position)
        if fused in ops.ADDS_PRODUCT and position and isinstance(weight, torch.Tensor):
            return factor * weight
        return factor

    def check(self, actual: torch.Tensor) -> None:
        """Compare the stream behind the unit with the predictions."""
        end, join = self.unit.end, self.unit.candidate.join
        if not bool(actual.isfinite().all()):
            self.proof.reason = "the stream was not finite in the run with replaced values"
            return
        for variant in self.variants:
            values = self.values[variant]
            if end not in values:
                if not variant and not self.proof.reason:
                    self.proof.reason = "what follows its join was not seen being computed"
                continue
            predicted = values[end]
            if variant == "f":
                without = values[join] if end != join else torch.relu(predicted)
                same_shape = without.shape == predicted.shape
                changes = same_shape and _error(predicted, without) > 1e-2 / torch.finfo(actual.dtype).eps
                # Where leaving f out changes nothing (a ReLU on a positive stream), the mistake is a factor.
                predicted = without if changes else predicted * 1.1
            error = _error(actual, predicted)
            if variant:
                if not (variant == "s" and self.silent):
                    self.proof.wrong[variant] = error
            else:
                self.proof.error = error
                if error > BOUND_EPS:
                    self.proof.reason = f"the run with replaced values differs from its formula by {error:.3g} eps"


def is_fused_part(node: Node) -> bool:
    """Whether a node is one half of an operation that also adds."""
    return node.source in _FUSED and node.op not in ("add", node.source)


def _rms(tensor: torch.Tensor) -> float:
    if not tensor.numel():
        return 0.0
    value = float(tensor.detach().abs().float().square().mean().sqrt())
    return value if math.isfinite(value) else 0.0


def _error(actual: torch.Tensor, predicted: torch.Tensor) -> float:
    """Relative error (Euclidean norm) in eps of the actual tensor's dtype."""
    if actual.shape != predicted.shape:
        return math.inf
    dtype = torch.complex128 if actual.is_complex() else torch.float64
    a, b = actual.to(dtype), predicted.to(dtype)
    error = float((a - b).norm()) / (float(a.norm()) or 1.0)
    eps = torch.finfo(actual.dtype).eps
    return error / eps if math.isfinite(error) else math.inf

"""The passes behind a spectrum, in order: the gradient as it is, branches cut, the parts with their checks, samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.path_spectrum.run import degrees, distance, dot, norm, sampled_paths
from skipway.errors import ModelRunError, SkipwayError

if TYPE_CHECKING:
    import torch

    from skipway.diagnostics.path_spectrum.result import Carried, Road
    from skipway.diagnostics.path_spectrum.run import Degrees, LiveRun, PathSample
    from skipway.diagnostics.path_spectrum.scene import Scene

__all__ = ["LONGEST", "Work"]

LONGEST: Final = 32
"""K where there are more units and nothing else is asked for: each length costs a backward pass."""


class Work:
    """Does all passes and keeps what they found; see `skipway.diagnostics.path_spectrum.result.PathSpectrum`.

    Args:
        scene: the model with its units.
        max_length: K, or None.
        ways: how to carry the parts, in the order in which to try.
        sampled: paths drawn for each length.
        seed: of the draw.

    Raises:
        SkipwayError: no unit was passed as recorded, or no gradient arrives.
        ModelRunError: the model, the loss or the backward pass raised.
    """

    def __init__(
        self, scene: Scene, max_length: int | None, ways: tuple[Carried, ...], sampled: int, seed: int
    ) -> None:
        self._scene, self._ways = scene, ways
        self.notes: list[str] = []
        self.samples: list[PathSample] = []
        self._whole, end = self._ordinary()
        self.whole_norm = float(norm(self._whole))
        self._refuse_nothing()
        with scene.run("cut") as without:
            severed, at_x = without.gradient(), without.at_x()
        self.road, self.road_factor = self._judge_road(at_x, end)
        with scene.run("marked") as live:
            self.units = [k for k in range(len(scene.plan.units)) if k not in scene.missed]
            if not self.units:
                raise SkipwayError(
                    f"none of {len(scene.plan.units)} residual units can be intercepted: they join without gradients, "
                    "or inside scripted, fused or re-entrantly checkpointed code",
                    "joins that run as Python with gradients on", "checkpoint(..., use_reentrant=False)",
                )  # fmt: skip
            self.longest = min(LONGEST if max_length is None else max_length, len(self.units))
            self.parts, self.carried = self._parts(live, severed)
            if sampled and scene.of == "parameters":
                self.notes.append(
                    "no single paths were drawn: of parameters that lie inside branches there are no C(L,k)"
                )
            elif sampled:
                self.samples = sampled_paths(
                    live, self._whole, self.units, range(self.longest + 1), sampled, seed=seed,
                    together=self.carried == "together",
                )  # fmt: skip

    def _ordinary(self) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """The gradient of the model as it is, and that behind the last unit."""
        with self._scene.run("plain") as plain:
            try:
                return plain.gradient(), plain.at_end()
            except RuntimeError as error:
                raise _backward_failed(error) from error

    def _refuse_nothing(self) -> None:
        where = {"stream": "the stream", "input": "the input", "parameters": "the parameters"}[self._scene.of]
        if self.whole_norm == 0:
            raise SkipwayError(
                f"the gradient of the loss at {where} is exactly zero", "an output that depends on it",
                "a trained model, or another loss (a zero-initialised head passes no gradient back)",
            )  # fmt: skip
        if not math.isfinite(self.whole_norm):
            raise SkipwayError(
                f"the gradient of the loss at {where} is NaN or infinite", "a finite gradient",
                "skipway inspect, which names the operation that made it",
            )  # fmt: skip

    def _parts(self, live: LiveRun, severed: list[torch.Tensor]) -> tuple[Degrees, Carried]:
        """The parts, carried in the first way that passes the checks, or else in the last."""
        for way in self._ways:
            last = way == self._ways[-1]
            try:
                parts = degrees(
                    live, self._whole, self.longest, longer=self.longest < len(self.units), together=way == "together"
                )
            except Exception as error:  # what a custom backward raises under vmap is not known beforehand
                if last:
                    raise _backward_failed(error) from error
                self.notes.append(f"carried one by one: together they fail with {type(error).__name__}: {_line(error)}")
                continue
            self.sum_error = float(distance(parts.total, self._whole)) / self.whole_norm
            self.degree0_error = _relative(parts.first, severed, self.whole_norm)
            if last or max(self.sum_error, self.degree0_error) <= self._scene.allowed:
                break
            self.notes.append(
                f"carried one by one: together they fail the checks (sum {self.sum_error:.1e}, degree 0 "
                f"{self.degree0_error:.1e}), so an operation computes wrong numbers under vmap"
            )
        return parts, way

    def _judge_road(self, start: torch.Tensor | None, end: torch.Tensor | None) -> tuple[Road, float | None]:
        """What becomes of the gradient behind the last unit on its way to the first that passes no branch."""
        if end is None or start is None:
            return "unknown", None
        arrived, sent = float(norm([start])), float(norm([end]))
        if arrived == 0 or sent == 0:
            return "none", None
        if start.shape == end.shape:
            factor = float(dot([start], [end])) / sent**2
            if float(distance([start], [factor * end])) <= self._scene.allowed * arrived:
                unchanged = abs(factor - 1) <= self._scene.allowed
                return ("unchanged", 1.0) if unchanged else ("scaled", factor)
        return "changed", arrived / sent


def _relative(found: list[torch.Tensor], expected: list[torch.Tensor], whole: float) -> float:
    """The error of `found`; of the whole gradient where nothing is expected."""
    size = float(norm(expected))
    return float(distance(found, expected)) / (size or whole)


def _line(error: Exception) -> str:
    text = str(error).strip().split("\n")[0]
    return text if len(text) <= 120 else f"{text[:119]}…"


def _backward_failed(error: Exception) -> ModelRunError:
    reentrant = "checkpoint" in str(error).lower()
    return ModelRunError(
        f"the backward run fails with {type(error).__name__}: {_line(error)}",
        "a model that torch.autograd.grad can differentiate more than once",
        "checkpoint(..., use_reentrant=False)" if reentrant else "",
    )

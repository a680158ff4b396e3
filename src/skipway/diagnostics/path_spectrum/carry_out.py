"""The exact gradient by path length, on any model that runs forward and backward.

Shapes: L units on the stream, K the longest length that stands by itself, S entries of what the gradient is of.

What comes back at a join goes on through the shortcut with the same number of branches passed, and into the branch with
one more. So K + 1 gradients are carried through one graph, and each branch takes the gradient of the length before its
own: a polynomial in the number of branches, multiplied by z at each branch.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from typing import TYPE_CHECKING, Final, Literal

import torch

from skipway.diagnostics.path_spectrum.result import Carried, Of, PathSpectrum, SampledLength
from skipway.diagnostics.path_spectrum.scene import set_up
from skipway.diagnostics.path_spectrum.work import Work
from skipway.errors import SkipwayError, UnknownNameError
from skipway.trace.batch import Batch, describe, unwrapped

if TYPE_CHECKING:
    from torch import nn

    from skipway.diagnostics.measure import Loss
    from skipway.diagnostics.path_spectrum.run import PathSample
    from skipway.diagnostics.path_spectrum.scene import Scene

__all__ = ["path_spectrum"]

_OF: Final = ("stream", "input", "parameters")
_CARRY: Final = ("auto", "together", "one by one")


def path_spectrum(  # noqa: PLR0913  # one argument for each thing that can be chosen
    model: nn.Module,
    batch: Batch,
    loss: Loss | None = None,
    max_length: int | None = None,
    *,
    of: Of = "stream",
    sampled: int = 3,
    carry: Literal["auto", "together", "one by one"] = "auto",
    seed: int = 0,
    name: str | None = None,
) -> PathSpectrum:
    """The part of the gradient that went through exactly k branches, for k = 0 … K, with two checks that always run.

    ``∂loss/∂x = Σ_k g_k``, where g_k is the sum over all paths from x to the loss that pass k branches. The model runs
    eagerly, in the mode it is in, on copies of the batch, and is left exactly as it was. It runs three times (recorded
    and proved beforehand): as it is, for the gradient that the parts must add up to; with the branches detached where
    they join, for the gradient that degree 0 must be; and with the operands of its joins marked. The cost is one
    backward pass for each length, and memory for one gradient of every branch.

    Args:
        model: any module; DataParallel, DDP and compiled wrappers are opened.
        batch: what the model is called with: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        loss: maps the model's output to a scalar; a fixed random projection of the floating outputs if None.
        max_length: K; all lengths above are one part, so that the check of the sum holds all the same. By default the
            number of units, at most 32.
        of: what the gradient is taken with respect to: ``"stream"``, where the first unit reads it, ``"input"`` or
            ``"parameters"``.
        sampled: single paths to draw for each length as Veit et al. did, a backward pass each; 0 for none.
        carry: ``"one by one"`` carries the lengths one after the other, an ordinary backward pass each, in which every
            branch hands on what it was given in the pass before; ``"together"`` carries some at a time by vmap.
            ``"auto"``: one by one on the CPU, where vmap may cost twice as much; elsewhere together, or one by one
            where an operation cannot be vmapped or a check fails.
        seed: of the paths that are drawn.
        name: what to call the model in the report; its class by default.

    Raises:
        SkipwayError: an argument is of the wrong kind, no unit can be intercepted, or no gradient arrives.
        ModelRunError: the model, the loss or the backward pass raised; its own error is the cause.

    Source: paths and their lengths, arXiv 1605.06431.
    """
    if of not in _OF:
        raise UnknownNameError("gradient", of, _OF)
    if carry not in _CARRY:
        raise UnknownNameError("way to carry", carry, _CARRY)
    if max_length is not None and (not isinstance(max_length, int) or max_length < 0):
        raise SkipwayError(f"max_length={max_length!r}", "a number of branches, 0 or more, or None")
    if not isinstance(sampled, int) or sampled < 0:
        raise SkipwayError(f"sampled={sampled!r}", "a number of paths for each length, 0 for none")
    started = time.perf_counter()
    inner = unwrapped(model)
    with torch.inference_mode(mode=False):
        scene = set_up(inner, batch, loss, of)
        work = Work(scene, max_length, _ways(carry, inner), sampled, seed)
    plan, parts, whole = scene.plan, work.parts, work.whole_norm
    units = tuple(plan.units[k] for k in work.units)
    kept, longer = work.longest + 1, work.longest < len(units)
    return PathSpectrum(
        model=name or type(inner).__name__,
        mode="train" if inner.training else "eval",
        batch=describe(batch),
        loss=f"{_name(loss)} = {scene.loss_value:.4g}",
        of=of,
        units=units,
        uncounted=(*plan.uncounted, *(plan.units[k] for k in sorted(scene.missed))),
        chain=plan.chain,
        share=tuple(d / whole / whole for d in parts.dots[:kept]),
        norm=tuple(parts.norms[:kept]),
        longer_share=parts.dots[-1] / whole / whole if longer else None,
        longer_norm=parts.norms[-1] if longer else None,
        total_norm=whole,
        road=work.road,
        road_factor=work.road_factor,
        sum_error=work.sum_error,
        degree0_error=work.degree0_error,
        allowed=scene.allowed,
        carried=work.carried,
        sampled=tuple(_summary(s, len(units), whole) for s in work.samples),
        notes=(*_notes(scene), *work.notes),
        environment={
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": str(next((p.device for p in inner.parameters()), "cpu")),
        },
        seconds=time.perf_counter() - started,
    )


def _ways(carry: str, model: nn.Module) -> tuple[Carried, ...]:
    """How to carry the parts, in the order in which to try."""
    if carry == "auto":
        on_cpu = all(p.device.type == "cpu" for p in model.parameters())
        return ("one by one",) if on_cpu else ("together", "one by one")
    return ("together",) if carry == "together" else ("one by one",)


def _name(loss: Loss | None) -> str:
    return "fixed random projection of the outputs" if loss is None else getattr(loss, "__name__", type(loss).__name__)


def _notes(scene: Scene) -> list[str]:
    plan, notes = scene.plan, []
    uncounted = len(plan.uncounted) + len(scene.missed)
    if plan.elsewhere:
        notes.append(f"{_units(plan.elsewhere)} of the model not counted: not behind the first one")
    if uncounted:
        notes.append(
            f"{_units(uncounted)} not counted, and a path through such a branch counts nothing for it: not proved, or "
            "joined where no function call with gradients on could be intercepted"
        )
    if not plan.chain:
        notes.append("there are ways around units, so that the number of paths of a length is not exactly C(L,k)")
    if scene.left_out:
        outputs = "1 output" if scene.left_out == 1 else f"{scene.left_out} outputs"
        notes.append(f"{outputs} left out of the loss: not from behind the last unit (a cache?)")
    return notes


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count} units"


def _summary(sample: PathSample, units: int, whole: float) -> SampledLength:
    """Mean and standard error over the paths drawn; no error where there are no others."""
    drawn, all_paths = len(sample.norms), math.comb(units, sample.length)
    count = math.exp(min(math.log(all_paths), 700.0))  # beyond that no floating number holds it

    def error(values: list[float]) -> float | None:
        if drawn == all_paths:
            return 0.0
        return statistics.stdev(values) / math.sqrt(drawn) if drawn > 1 else None

    dots = [d / whole / whole for d in sample.dots]
    spread = error(dots)
    return SampledLength(
        length=sample.length,
        paths=drawn,
        norm=statistics.fmean(sample.norms),
        norm_error=error(sample.norms),
        share=count * statistics.fmean(dots),
        share_error=None if spread is None else count * spread,
    )

"""What an inspection says in words: the loss, why there are no units, what the proofs rejected, a list of names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.units.prove import WRONG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skipway.diagnostics.measure import Loss
    from skipway.trace.record import Trace
    from skipway.units.prove import Proof

__all__ = ["first_of", "loss_name", "why_none", "wrong_note"]


def first_of(names: Sequence[str], most: int = 3) -> str:
    """Names, the first few of them where there are many, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def loss_name(loss: Loss | None, *, structure_only: bool, value: float | None) -> str:
    """The loss in words, with its value where it is known."""
    if structure_only:
        return "none (structure only)"
    text = "fixed random projection of the outputs" if loss is None else getattr(loss, "__name__", type(loss).__name__)
    return text if value is None else f"{text} = {value:.4g}"


def wrong_note(proofs: Sequence[Proof]) -> str:
    """By how much deliberately wrong formulas missed."""
    smallest = {k: min((p.wrong[k] for p in proofs if p.holds and k in p.wrong), default=None) for k in WRONG}
    shown = ", ".join(f"wrong {k} misses by {v:.3g} eps" for k, v in smallest.items() if v is not None)
    return f"deliberately wrong formulas, smallest error over all units: {shown}"


def why_none(trace: Trace, unexplained: int, trivial: int) -> str:
    """Why a model has no unit.

    Args:
        trace: the recorded run.
        unexplained: number of joins that are listed as not explained.
        trivial: number of joins whose branch does no work.
    """
    if not trace.graph.outputs or not any(trace.graph.nodes[o].data for o in trace.graph.outputs):
        return "no units: no output of the model depends on its input"
    if unexplained:
        return f"no units: {unexplained} joins were seen and none is a residual unit (see unexplained)"
    if trivial:
        return f"no units: at {trivial} joins the branch has no weights, pooling or normalisation"
    return "no units: no tensor was seen added to something computed from it (a plain network?)"

"""Inspect any model: find its residual units, prove them, measure the signal both ways, name what is wrong."""

from __future__ import annotations

import gc
import platform
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from skipway.diagnostics.inspection import Inspection
from skipway.diagnostics.measure import Loss, Measured, measure
from skipway.diagnostics.nonfinite import first_non_finite, non_finite_leaf
from skipway.diagnostics.profile import slopes
from skipway.diagnostics.rules import Evidence, run_rules
from skipway.errors import ModelRunError, SkipwayError, UnknownNameError
from skipway.trace.batch import Batch, call_arguments, copied, describe, tensors_of, unwrapped
from skipway.trace.record import Trace, record
from skipway.units.describe import Described
from skipway.units.describe import describe as describe_units
from skipway.units.find import Found, find
from skipway.units.kinds import cost, is_closed, kinds, levels
from skipway.units.merges import mixing_joins
from skipway.units.naming import paths, place_of
from skipway.units.prove import WRONG, Proof, prove
from skipway.units.unit import StreamNumbers, Unexplained, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PROFILES", "inspect"]

PROFILES: Final = ("fast", "default", "thorough")
_TRIVIAL: Final = "the branch does no work"


def inspect(
    model: nn.Module,
    batch: Batch,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    structure_only: bool = False,  # part of the documented signature
    profile: str = "default",
    *,
    name: str | None = None,
) -> Inspection:
    """Find the residual units of a model that runs forward, prove each, and measure the signal along the stream.

    The model runs eagerly, in the mode it is in, on copies of the batch, and is left exactly as it was: parameters,
    buffers, gradients, modes, hooks and random number generators.

    Args:
        model: any module; DataParallel, DDP and compiled wrappers are opened.
        batch: what the model is called with: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        loss: maps the model's output to a scalar; without one a fixed random projection of the floating
            outputs is used.
        optimizer: the optimizer that trains the model, for rules that look at its parameter groups.
        structure_only: find and prove units, measure nothing.
        profile: ``"fast"`` skips the proofs, ``"default"`` proves and measures, ``"thorough"`` also shows for
            every unit
            that deliberately wrong formulas fail.
        name: what to call the model in the report; its class by default.

    Raises:
        SkipwayError: the batch is of the wrong kind or holds NaN, or the profile is unknown.
        ModelRunError: the model raised; its own error is the cause.
    """
    if profile not in PROFILES:
        raise UnknownNameError("profile", profile, PROFILES)
    with _uncollected(), torch.inference_mode(mode=False):
        return _inspected(model, batch, loss, optimizer, structure_only, profile, name)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection while a run is recorded: it makes many small objects and no cycles.

    A collection looks at every object of the process; with the usual libraries imported it took a third of the time
    of a recorded run of a small model.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _inspected(
    model: nn.Module,
    batch: Batch,
    loss: Loss | None,
    optimizer: torch.optim.Optimizer | None,
    structure_only: bool,
    profile: str,
    name: str | None,
) -> Inspection:
    started = time.perf_counter()
    inner = unwrapped(model)
    if _on_meta(inner):
        batch = copied(batch, lambda t: t.to("meta"))
    _check(batch)
    notes = [] if optimizer is None else ["no rule of this version looks at the optimizer"]
    trace = _recorded(inner, batch, addresses=not structure_only or profile != "fast")
    found = find(trace.graph)
    described = describe_units(found)
    runs = {"trace": 1}
    proofs = [Proof(reason="proofs were skipped (profile fast)") for _ in described]
    if profile == "fast":
        notes.append("proofs were skipped (profile fast)")
    else:
        proofs, runs["prove"] = prove(
            inner,
            batch,
            described,
            found.links,
            wrong=WRONG if profile == "thorough" else (),
            keep_parameters=trace.writes_parameters,
        )
    kept, units, unexplained = _units(found, described, proofs, skipped=profile == "fast")
    layers = []
    measured = Measured([], [])
    if structure_only:
        notes.append("the signal was not measured (structure only)")
    elif _on_meta(inner):
        notes.append("the signal was not measured (the model is on the meta device)")
    else:
        measured = _measured(inner, batch, kept, found, loss, keep_parameters=trace.writes_parameters)
        runs["measure"] = 1
        notes += measured.notes
        units = [replace(u, numbers=n) for u, n in zip(units, measured.units, strict=True)]
        layers = measured.layers
    first: dict[str, str] = {}
    if not measured.finite:
        first = first_non_finite(inner, batch, keep_parameters=trace.writes_parameters)
        runs["search non-finite"] = 1
        leaf = non_finite_leaf(inner)
        if leaf:
            first = {"operation": f"parameter {leaf}, which is not finite itself", "path": leaf.rpartition(".")[0]}
    evidence = Evidence(
        units=units,
        graph=trace.graph,
        layers=layers,
        scopes=[found.links.graph.chain(found.links.nodes[d.candidate.join].call) for d in kept],
        finite=measured.finite,
        first_non_finite=first,
        measured=not structure_only,
    )
    if measured.units and not inner.training and _has_fresh_batch_norm(inner):
        notes.append(
            "BatchNorm statistics are still at their initial values: in eval mode nothing is normalised by them"
        )
    if trace.writes_parameters:
        notes.append("the model writes to its own parameters in forward; they were put back")
    if profile == "thorough" and kept:
        notes.append(_wrong_note(proofs))
    if not units:
        notes.append(_why_none(trace, unexplained, sum(r.reason == _TRIVIAL for r in found.rejected)))
    return Inspection(
        model=name or type(inner).__name__,
        mode="train" if inner.training else "eval",
        batch=describe(batch),
        loss=_loss_name(loss, structure_only=structure_only, value=measured.loss),
        profile=f"{profile}, structure only" if structure_only else profile,
        units=units,
        findings=run_rules(evidence),
        unexplained=unexplained,
        layers=layers,
        slopes=slopes(units, layers),
        totals=_totals(trace),
        runs=runs,
        notes=notes,
        environment=_environment(inner),
        seconds=time.perf_counter() - started,
    )


def _on_meta(model: nn.Module) -> bool:
    first = next(model.parameters(), None)
    return first is not None and first.device.type == "meta"


def _check(batch: Batch) -> None:
    args, kwargs = call_arguments(batch)
    for k, tensor in enumerate(tensors_of((args, kwargs))):
        if not tensor.is_floating_point() or tensor.device.type == "meta":
            continue
        # One NaN makes the sum NaN, and a sum takes 0.01 ms where looking at each value of an image takes 1.7.
        if (tensor.itemsize == 1 or tensor.sum().isnan()) and tensor.isnan().any():
            raise SkipwayError(
                f"tensor {k} of the batch holds {int(tensor.isnan().sum())} NaN of {tensor.numel()} values",
                "a batch without NaN, so that what is measured is the model's own doing",
            )


def _recorded(model: nn.Module, batch: Batch, *, addresses: bool) -> Trace:
    try:
        return record(model, batch, addresses=addresses)
    except SkipwayError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelRunError(
            f"the model failed on {describe(batch)}: {type(error).__name__}: {error}",
            "an input that the model runs on: check shape, dtype and device",
        ) from error


def _units(
    found: Found, described: list[Described], proofs: list[Proof], *, skipped: bool
) -> tuple[list[Described], list[Unit], list[Unexplained]]:
    links = found.links
    named = paths(described, links)
    kinds_ = kinds(described, links)
    depths = levels(described, kinds_)
    unproved_everywhere = skipped or all(p.reason.startswith("no numbers") for p in proofs)
    kept: list[Described] = []
    units: list[Unit] = []
    unexplained: list[Unexplained] = []
    for unit, path, kind, level, proof in zip(described, named, kinds_, depths, proofs, strict=True):
        if not proof.holds and not unproved_everywhere:
            unexplained.append(
                Unexplained(path, "add", f"looks like {unit.form.equation()}, not proved: {proof.reason}")
            )
            continue
        end, price = links.nodes[unit.end], cost(unit, links)
        kept.append(unit)
        units.append(
            Unit(
                index=len(units),
                path=path,
                kind=kind,
                level=level,
                form=unit.form,
                proof_error=proof.error,
                closed=is_closed(unit, links),
                shape=end.shape,
                dtype=str(end.dtype).removeprefix("torch."),
                parameters=price.parameters,
                flops=price.flops,
                activation_bytes=price.activation_bytes,
            )
        )
    unexplained += [
        Unexplained(place_of(r.join, links), "add", r.reason) for r in found.rejected if r.reason != _TRIVIAL
    ]
    unexplained += [Unexplained(place_of(i, links), links.nodes[i].op, reason) for i, reason in mixing_joins(found)]
    return kept, units, unexplained


def _measured(
    model: nn.Module, batch: Batch, kept: list[Described], found: Found, loss: Loss | None, *, keep_parameters: bool
) -> Measured:
    try:
        return measure(model, batch, kept, found.links, loss, keep_parameters=keep_parameters)
    except Exception as error:
        if loss is None:
            reason = str(error).strip().split("\n")[0]
            note = f"the signal was not measured: with gradients the model fails with {type(error).__name__}: {reason}"
            return Measured([StreamNumbers() for _ in kept], [], notes=[note])
        raise ModelRunError(
            f"the model or the given loss failed: {type(error).__name__}: {error}",
            "loss(output) -> scalar tensor, where output is what the model returns",
        ) from error


def _loss_name(loss: Loss | None, *, structure_only: bool, value: float | None) -> str:
    if structure_only:
        return "none (structure only)"
    text = "fixed random projection of the outputs" if loss is None else getattr(loss, "__name__", type(loss).__name__)
    return text if value is None else f"{text} = {value:.4g}"


def _wrong_note(proofs: list[Proof]) -> str:
    smallest = {k: min((p.wrong[k] for p in proofs if p.holds and k in p.wrong), default=None) for k in WRONG}
    shown = ", ".join(f"wrong {k} misses by {v:.3g} eps" for k, v in smallest.items() if v is not None)
    return f"deliberately wrong formulas, smallest error over all units: {shown}"


def _why_none(trace: Trace, unexplained: list[Unexplained], trivial: int) -> str:
    if not trace.graph.outputs or not any(trace.graph.nodes[o].data for o in trace.graph.outputs):
        return "no units: no output of the model depends on its input"
    if unexplained:
        return f"no units: {len(unexplained)} joins were seen and none is a residual unit (see unexplained)"
    if trivial:
        return f"no units: at {trivial} joins the branch has no weights, pooling or normalisation"
    return "no units: no tensor was seen added to something computed from it (a plain network?)"


def _has_fresh_batch_norm(model: nn.Module) -> bool:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]  # noqa: SLF001  # their base class
    return any(m.num_batches_tracked is not None and int(m.num_batches_tracked) == 0 for m in norms)


def _totals(trace: Trace) -> Mapping[str, int]:
    nodes = trace.graph.nodes
    return {
        "parameters": sum(trace.graph.parameter_sizes),
        "flops": sum(n.flops for n in nodes),
        "activation_bytes": sum(n.nbytes for n in nodes),
        "operations": trace.operations,
    }


def _environment(model: nn.Module) -> Mapping[str, Any]:
    device = next((str(p.device) for p in model.parameters()), "cpu")
    return {"torch": torch.__version__, "python": platform.python_version(), "device": device}

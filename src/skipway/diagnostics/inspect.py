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
from skipway.diagnostics.judge import TRIVIAL, judge
from skipway.diagnostics.lab import Lab
from skipway.diagnostics.look import look
from skipway.diagnostics.measure import Loss, Measured, measure
from skipway.diagnostics.nonfinite import first_non_finite, non_finite_leaf
from skipway.diagnostics.profile import slopes
from skipway.diagnostics.rules import Evidence, collect_wants, run_rules
from skipway.diagnostics.trained import training_notes
from skipway.diagnostics.words import loss_name, why_none, wrong_note
from skipway.errors import ModelRunError, SkipwayError, UnknownNameError
from skipway.trace.batch import Batch, call_arguments, copied, describe, failed_on, tensors_of, unwrapped
from skipway.trace.record import Trace, record
from skipway.units.between import head, stem
from skipway.units.describe import Described
from skipway.units.describe import describe as describe_units
from skipway.units.find import Found, find
from skipway.units.prove import WRONG, Proof, prove
from skipway.units.unit import StreamNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["PROFILES", "inspect"]

PROFILES: Final = ("fast", "default", "thorough")


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
        structure_only: find and prove units, measure nothing. Without proofs (profile ``"fast"``) the model's products
            and convolutions are not even computed, unless it looks at numbers itself.
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
    notes: list[str] = []
    further = not structure_only or profile != "fast"
    trace = _recorded(inner, batch, addresses=further, values=further)
    keep = trace.writes_parameters
    found = find(trace.graph)
    described = describe_units(found)
    runs = {"trace": trace.runs}
    proofs = [Proof(reason="proofs were skipped (profile fast)") for _ in described]
    if profile == "fast":
        notes.append("proofs were skipped (profile fast)")
    else:
        wrong = WRONG if profile == "thorough" else ()
        proofs, runs["prove"] = prove(inner, batch, described, found.links, wrong=wrong, keep_parameters=keep)
    kept, units, unexplained = judge(found, described, proofs, skipped=profile == "fast")
    measured = Measured([], [])
    signal = not structure_only and not _on_meta(inner) and trace.error is None
    if signal:
        measured = _measured(inner, batch, kept, found, loss, keep_parameters=keep)
        runs["measure"] = 1
        notes += measured.notes
        units = [replace(u, numbers=n) for u, n in zip(units, measured.units, strict=True)]
    else:
        notes.append(f"the signal was not measured ({_why_not_measured(trace, structure_only=structure_only)})")
    in_lab = not structure_only and not _on_meta(inner) and profile != "fast"
    evidence = Evidence(
        units=units,
        graph=trace.graph,
        layers=measured.layers,
        scopes=[found.links.graph.chain(found.links.nodes[d.candidate.join].call) for d in kept],
        finite=measured.finite,
        first_non_finite={} if measured.finite else _first_non_finite(inner, batch, runs, trace),
        measured=signal,
        values=not structure_only and not _on_meta(inner),
        described=kept,
        found=found,
        model=inner,
        optimizer=optimizer,
        lab=Lab(inner, batch, loss, runs, keep_parameters=keep, takes_gradients=trace.graph.takes_gradients)
        if in_lab
        else None,
        trace=trace,
        backward_error=measured.backward_error,
        autocast=_autocast_dtype(inner),
        gradient_finite=measured.gradient_finite,
        constant=measured.constant,
        cut=measured.cut,
        recounted=measured.recounted,
        detached=measured.detached,
    )
    if in_lab and trace.error is None:
        wants = collect_wants(evidence)
        if wants:
            runs["look"] = 1
            try:
                seen = look(inner, batch, trace.graph, wants, keep_parameters=keep)
            except (Exception, SystemExit) as error:
                raise failed_on(batch, error) from error
            evidence = replace(evidence, seen=seen)
    findings, not_looked_at = run_rules(evidence)
    if trace.error is not None and not any(f.severity == "error" for f in findings):
        raise failed_on(batch, trace.error) from trace.error
    notes += _notes_on(inner, trace, measured)
    if signal:
        told = any(f.rule in ("dead-op", "idle-block") for f in findings)
        notes += training_notes(evidence, idle=not told)
    if profile == "thorough" and kept:
        notes.append(wrong_note(proofs))
    if not units:
        notes.append(why_none(trace, len(unexplained), sum(r.reason == TRIVIAL for r in found.rejected)))
    return Inspection(
        model=name or type(inner).__name__,
        mode="train" if inner.training else "eval",
        batch=describe(batch),
        loss=loss_name(loss, structure_only=structure_only, value=measured.loss),
        profile=f"{profile}, structure only" if structure_only else profile,
        units=units,
        findings=findings,
        unexplained=unexplained,
        layers=measured.layers,
        slopes=slopes(units, measured.layers),
        totals=_totals(trace),
        runs=runs,
        notes=notes + not_looked_at,
        environment=_environment(inner),
        seconds=time.perf_counter() - started,
        stem=stem(kept, units, found),
        head=head(kept, units, found),
    )


def _first_non_finite(model: nn.Module, batch: Batch, runs: dict[str, int], trace: Trace) -> dict[str, str]:
    runs["search non-finite"] = 1
    leaf = non_finite_leaf(model)
    if leaf:
        return {"operation": f"parameter {leaf}, which is not finite itself", "path": leaf.rpartition(".")[0]}
    return first_non_finite(
        model, batch, keep_parameters=trace.writes_parameters, gradients=trace.graph.takes_gradients
    )


def _notes_on(model: nn.Module, trace: Trace, measured: Measured) -> list[str]:
    notes = []
    if trace.error is not None:
        notes.append(f"the model raised {type(trace.error).__name__}; this is what ran until then")
    if measured.units and not model.training and _has_fresh_batch_norm(model):
        notes.append(
            "BatchNorm statistics are still at their initial values: in eval mode nothing is normalised by them"
        )
    if trace.writes_parameters:
        notes.append("the model writes to its own parameters in forward; they were put back")
    return notes


def _why_not_measured(trace: Trace, *, structure_only: bool) -> str:
    if structure_only:
        return "structure only"
    return "the model is on the meta device" if trace.error is None else "the model raised"


def _autocast_dtype(model: nn.Module) -> torch.dtype | None:
    device = next((p.device.type for p in model.parameters()), "cpu")
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


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


def _recorded(model: nn.Module, batch: Batch, *, addresses: bool, values: bool) -> Trace:
    try:
        return record(model, batch, addresses=addresses, partial=True, values=values)
    except SkipwayError:
        raise
    except (Exception, SystemExit) as error:
        raise failed_on(batch, error) from error


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

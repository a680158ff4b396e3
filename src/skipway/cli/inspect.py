"""`skipway inspect`: load, run, print, and say by the exit code whether something is wrong."""

from __future__ import annotations

import json
import random
import sys
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from skipway.cli.baseline import new_findings, read_baseline
from skipway.cli.catalog import rule_names
from skipway.cli.complete import PROFILES, SEVERITIES
from skipway.cli.failures import FINDINGS, INTERRUPTED, as_usage
from skipway.cli.losses import loss_by_name
from skipway.cli.result import check_html
from skipway.cli.settings import ignored_rules
from skipway.diagnostics.inspect import inspect
from skipway.diagnostics.path_spectrum import path_spectrum
from skipway.errors import ModelRunError, SkipwayError, UnknownNameError
from skipway.models.load import (
    LoadedModel,
    load_model,
    parse_input,
    read_batch,
    suggested_input,
    to_floating,
    with_keywords,
)
from skipway.parts import Section
from skipway.report import dumps, inspection_parts, inspection_report, proof_parts, write_html
from skipway.report.console import show
from skipway.trace.batch import tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from skipway.diagnostics.inspection import Inspection
    from skipway.diagnostics.measure import Loss
    from skipway.models.load import Batch
    from skipway.study.proving.proof import Proof

__all__ = ["Request", "run_inspect"]

_DTYPES = ("float32", "float64", "bfloat16", "float16")
_AMP = ("bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed behind ``skipway inspect``; the option of the same name tells what a field means."""

    model: str
    input: str | None = None
    batch: Path | None = None
    kwargs: str | None = None
    weights: Path | None = None
    loss: str = "projection"
    mode: str | None = None
    device: str | None = None
    dtype: str | None = None
    amp: str | None = None
    structure_only: bool = False
    profile: str = "default"
    paths: bool = False
    max_length: int | None = None
    prove: bool = False
    fix: str | None = None
    prove_steps: int = 150
    json: bool = False
    html: Path | None = None
    fail_on: str = "error"
    ignore: tuple[str, ...] = ()
    baseline: Path | None = None


def run_inspect(request: Request) -> int:
    """Inspect the model that `request` names, print the report, and return the exit code."""
    _check(request)
    with as_usage("[tool.skipway]"):
        request = replace(request, ignore=(*request.ignore, *ignored_rules(rule_names())))
    known: frozenset[tuple[str, str]] = frozenset()
    if request.baseline is not None:
        with as_usage("--baseline"):
            known = read_baseline(request.baseline, request.model)
    # What the user's own code prints must not mix with the JSON on standard output.
    with redirect_stdout(sys.stderr) if request.json else nullcontext():
        with as_usage("--loss"):
            loss = loss_by_name(request.loss)
        # The same command gives the same report: initial weights and dropout masks are drawn from here.
        _seed()
        loaded = load_model(request.model, weights=request.weights)
        batch = _batch(request, loaded)
        device, dtype = _device(request), getattr(torch, request.dtype) if request.dtype else None
        loaded.model.to(device=device, dtype=dtype)
        batch = to_floating(batch, device, dtype)
        try:
            with _measured_in(loaded.model, request.mode or loaded.mode), _autocast(request, device):
                inspection = inspect(
                    loaded.model, batch, loss=loss, structure_only=request.structure_only, profile=request.profile,
                    name=loaded.label,
                )  # fmt: skip
                if request.paths:
                    inspection = _with_paths(inspection, request, loaded, batch, loss)
            proofs: list[Proof] = []
            if request.prove:
                inspection, proofs = _with_proofs(inspection, request, loaded, batch)
        except ModelRunError as error:
            raise ModelRunError(error.given, error.expected, _what_to_type(error, loaded, batch)) from error.__cause__
        except KeyboardInterrupt:
            print("interrupted; the model is as it was before", file=sys.stderr)
            return INTERRUPTED
    return _report(inspection, request, proofs, known)


def _seed() -> None:
    """Start every global generator that a model may draw from."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # the global generator, which the model may draw from


def _with_paths(
    inspection: Inspection, request: Request, loaded: LoadedModel, batch: Batch, loss: Loss | None
) -> Inspection:
    """The inspection with the gradient by path length, or with a note why there is none."""
    try:
        spectrum = path_spectrum(loaded.model, batch, loss, request.max_length, name=loaded.label)
    except SkipwayError as error:
        note = f"the gradient by path length was not measured: {error.given}"
        return replace(inspection, notes=[*inspection.notes, note])
    return replace(inspection, paths=spectrum)


def _with_proofs(
    inspection: Inspection, request: Request, loaded: LoadedModel, batch: Batch
) -> tuple[Inspection, list[Proof]]:
    """The inspection with its proofs, and with notes on what could not be proved."""
    from skipway.cli.prove import prove_findings

    kept = replace(inspection, findings=[f for f in inspection.findings if f.rule not in request.ignore])
    proofs, notes = prove_findings(kept, loaded, batch, fix=request.fix, steps=request.prove_steps)
    found = replace(inspection, notes=[*inspection.notes, *notes], proofs=[p.to_dict() for p in proofs])
    return found, proofs


def _what_to_type(error: ModelRunError, loaded: LoadedModel, batch: Batch) -> str:
    """The option that may mend a run that failed."""
    if error.hint:
        return error.hint
    if "given loss" in error.given:
        return "--loss projection, which takes any output"
    floats_only = all(t.is_floating_point() for t in tensors_of(batch))
    if floats_only and any(isinstance(module, nn.Embedding) for module in loaded.model.modules()):
        return "--input ids:2,16 for integers; see skipway inspect --help"
    return "--input SHAPE with what the model is made for; see skipway inspect --help"


def _report(
    inspection: Inspection, request: Request, proofs: Sequence[Proof], known: frozenset[tuple[str, str]]
) -> int:
    kept = [f for f in inspection.findings if f.rule not in request.ignore]
    whole = replace(inspection, findings=kept)
    new = new_findings(kept, known)
    inspection = replace(whole, findings=new)
    if len(new) < len(kept):
        rules = ", ".join(dict.fromkeys(f.rule for f in kept if f not in new))
        note = f"known from {request.baseline}: {len(kept) - len(new)} findings ({rules})"
        inspection = replace(inspection, notes=[*inspection.notes, note])
    if request.html is not None:
        shown = [Section(title=f"Proof of {p.rule}", parts=proof_parts(p, curves=True)) for p in proofs]
        write_html(request.html, (*inspection_report(inspection), *shown), title=f"skipway · {inspection.model}")
    if request.json:
        unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(dumps(whole.to_dict(), ascii_only=not unicode))
    else:
        show((*inspection_parts(inspection), *(part for p in proofs for part in proof_parts(p))))
    return FINDINGS if inspection.worst(request.fail_on) else 0


def _check(request: Request) -> None:
    """Refuse what no option takes, before anything slow happens."""
    for option, value, known in (
        ("--profile", request.profile, PROFILES), ("--fail-on", request.fail_on, SEVERITIES),
        ("--dtype", request.dtype, _DTYPES), ("--amp", request.amp, _AMP),
    ):  # fmt: skip
        if value is not None and value not in known:
            with as_usage(option):
                raise UnknownNameError("value", value, known)
    if request.max_length is not None and not request.paths:
        with as_usage("--max-length"):
            raise SkipwayError("given without --paths", "the two together")
    if request.paths and request.structure_only:
        with as_usage("--paths"):
            raise SkipwayError("given together with --structure-only", "one of the two")
    check_html(request.html)
    if request.fix is not None and not request.prove:
        with as_usage("--fix"):
            raise SkipwayError("given without --prove", "--prove --fix FACTORY")
    if request.input is not None and request.batch is not None:
        with as_usage("--input"):
            raise SkipwayError("given together with --batch", "one of the two")
    rules = rule_names() if request.ignore else []
    for rule in request.ignore:
        if rule not in rules:
            with as_usage("--ignore"):
                raise UnknownNameError("rule", rule, rules, "skipway list rules")


def _batch(request: Request, loaded: LoadedModel) -> Batch:
    batch = loaded.batch
    if request.input is not None:
        with as_usage("--input"):
            batch = parse_input(request.input, loaded.model)
    elif request.batch is not None:
        with as_usage("--batch"):
            batch = read_batch(request.batch, loaded.model)
    if batch is None:
        raise SkipwayError(
            f"{loaded.label} does not say what it is called with", "--input SHAPE or --batch FILE",
            f"skipway inspect {loaded.label} --input {suggested_input(loaded.model)}",
        )  # fmt: skip
    if request.kwargs is None:
        return batch
    with as_usage("--kwargs"):
        return with_keywords(batch, _keywords(request.kwargs), loaded.model)


def _keywords(text: str) -> dict[str, Any]:
    try:
        keywords = json.loads(text)
    except json.JSONDecodeError as error:
        raise SkipwayError(f"{text!r} is no JSON: {error}", "an object", """'{"use_cache": false}'""") from None
    if not isinstance(keywords, dict):
        raise SkipwayError(f"{text!r} is no JSON object", "an object", """'{"use_cache": false}'""")
    return keywords


def _device(request: Request) -> torch.device | None:
    if request.device is None:
        return None
    with as_usage("--device"):
        try:
            device = torch.device(request.device)
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            first = str(error).strip().split("\n")[0]
            raise SkipwayError(
                f"device {request.device!r} cannot be used: {first}", "cpu, cuda, cuda:1, mps …"
            ) from None
    return device


@contextmanager
def _measured_in(model: nn.Module, mode: str) -> Iterator[None]:
    """The model in `mode`; afterwards every module is in the mode in which it was."""
    before = [(module, module.training) for module in model.modules()]
    model.train(mode == "train")
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _autocast(request: Request, device: torch.device | None) -> AbstractContextManager[Any]:
    if request.amp is None:
        return nullcontext()
    return torch.autocast(device.type if device is not None else "cpu", dtype=getattr(torch, request.amp))

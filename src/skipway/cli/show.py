"""`skipway show`: one model or design, without measuring anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from skipway.cli.catalog import design_parts
from skipway.designs import DESIGNS, DesignInfo
from skipway.diagnostics.inspect import inspect
from skipway.errors import SkipwayError
from skipway.models import Net
from skipway.models.load import load_model, suggested_input
from skipway.models.memory import FEW, activation_bytes
from skipway.parts import Table
from skipway.report import inspection_parts
from skipway.report.console import show
from skipway.report.numbers import bytes_text

if TYPE_CHECKING:
    from skipway.parts import Part

__all__ = ["run_show"]


def run_show(name: str, batch_size: int) -> int:
    """Print what a model or design is."""
    if name in DESIGNS:
        show(design_parts(DesignInfo.of(DESIGNS[name])))
        return 0
    torch.manual_seed(0)
    loaded = load_model(name, batch_size=batch_size)
    if loaded.batch is None:
        raise SkipwayError(
            f"{name} does not say what it is called with", "a model that names its input",
            f"skipway inspect {name} --structure-only --input {suggested_input(loaded.model)}",
        )  # fmt: skip
    loaded.model.eval()
    batch = loaded.batch
    if isinstance(loaded.model, Net):
        # The structure is the same for any number of samples; what memory they take is worked out below.
        batch = loaded.model.dummy_input(min(batch_size, FEW[0]))
    inspection = inspect(loaded.model, batch, structure_only=True)
    # Its last part is about findings, and nothing was measured that a rule could look at.
    parts: list[Part] = [*inspection_parts(replace(inspection, model=name, findings=[]))[:-1]]
    if isinstance(loaded.model, Net):
        parts.append(_memory_part(loaded.model, batch_size))
        parts.extend(design_parts(DesignInfo.of(type(loaded.model.design))))
    show(parts)
    return 0


def _memory_part(net: Net, batch_size: int) -> Table:
    """What a training step keeps, by mode; worked out from a few samples, as ``--memory auto`` does."""
    needs = activation_bytes(net.train(), net.stack, net.dummy_input(min(batch_size, FEW[1])))
    whole = needs["keep"].of(batch_size)
    rows = tuple(
        (mode, bytes_text(need.of(batch_size)), f"{need.of(batch_size) / whole:.2f}×") for mode, need in needs.items()
    )
    return Table(
        columns=("--memory", "kept", "of keep"), rows=rows, numeric=("kept", "of keep"),
        title="kept for the backward pass", note=f"In training, float32, {batch_size} samples.",
    )  # fmt: skip

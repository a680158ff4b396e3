"""Rule ``shortcut-overwritten``: an in-place operation rewrites x before the shortcut reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._joins import called, path_of, times
from skipway.diagnostics.rules._overwritten import Suspect, mended, rewritten, suspects
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from skipway.diagnostics.finding import Finding
    from skipway.diagnostics.rules._renamed import Rename

__all__ = ["shortcut_overwritten"]

_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1)
        )

    def forward(self, x):
        return x + self.branch(x)


model = nn.Sequential(nn.Conv2d(3, 8, 1), Block(), Block())
batch = torch.randn(2, 3, 8, 8)
"""


@rule(
    "shortcut-overwritten",
    severity="error",
    summary="An in-place operation in the branch rewrites x before the shortcut reads it.",
    explanation="The shortcut is not the identity that the code shows: it reads what the branch wrote into x, or into a"
    " part of it. Where an in-place write inside a unit reaches its shortcut, the model runs again with that write"
    " going to a copy. If the shortcut then reads another value than the branch, the code holds x under two names;"
    " x = relu_(x) holds one, and the two runs are equal. Where nobody reads the result of the write (x.relu_() as a"
    " statement, x[:, :4] = y), one after the other of the names that stand for x in the code up to the join is given"
    " the copy. A ReLU(inplace=True) on a tensor that nobody reads again is healthy, and so are x.add_(F(x)), which is"
    " the join, and a mask written into x by its only name. Not measured, it is a warning, given only where the write"
    " lies in a module that goes on to weights of its own.",
    fix="make the operation out of place, or give the branch a clone of x",
    source="vq-vae-2-pytorch issue 60; iresnet issue 2; sglang pull request 28005",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3", "nn.ReLU(), nn.Conv2d(8, 8, 3"),
    explains=("stream-growth", "rank-collapse", "self-add"),
)
def shortcut_overwritten(evidence: Evidence) -> Iterator[Finding]:
    """Fire where a run with the write out of place gives the shortcut another value, once for the model."""
    found = list(suspects(evidence))
    if not found:
        return
    if evidence.lab is None:
        sure = [s for s in found if s.sure]
        if sure:
            yield _finding(evidence, sure, None)
        return
    writes = rewritten(evidence)
    shown = [s for s in found if s.write in writes]
    if not shown:
        return
    change = _change(evidence, writes)
    if change is not None and change[0] > 0:
        yield _finding(evidence, shown, change)


def _change(evidence: Evidence, writes: Mapping[int, Rename | None]) -> tuple[float, float] | None:
    """Largest difference of any output between the model as it is and with the writes out of place, and its share."""
    lab = evidence.lab
    if lab is None:
        return None
    try:
        before = lab.outputs("shortcut-overwritten")
        after = lab.outputs("shortcut-overwritten", around=mended(evidence, writes))
    except Exception:  # noqa: BLE001  # then nothing is shown
        return None
    pairs = [(a, b) for a, b in zip(before, after, strict=False) if a.is_floating_point() and a.shape == b.shape]
    largest = max((float((a - b).abs().max()) for a, b in pairs if a.numel()), default=0.0)
    size = max((float(a.abs().max()) for a, _ in pairs if a.numel()), default=0.0)
    return largest, largest / size if size else float("inf")


def _finding(evidence: Evidence, found: list[Suspect], change: tuple[float, float] | None) -> Finding:
    first = found[0]
    graph = evidence.graph
    node = graph.nodes[first.write]
    place = path_of(first.write, evidence)
    unit = path_of(first.add, evidence) if first.unit is None else evidence.units[first.unit].path
    count = len({s.write for s in found})
    # An assignment to a part has no result and no out-of-place form.
    part = node.caller is not None and node.caller[1] == "__setitem__"
    what = "x[…] = …" if part else f"{node.op}_"
    numbers: dict[str, float | int | str] = {
        "writes": count, "operation": what, "module": called(place), "unit": called(unit),
        "shape": str(list(node.shape)),
    }  # fmt: skip
    if change is not None:
        numbers["largest_output_difference"], numbers["relative_to_largest_output"] = change
    cls = graph.calls[node.call].cls
    at_module = bool(place) and node.op.replace("_", "") in cls.lower()
    how = f"nn.{cls}(inplace=False) for {place}" if at_module else f"the out-of-place {node.op} in {called(place)}"
    if part:
        how = f"torch.cat of the parts in {called(place)}"
    tail = f"; out of place the output differs by up to {change[0]:.3g}" if change else " (not measured)"
    return RULES["shortcut-overwritten"].finding(
        unit,
        f"{what} in {called(place)} rewrites x before the shortcut of {called(unit)} reads it{times(count)}{tail}",
        numbers,
        severity="error" if change else "warning",
        fix=f"{how}, or a clone: the branch reads x.clone()",
    )

"""Rule ``norm-after-add``: BatchNorm on the path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._programs import CONV, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Passed, chains, has, module_of, passed, repeated
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding

__all__ = ["norm_after_add"]

_BATCH: Final = frozenset({"batch"})


@rule(
    "norm-after-add",
    severity="warning",
    summary="BatchNorm stands behind the addition: the shortcut's signal is rescaled and shifted at every unit.",
    explanation="What follows the addition, in the unit or before the next, holds a BatchNorm, and another unit"
    " follows. The gain by which it multiplies the stream is measured at each and multiplied over the units. A norm"
    " behind the last unit, a LayerNorm behind the addition (see post-norm-deep) and the sum of linear branches of a"
    " re-parameterisable convolution are others.",
    fix="put the BatchNorm into the branch, before the addition: x + bn(conv(...))",
    source="He et al. 2016, arXiv 1603.05027, table 2b",
    faulty=program(CONV, unit="return F.relu(self.norm2(x + self.second(F.relu(self.norm1(self.first(x))))))", depth=4),
    healthy=program(
        CONV, unit="return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))", depth=4
    ),
    wants=lambda evidence: [
        Want(node=node, name=name, reduce=reduce)
        for behind in _normed(evidence)
        for node in [_norm(behind, evidence)]
        if node >= 0
        for name, reduce in (("gain", _gain), ("shift", _shift))
    ],
)
def norm_after_add(evidence: Evidence) -> Iterator[Finding]:
    """Fire for BatchNorm behind the addition where another unit follows."""
    normed = _normed(evidence)
    if not normed:
        return
    members = [behind.member for behind in normed]
    nodes = [_norm(behind, evidence) for behind in normed]
    gains = [g for n in nodes if (g := evidence.seen.get((n, "gain"))) is not None]
    shifts = [s for n in nodes if (s := evidence.seen.get((n, "shift"))) is not None]
    said: dict[str, float | int | str] = {"units": len(members)}
    what = "its gain on the path was not measured"
    if gains:
        said |= {"gain_first": gains[0], "gain_product": float(torch.tensor(gains, dtype=torch.float64).prod())}
        said["shift_largest"] = max(shifts, default=0.0)
        what = f"it multiplies the shortcut's signal by {gains[0]:.3g}"
        if len(gains) > 1:
            what += f", {said['gain_product']:.2g} over all"
    where = module_of(nodes[0], evidence) if nodes[0] >= 0 else members[0].path
    yield RULES["norm-after-add"].finding(
        members[0].path, f"BatchNorm ({where}) behind the addition: {what}{repeated(members)}", said
    )


def _normed(evidence: Evidence) -> list[Passed]:
    """Sums with a BatchNorm behind them, of units that another one follows."""
    behind = [p for chain in chains(evidence) for p in passed(chain, evidence)[:-1]]
    found = [p for p in behind if has(p.ops, "norm", _BATCH) and not _is_one_convolution(p, evidence)]
    return sorted(found, key=lambda p: p.member.described.candidate.join)


def _is_one_convolution(behind: Passed, evidence: Evidence) -> bool:
    """Whether all is linear, as in a convolution of several parallel branches that are merged after training."""
    if has(behind.ops, "activation"):
        return False
    nodes = evidence.graph.nodes
    return not any(nodes[i].op in ops.ACTIVATION | ops.ATTENTION for i in behind.member.described.candidate.region)


def _norm(behind: Passed, evidence: Evidence) -> int:
    nodes = evidence.graph.nodes
    return next((i for i in behind.nodes if nodes[i].op in ops.NORM), -1)


def _gain(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """By how much deviations from the channel's mean grow."""
    return _deviation(result) / _deviation(operands[0]).clamp_min(1e-30)


def _deviation(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().double()
    over = [d for d in range(x.dim()) if d != 1]
    return (x - x.mean(over, keepdim=True)).square().mean().sqrt()


def _shift(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Largest change of a channel's mean, relative to the deviation before."""
    x, y = operands[0].detach().double(), result.detach().double()
    over = [d for d in range(x.dim()) if d != 1]
    return (y.mean(over) - x.mean(over)).abs().max() / _deviation(x).clamp_min(1e-30)

"""Rules ``branch-scale`` and ``stream-growth``: how the stream grows from unit to unit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains, has, inner_chains

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["branch_scale", "stream_growth"]

# Convolutions initialised after He with a leading ReLU grow 75-fold over 20 units, without it 7,600-fold.
_GROWTH: Final = 50.0
_PER_UNIT: Final = 1.15
_FEWEST: Final = 8
_DEEP: Final = 12


@rule(
    "branch-scale",
    severity="warning",
    summary="Branches without a norm are added at full size, and the stream grows with every unit.",
    explanation="No norm stands in the branches or behind the additions, no scale holds the branches down, and the"
    " measured stream grows by more than 1.15 a unit and 50 in all: the first steps meet a huge loss, or overflow."
    " Units inside a long skip around all of them (super-resolution nets) are looked at as a stream of their own."
    " A net that grows little without norms (small weights, few units) is left alone.",
    fix="scale the branch where it is added, x + 0.1 * self.branch(x); or start its last weight at zero"
    " (nn.init.zeros_), or put a norm at the start of the branch",
    source="Lim et al. 2017, arXiv 1707.02921 (scale 0.1); Zhang et al. 2019, arXiv 1901.09321; JiahuiYu/wdsr_ntire2018"
    " #21; xinntao/BasicSR #121",
    faulty=program(
        TOKENS, layers="nn.init.kaiming_normal_(self.up.weight), nn.init.kaiming_normal_(self.down.weight)",
        unit="return x + self.branch(x)", depth=24,
    ),
    healthy=program(
        TOKENS, layers="nn.init.kaiming_normal_(self.up.weight), nn.init.kaiming_normal_(self.down.weight)",
        unit="return x + 0.1 * self.branch(x)", depth=24,
    ),
    needs=("signal",),
    explains=("gradient-exploding", "stream-growth", "fp16-headroom", "non-finite"),
)  # fmt: skip
def branch_scale(evidence: Evidence) -> Iterator[Finding]:
    """Fire where un-normalised branches make the stream explode, or that inside a unit around many others."""
    for chain in (*chains(evidence), *inner_chains(evidence)):
        bare = [m for m in chain if not _normed(m)]
        if len(bare) < _FEWEST or 2 * len(bare) < len(chain):
            continue
        measured = [m for m in bare if m.unit.numbers.stream_rms is not None and m.unit.numbers.out_rms is not None]
        if len(measured) < _FEWEST:
            continue
        first, last = measured[0].unit.numbers.stream_rms, measured[-1].unit.numbers.out_rms
        if not first or not last:
            continue
        growth = last / first
        per_unit = growth ** (1 / len(measured))
        if not (growth > _GROWTH and per_unit > _PER_UNIT):
            continue
        scaled = sum(any(has(b, "scale") for b in (m.unit.form.branch, *m.unit.form.parallel)) for m in bare)
        how = "with a scale that does not hold them" if 2 * scaled > len(bare) else "at full size"
        beyond = f"; from unit {len(measured)} on it is beyond its number format" if len(measured) < len(bare) else ""
        yield RULES["branch-scale"].finding(
            bare[0].path,
            f"{len(bare)} branches without a norm are added {how}: the stream grows {growth:.2g}-fold,"
            f" {per_unit:.3g} a unit{beyond if not evidence.finite else ''}",
            {"units": len(bare), "growth": growth, "growth_per_unit": per_unit, "rms_first": first, "rms_last": last},
        )


@rule(
    "stream-growth",
    severity="info",
    summary="The stream of a pre-norm stack grows with depth.",
    explanation="What is added to an unnormalised stream adds up: with branches of one size and no correlation, like"
    " √L. That is normal; the later units then weigh less, which is told by their share. It matters where later units"
    " go idle or the number format runs out. Told from a growth of half √L on.",
    fix="nothing, unless the last units' share is near 0: then scale the branch ends by 1/√(2L) at the start (GPT-2)",
    source="Radford et al. 2019 (GPT-2); allenai/OLMo #797; microsoft/Swin-Transformer #262",
    faulty=program(
        TOKENS, layers="nn.init.orthogonal_(self.up.weight), nn.init.orthogonal_(self.down.weight, 4.0)",
        unit="return x + self.branch(self.norm(x))", depth=24,
    ),
    healthy=program(
        TOKENS, layers="nn.init.zeros_(self.down.weight)",
        unit="return x + self.branch(self.norm(x))", depth=24,
    ),
    needs=("signal",),
    symptom=True,
)  # fmt: skip
def stream_growth(evidence: Evidence) -> Iterator[Finding]:
    """Tell of a stream that grows at least half as fast as √L."""
    for chain in chains(evidence):
        units = [m.unit for m in chain]
        clean = [u for u in units if not u.form.shortcut and not u.form.after]
        if len(units) < _DEEP or 2 * len(clean) < len(units):
            continue
        first, last = units[0].numbers.stream_rms, units[-1].numbers.out_rms
        branches = [u.numbers.branch_rms for u in units if u.numbers.branch_rms is not None]
        if not first or last is None or not branches:
            continue
        growth, root = last / first, math.sqrt(len(units))
        if not growth >= root / 2:
            continue
        expected = math.sqrt(first**2 + sum(b * b for b in branches)) / first
        end = units[-1].numbers
        share = (end.branch_rms or 0.0) / max((end.branch_rms or 0.0) + (end.shortcut_rms or 0.0), 1e-45)
        yield RULES["stream-growth"].finding(
            units[-1].path,
            f"the stream grows {growth:.3g}-fold over {len(units)} units; branches that do not correlate make"
            f" {expected:.3g}, √L is {root:.3g}",
            {
                "units": len(units),
                "growth": growth,
                "uncorrelated": expected,
                "root_of_units": root,
                "last_share": share,
            },
        )


def _normed(member: Member) -> bool:
    """Whether a norm keeps the size of what a branch adds."""
    form = member.unit.form
    within = any(has(branch, "norm") for branch in (form.branch, *form.parallel))
    return within or has(form.after, "norm") or has(form.shortcut, "norm")

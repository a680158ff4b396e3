"""Claim ``more-capacity-worse``: shortcuts that can be more than the identity train worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._rows import in_every_seed, loss_words, row_numbers

if TYPE_CHECKING:
    from skipway.study.outcome import RowRuns, StudyOutcome

__all__ = ["judged"]

_ABLE: Final = ("exclusive gate, b = -6", "shortcut-only gate, b = -6", "1×1 convolution")


def judged(outcome: StudyOutcome) -> Judgement:
    """By training loss and parameters of the study ``table1``."""
    identity, others = outcome.row("original: identity"), [outcome.row(label) for label in _ABLE]
    larger = all(_parameters(row) > _parameters(identity) for row in others)
    worse = [row for row in others if in_every_seed(identity.losses, row.losses)]
    verdict: Verdict = "does not hold"
    if larger and len(worse) == len(others):
        verdict = "holds"
    elif larger and worse:
        verdict = "holds only if"
    return Judgement(
        verdict=verdict,
        condition=f"the shortcut is: {', '.join(row.row.label for row in worse)}" if verdict == "holds only if" else "",
        figure=f"training loss: identity {loss_words(identity)}; "
        + "; ".join(f"{row.row.label} {loss_words(row)}" for row in others),
        words="Parameters: "
        + ", ".join(f"{row.row.label} {_parameters(row):,}" for row in (identity, *others))
        + ". What can represent the identity and trains worse lacks optimisation, not capacity.",
        numbers=row_numbers([identity, *others])
        | {"parameters": {row.row.label: _parameters(row) for row in (identity, *others)}},
    )


def _parameters(row: RowRuns) -> int:
    return max((int(record.result["parameters"]) for record in row.records.values()), default=0)


@claim(
    "more-capacity-worse",
    source="003 (identity mappings), discussion; He et al. 2016, arXiv 1603.05027, section 3.2",
    statement="Gates and 1×1 shortcuts can represent the identity and have more parameters, and still end with a "
    "higher training error: the problem is optimisation.",
    measurement="Training loss and parameters of ResNet-110 with those shortcuts, gates at their best published bias.",
    criterion="Holds if each has more parameters than the identity's net and a higher training loss in every seed; "
    "holds only if the shortcut is one of those for which it is so.",
    least="standard",
    otherwise="20 layers on digits all end with a training loss near 0",
)
def check(bench: Bench) -> Judgement:
    """Rows of ``table1``."""
    return judged(bench.study("table1"))

"""Claim ``paths``: the gradient of a trained net comes through short paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skipway.study.claim import Bench, Judgement, claim
from skipway.study.claims._rows import drawn, verdict_by_kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from skipway.study.outcome import StudyOutcome

__all__ = ["judged"]


def judged(outcome: StudyOutcome) -> Judgement:
    """By the spectra of the study ``paths``."""
    numbers, figures, short = {}, [], dict[str, bool]()
    for row in outcome.rows:
        spectra = [row.measured[seed] for seed in sorted(row.measured) if "mean_length" in row.measured[seed]]
        short[row.row.label] = bool(spectra) and all(_short(spectrum) for spectrum in spectra)
        numbers[row.row.label] = {str(k): dict(v) for k, v in row.measured.items()}
        if spectra:
            figures.append(f"{row.row.label}: {_words(spectra)}")
    verdict, condition = verdict_by_kind(short)
    return Judgement(
        verdict=verdict,
        condition=condition,
        figure="; ".join(figures) or "no net was trained to the end",
        words="Veit et al. report 5 to 17 of 54 units, from the count of paths times the mean norm of single sampled "
        "paths; the exact part of each length is a vector sum, in which paths may cancel.",
        numbers=numbers,
        parts=drawn(outcome),
    )


def _short(spectrum: Mapping[str, float]) -> bool:
    return spectrum["last_of_90_percent"] < spectrum["units"] / 2


def _words(spectra: Sequence[Mapping[str, float]]) -> str:
    ranges = ", ".join(f"{s['first_of_90_percent']}–{s['last_of_90_percent']}" for s in spectra)
    means = ", ".join(f"{s['mean_length']:.1f}" for s in spectra)
    shares = ", ".join(f"{100 * s['share_of_paths']:.2g} %" for s in spectra)
    return (
        f"90 % of the gradient through {ranges} of {spectra[0]['units']} branches (mean {means}; {shares} of all paths)"
    )


@claim(
    "paths",
    source="001 (residual connections), the ensemble view; Veit et al. 2016, arXiv 1605.06431",
    statement="A net of L units is 2^L paths of binomial lengths, of which mostly short ones are effective.",
    measurement="On trained nets of 56 layers, in eval mode: the exact gradient by number of branches passed, and "
    "Veit's figure from sampled paths.",
    criterion="Holds if for every trained net and seed the shortest range of lengths that carries 90 % of the exact "
    "gradient ends below L/2, the mean length of all paths; holds only if the unit is of the kind for which it does.",
)
def check(bench: Bench) -> Judgement:
    """The study of that name."""
    return judged(bench.study("paths"))

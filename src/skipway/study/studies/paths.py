"""Veit et al. 2016, figure 6: which path lengths carry the gradient of a trained net."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.study.published import Row, Study, add_study
from skipway.study.studies._trained import SCALED, trained_settings

if TYPE_CHECKING:
    from skipway.study.budgets import Budget
    from skipway.train.run import Run

_IMAGES: Final = 16


def rows(budget: Budget) -> tuple[Row, ...]:
    """A residual net both ways."""
    deep = 110 if budget == "paper" else 56
    return (
        Row(label="pre-activation", model=f"resnet{deep}@preact"),
        Row(label="residual", model=f"resnet{deep}"),
    )


def measure(run: Run) -> dict[str, Any]:
    """The exact gradient by path length, and Veit's figure beside it, on training images in eval mode."""
    import torch
    from torch.nn import functional as F

    from skipway.data import open_data
    from skipway.diagnostics.path_spectrum import path_spectrum

    data = open_data(run.spec.data, device=torch.device("cpu"))
    x, y = data.sample(min(_IMAGES, data.info.train_size))
    found = path_spectrum(run.model(), x, lambda out: F.cross_entropy(out, y))
    first, last = found.carrying()
    return {
        "units": len(found.units),
        "mean_length": found.mean_length,
        "first_of_90_percent": first,
        "last_of_90_percent": last,
        "share_of_paths": found.path_share(first, last),
        "sum_error": found.sum_error,
        "degree0_error": found.degree0_error,
        "by_length": list(found.share),
        "sampled_by_length": [found.sampled_shares()[k] for k in sorted(found.sampled_shares())],
        "binomial_by_length": [found.binomial(k) for k in range(found.max_length + 1)],
    }


add_study(
    Study(
        id="paths",
        title="Path lengths that carry the gradient",
        source="Veit et al. 2016, arXiv 1605.06431, section 4.3, figure 6",
        question="are the effective paths of a trained net short?",
        rows=rows,
        settings=trained_settings,
        measure=measure,
        measures="share of the gradient by path length, exact and by sampled paths",
        scaled=SCALED,
    )
)

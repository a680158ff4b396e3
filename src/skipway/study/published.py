"""A published table, or a question with rows: what is trained, and what others found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from skipway.registry import Registry
from skipway.study.budgets import Budget, image_settings, seeds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipway.spec import RunSpec
    from skipway.train.run import Run

__all__ = ["STUDIES", "Row", "Study", "add_study", "as_study"]

Published = float | Literal["fail"] | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table.

    Args:
        label: as the table names it; unique within its group.
        model: name of the net.
        published: test error in percent; ``"fail"`` where the table says so; None where nothing was published.
        group: rows of one group are ordered among themselves, e.g. those of one depth; empty for one group.
        settings: of the runs of this row, where they are not those of the study.
    """

    label: str
    model: str
    published: Published = None
    group: str = ""
    settings: RunSpec | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or a question.

    Args:
        id: of the registry.
        title: in a line.
        source: where the published values are from.
        question: what the rows are to tell.
        rows: by budget; a smaller budget may have shallower nets.
        settings: of the runs by budget.
        seeds: runs of each row by budget.
        published: what the published numbers are, e.g. ``"median of 5 runs"``.
        scaled: what differs from the publication, by budget.
        others: published values that nothing is trained for, by label.
        measure: works on each trained net, given its finished run; JSON-ready values.
        measures: what `measure` gives, in a few words; empty without one.
    """

    id: str
    title: str
    source: str
    question: str
    rows: Callable[[Budget], tuple[Row, ...]]
    settings: Callable[[Budget], RunSpec] = image_settings
    seeds: Callable[[Budget], int] = seeds_of
    published: str = ""
    scaled: Mapping[Budget, str] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    measure: Callable[[Run], dict[str, Any]] | None = None
    measures: str = ""


STUDIES: Final[Registry[Study]] = Registry("study", "skipway.study.studies")


def add_study(study: Study) -> Study:
    """Register a study."""
    return STUDIES.add(study.id, study)


def as_study(study: str | Study) -> Study:
    """A study by its id; one that is given comes back.

    Raises:
        UnknownNameError: there is none.
    """
    return STUDIES[study] if isinstance(study, str) else study

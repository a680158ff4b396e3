"""Names that the shell completes, read from the registries when the Tab key asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "LOSSES",
    "PROFILES",
    "SEVERITIES",
    "complete_claim",
    "complete_from",
    "complete_list",
    "complete_loss",
    "complete_model",
    "complete_profile",
    "complete_rule",
    "complete_severity",
    "complete_study",
]

PROFILES: Final = ("fast", "default", "thorough")
SEVERITIES: Final = ("error", "warning", "info", "never")
LOSSES: Final = ("projection", "mean", "cross_entropy", "mse")


def complete_model(incomplete: str) -> list[str]:
    """Models that begin so; a library's models only behind its prefix."""
    from skipway.models.load import model_names

    try:
        return model_names(incomplete)
    except SkipwayError:  # a library that is not installed has no names
        return []


def complete_from(names: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion of some fixed names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_rule(incomplete: str) -> list[str]:
    """Rules that begin so."""
    from skipway.cli.catalog import rule_names

    return [name for name in rule_names() if name.startswith(incomplete)]


def complete_list(incomplete: str) -> list[str]:
    """What can be listed."""
    kinds = ("models", "designs", "rules", "recipes", "data", "studies", "claims")
    return [kind for kind in kinds if kind.startswith(incomplete)]


def complete_study(incomplete: str) -> list[str]:
    """Studies that begin so."""
    from skipway.study.published import STUDIES

    return [name for name in STUDIES if name.startswith(incomplete)]


def complete_claim(incomplete: str) -> list[str]:
    """Claims that begin so."""
    from skipway.study.claim import CLAIMS

    return [name for name in CLAIMS if name.startswith(incomplete)]


def complete_loss(incomplete: str) -> list[str]:
    """Losses by name."""
    return [name for name in LOSSES if name.startswith(incomplete)]


def complete_profile(incomplete: str) -> list[str]:
    """How much can be measured."""
    return [name for name in PROFILES if name.startswith(incomplete)]


def complete_severity(incomplete: str) -> list[str]:
    """Severities, and never."""
    return [name for name in SEVERITIES if name.startswith(incomplete)]

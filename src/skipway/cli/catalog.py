"""`skipway list`, `skipway rules` and the names behind them, read from the registries."""

from __future__ import annotations

import fnmatch
import sys
from typing import TYPE_CHECKING, Final

from skipway.cli.failures import UsageProblemError, as_usage
from skipway.errors import UnknownNameError, suggest
from skipway.parts import Part, Table, Text
from skipway.report.console import show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skipway.designs import DesignInfo
    from skipway.diagnostics.rules._rule import Need

__all__ = ["LISTS", "design_parts", "list_names", "rule_names", "show_rules"]

_PLURALS: Final = {
    "model": "models", "design": "designs", "rule": "rules", "recipe": "recipes", "data set": "data",
    "study": "studies", "claim": "claims",
}  # fmt: skip
LISTS: Final = ("models", "designs", "rules", "recipes", "data", "studies", "claims")


def list_names(what: str, pattern: str | None) -> int:
    """Print what there is of one kind, a name first on every line."""
    if what not in LISTS:
        with as_usage("list"):
            raise UnknownNameError("list", what, LISTS)
    shown: dict[str, Callable[[str | None], int]] = {
        "models": _list_models, "designs": _list_designs, "rules": _list_rules, "recipes": _list_recipes,
        "data": _list_data, "studies": _list_studies, "claims": _list_claims,
    }  # fmt: skip
    return shown[what](pattern)


def _list_models(pattern: str | None) -> int:
    from skipway.models.load import model_names

    prefix = pattern.partition(":")[0] + ":" if pattern and ":" in pattern else ""
    names = model_names(prefix)
    if not prefix:
        names = [name for name in names if not name.endswith(":")]
    for name in _matching("model", names, pattern, prefix):
        print(name)
    if not prefix and sys.stdout.isatty():
        print("also tv:NAME, timm:NAME, hf:TYPE (skipway list models 'tv:*'); designs: skipway list designs")
    return 0


def _list_designs(pattern: str | None) -> int:
    from skipway.designs import DESIGNS, DesignInfo

    rows = []
    for name in _matching("design", list(DESIGNS), pattern):
        info = DesignInfo.of(DESIGNS[name])
        rows.append((info.id, info.equation, info.citation))
    show([Table(columns=("design", "unit", "source"), rows=tuple(rows))])
    return 0


def _list_rules(pattern: str | None) -> int:
    return show_rules(None, pattern)


def _list_recipes(pattern: str | None) -> int:
    from skipway.train.recipes import RECIPES

    rows = []
    for name in _matching("recipe", list(RECIPES), pattern):
        recipe = RECIPES[name]
        optimizer = recipe.optimizer
        how = f"{optimizer.name} at {optimizer.lr:g}, decay {optimizer.weight_decay:g}, {recipe.schedule.name}"
        rows.append((name, f"{recipe.steps:,} × {recipe.batch_size}", how, recipe.source))
    show([Table(columns=("recipe", "steps × batch", "how", "source"), rows=tuple(rows))])
    return 0


def _list_data(pattern: str | None) -> int:
    from skipway.data import data_names

    for name in _matching("data set", list(data_names()), pattern):
        print(name)
    if sys.stdout.isatty():
        print("also any folder of class folders, by its path")
    return 0


def _list_studies(pattern: str | None) -> int:
    from skipway.study.published import STUDIES

    names = _matching("study", list(STUDIES), pattern)
    rows = tuple((name, STUDIES[name].title, STUDIES[name].source) for name in names)
    show([Table(columns=("study", "what", "source"), rows=rows)])
    return 0


def _list_claims(pattern: str | None) -> int:
    from skipway.study.claim import CLAIMS

    names = _matching("claim", list(CLAIMS), pattern)
    rows = tuple((name, CLAIMS[name].least, CLAIMS[name].statement) for name in names)
    show([Table(columns=("claim", "decided at", "statement"), rows=rows)])
    return 0


def rule_names() -> list[str]:
    """Ids of all rules."""
    from skipway.diagnostics.rules import RULES

    return list(RULES)


def show_rules(rule: str | None, pattern: str | None) -> int:
    """Print one rule in full, or a line for each."""
    from skipway.diagnostics.rules import RULES

    if rule is None:
        rules = [RULES[name] for name in _matching("rule", list(RULES), pattern)]
        rows = tuple((r.id, r.severity, r.summary) for r in rules)
        show([Table(columns=("rule", "at most", "finds"), rows=rows)])
        return 0
    with as_usage("rules"):
        found = RULES[rule]
    show(
        [
            Text(text=f"rule {found.id} (at most {found.severity})", tone="title"), Text(text=found.summary),
            Text(text=found.explanation), Text(text=f"fix: {found.fix}"),
            *_needs(found.needs),
            Text(text=f"source: {found.source}", tone="muted"),
        ]
    )  # fmt: skip
    for title, program in (("a program that it convicts", found.faulty), ("its healthy twin", found.healthy)):
        print()
        show([Text(text=title, tone="title")])
        print(program.strip("\n"))  # as it stands: code is not wrapped
    return 0


def _needs(needs: Sequence[Need]) -> list[Part]:
    from skipway.diagnostics.rules import NEEDS

    return [Text(text="needs " + " and ".join(NEEDS[need] for need in needs))] if needs else []


def design_parts(info: DesignInfo) -> list[Part]:
    """One design: equation, claims, options, source."""
    claims = [
        f"identity at initialisation: {'yes' if info.identity_at_init else 'no'}",
        f"needs warm-up: {'yes' if info.warm_up else 'no'}",
        f"further parameters: {info.parameters}",
        *([info.note] if info.note else []),
    ]
    parts: list[Part] = [
        Text(text=f"design {info.id}", tone="title"), Text(text=info.summary), Text(text=info.equation),
        Text(text=" · ".join(claims)),
    ]  # fmt: skip
    if info.options:
        rows = tuple((o.name, o.type, str(o.default), o.help) for o in info.options)
        parts.append(Table(columns=("option", "type", "default", "meaning"), rows=rows))
    parts.append(Text(text=f"source: {info.citation}", tone="muted"))
    return parts


def _matching(kind: str, names: Sequence[str], pattern: str | None, prefix: str = "") -> list[str]:
    """Names that a shell pattern matches; a pattern without wildcards means "contains"."""
    if pattern is None:
        return list(names)
    rest = pattern.removeprefix(prefix)
    wild = pattern if any(sign in pattern for sign in "*?[") else f"{prefix}*{rest}*"
    found = [name for name in names if fnmatch.fnmatchcase(name, wild)]
    if not found:
        close = suggest(pattern, names)
        expected = "did you mean " + " or ".join(repr(c) for c in close) + "?" if close else "a pattern such as 'res*'"
        raise UsageProblemError(f"no {kind} matches {pattern!r}", expected, f"skipway list {_PLURALS[kind]}")
    return found

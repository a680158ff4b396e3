"""Inspections and parts for the tests of the HTML report, made by hand: deep ones without building deep nets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from report import examples
from skipway.diagnostics.layer import Layer
from skipway.form import Op, UnitForm
from skipway.parts import FindingPart, Heatmap, Lines, Part, Section, Series, Skipped, Table, Text

if TYPE_CHECKING:
    from skipway.diagnostics.inspection import Inspection
    from skipway.units.unit import Unit

__all__ = ["EVIL", "all_parts", "deep", "evil", "nested", "plain"]

EVIL = "<img src=x onerror=alert(1)>"


def deep(units: int) -> Inspection:
    """Pre-activation bottlenecks in three stages, as in a net of 1,001 layers when `units` is 333."""
    weights = (examples.BN, examples.RELU, examples.conv("1x1"), examples.BN, examples.RELU, examples.conv("3x3"))
    made: list[Unit] = []
    for k in range(units):
        first = k % (units // 3) == 0
        form = UnitForm(shortcut=(Op("projection", "1x1"),) if first else (), branch=weights)
        made.append(
            examples.unit(
                k, f"stack.units.{k}", form, (2, 64 << 3 * k // units, 32, 32),
                stream_rms=1 + k / 50, branch_rms=1.0, shortcut_rms=2.0, cosine=0.0, grad_stream=10 ** (-4 * k / units),
            )
        )  # fmt: skip
    return replace(examples.post_norm(2), model="deep", units=made)


def plain(layers: int = 56) -> Inspection:
    """A net without units, of which the weighted layers were measured."""
    measured = [Layer(f"body.{k}.conv", 1.0, 0.8**k) for k in range(layers)]
    return replace(examples.nothing(), layers=measured, profile="default")


def nested() -> Inspection:
    """Three units inside the branch of a fourth, twice."""
    ordinary = examples.resnet50().units[1]
    units = [
        replace(ordinary, index=k, path=f"{k // 4}.inner.{k}", level=0 if k % 4 == 3 else 1)
        for k in range(8)
    ]  # fmt: skip
    return replace(examples.resnet50(), units=units)


def evil(name: str = EVIL) -> Inspection:
    """An inspection in which every string that a model can choose is `name`."""
    whole = examples.resnet50()
    return replace(
        whole, model=name, batch=name, loss=name, notes=[name], units=[replace(u, path=name) for u in whole.units],
        findings=[replace(whole.findings[0], path=name, message=name, fix=name, source=name, evidence={name: name})],
        unexplained=[replace(whole.unexplained[0], path=name, op=name, reason=name)],
    )  # fmt: skip


def all_parts(word: str = "word") -> tuple[Part, ...]:
    """One part of every kind but the stream map, with `word` in every string."""
    seeds = Series(name=word, x=(1.0, 10.0, 100.0), y=(3.0, 2.0, 1.0), low=(2.5, 1.5, 0.5), high=(3.5, 2.5, 1.5))
    other = Series(name=f"{word} 2", x=(1.0, 10.0, 100.0), y=(3.0, None, 0.0), labels=(word, word, word))
    heat = Heatmap(values=((0.0, 1.0), (0.5, None)), rows=(word, word), columns=word)
    return (
        Text(text=word, tone="title"),
        Text(text=f"{word}\n{word}", tone="good"),
        Section(
            title=word,
            note=word,
            parts=(
                Table(columns=(word, "n"), rows=((word, "1"), (word, "2")), title=word, numeric=("n",), note=word),
                Lines(series=(seeds, other), x=word, unit=word, log=True, log_x=True, title=word, note=word),
                Section(title=word, parts=(heat,)),
            ),
        ),
        FindingPart(
            rule=word, severity="warning", path=word, message=word, evidence={word: 0.5}, fix=word, source=word
        ),
        Skipped(what=word, why=word),
    )  # fmt: skip

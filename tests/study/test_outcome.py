"""What a study says, of runs whose numbers are known."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from skipway.parts import Lines, Section, Table
from skipway.report import dumps, schema, to_html, to_text
from skipway.study.claims._rows import error_words, mean_rank
from skipway.study.curves import curve_series
from skipway.study.outcome import RowRuns, StudyOutcome
from skipway.study.outcome_tables import (
    effect_table,
    go_on,
    measured_charts,
    measured_table,
    ordering_text,
    published_chart,
    row_table,
)
from skipway.study.outcome_view import outcome_dict, outcome_parts, outcome_report

sys.path.insert(0, str(Path(__file__).parent))
import fake
import made

GUESS = math.log(10)


def table() -> StudyOutcome:
    """Four rows, two seeds each: one as good as published, one that fails as published, one diverged, one best."""
    return fake.outcome(
        [
            fake.row("identity", "resnet8@preact", 6.61, [(20.0, 0.5), (22.0, 0.5)]),
            fake.row("gate, b = -6", "resnet8@exclusive_gate(bias=-6)", 8.70, [(30.0, 0.9), (31.0, 0.9)]),
            fake.row("gate, b = 0", "resnet8@exclusive_gate", "fail", [(90.0, GUESS), (88.0, GUESS)]),
            fake.row("1×1", "resnet8@conv_shortcut", 12.22, [(40.0, 1.0), (None, "nan")]),
        ]
    )


def test_the_whole_text() -> None:
    text = to_text(outcome_parts(table()))
    # Order 1, 2, failed, 3 against 1, 2, failed, failed (half of its seeds): 5 / √(6 · 5).
    assert text == (
        "skipway · tablet: which row is best?\n"
        "Published and ours\n"
        "\n"
        " row            design of resnet8         published %         ours %   train loss   failed      s\n"
        " ────────────────────────────────────────────────────────────────────────────────────────────────\n"
        " identity       preact                           6.61   21.00 ± 1.41        0.500      0/2   2.00\n"
        " gate, b = -6   exclusive_gate(bias=-6)          8.70   30.50 ± 0.71        0.900      0/2   2.00\n"
        " gate, b = 0    exclusive_gate                  fails   89.00 ± 1.41        2.303      2/2   2.00\n"
        " 1×1            conv_shortcut                   12.22          40.00        1.000      1/2   2.00\n"
        "\n"
        "look for: Whether our rows come in the published order; the values belong to different budgets. Test\n"
        "error, as it is ranked: of the seeds that did not fail where these are more than half, else of all.\n"
        "Kendall's τ-b with the published order 0.91 [0.91, 1.00], 4 rows; failed rows rank last together\n"
        "at budget quick: digits for CIFAR-10\n"
        "published: median of 5 runs; He et al., table 0\n"
        "A training has failed when its loss is not finite at the end, or within 0.05 of ln(classes), that of\n"
        "guessing.\n"
        "recipe quick: 20 steps of 64, sgd, learning rate 0.1 (steps), weight decay 0.0001\n"
        "2 seeds each\n"
        "training took 16 s in all, 2.00 s a run, beside other runs\n"
        "data: digits, 1437 training and 360 test samples of 1×8×8, 10 classes; digits\n"
        "hardware: A Processor, 2 cores; each run 1 thread, 32-true, channels-last\n"
        "versions: skipway 0.1.0, torch 2.9.0, torchvision 0.24.0, numpy 2.3.0, python 3.12.0, on Linux\n"
        "code: commit 0123456789"
    )


def test_groups_are_ordered_by_themselves() -> None:
    rows = [
        fake.row(label, f"resnet{depth}{design}", published, [(error, 0.5)], group=f"{depth} layers")
        for depth, errors in ((110, (30.0, 20.0)), (164, (20.0, 30.0)))
        for (label, design, published), error in zip(
            (("original", "", 6.61), ("full", "@preact", 6.37)), errors, strict=True
        )
    ]
    found = fake.outcome(rows)
    assert found.groups == ("110 layers", "164 layers")
    assert ordering_text(found, "110 layers") == (
        "110 layers: Kendall's τ-b with the published order 1.00 (rows with one seed: no interval), 2 rows"
    )
    assert ordering_text(found, "164 layers").startswith("164 layers: Kendall's τ-b with the published order -1.00 ")
    one, other = (effect_table(found, group) for group in found.groups)
    assert one is not None
    assert other is not None
    assert (one.rows, one.title) == (
        (("full", "-10.0 (one seed)", "0.000 (one seed)"),),
        "Difference from original, 110 layers",
    )
    assert other.rows == (("full", "+10.0 (one seed)", "0.000 (one seed)"),)
    # A bare name is a design of the same backbone.
    assert row_table(found, "110 layers").columns[1] == "design of resnet110"
    assert [r[1] for r in row_table(found, "110 layers").rows] == ["resnet110", "preact"]


def test_differences_are_paired_by_seed() -> None:
    found = effect_table(table(), "")
    assert found is not None
    # +10 and +9: 9.5 ± t(0.975, 1) · 0.5; the 1×1 row has one seed in common with the first.
    assert found.rows[0] == ("gate, b = -6", "+9.5 [+3.1, +15.9]", "+0.400 [+0.400, +0.400] not shown")
    assert found.rows[2] == ("1×1", "+20.0 (one pair)", "+0.500 (one pair)")


def test_the_mean_that_is_shown_is_the_one_that_is_ranked() -> None:
    """A seed that stayed at guessing is left out of both, where the others are more than half."""
    found = fake.outcome(
        [
            fake.row("a", "resnet20", 6.0, [(10.0, 0.1), (90.0, GUESS), (12.0, 0.1)]),
            fake.row("b", "resnet20@preact", 7.0, [(14.0, 0.1), (15.0, 0.1), (16.0, 0.1)]),
            fake.row("c", "resnet20@pre_norm", 8.0, [(17.0, 0.1), (18.0, 0.1), (19.0, 0.1)]),
        ]
    )
    row = found.rows[0]
    assert row.test_error is not None
    assert row.test_error.mean == mean_rank(row) == 11.0
    assert error_words(row) == "11.0 ± 1.4 %, 1 of 3 failed"
    assert [r[3] for r in row_table(found, "").rows] == ["11.00 ± 1.41", "15.00 ± 1.00", "18.00 ± 1.00"]
    assert "of the seeds that did not fail" in row_table(found, "").note
    chart = published_chart(found)
    assert chart is not None
    assert chart.series[0].y == (11.0, 15.0, 18.0)
    # No row failed as a whole, none is last.
    assert "failed rows" not in ordering_text(found, "")
    # Where half of them failed, all are told, and the row is last.
    half = fake.outcome([fake.row("a", "resnet20", 6.0, [(10.0, 0.1), (90.0, GUESS)]), *found.rows[1:]])
    assert half.rows[0].test_error is not None
    assert half.rows[0].test_error.mean == 50.0
    assert ordering_text(half, "").endswith("failed rows rank last together")


def test_a_row_with_one_seed_leaves_no_interval() -> None:
    found = fake.outcome(
        [
            fake.row("a", "resnet20", 6.0, [(10.0, 0.1)]),
            fake.row("b", "resnet20@preact", 7.0, [(14.0, 0.1), (15.0, 0.1)]),
        ]
    )
    assert "1.00 (rows with one seed: no interval), 2 rows" in ordering_text(found, "")


def test_test_errors_are_shares_of_answers() -> None:
    one = 100 / 360
    found = fake.outcome(
        [fake.row("a", "plain8", None, [(one, 0.5), (2 * one, 0.5)]),
         fake.row("b", "resnet8", None, [(2 * one, 0.5), (3 * one, 0.5)])]
    )  # fmt: skip
    effect = found.effect("b", "a")
    assert effect is not None
    assert not effect.shown
    assert effect.high - effect.low > 1


def test_without_published_values_nothing_is_ordered() -> None:
    found = fake.outcome([fake.row("a", "plain8", None, [(9.0, 0.5)]), fake.row("b", "resnet8", None, [(8.0, 0.5)])])
    text = repr(found)
    assert "Kendall" not in text
    assert "published %" not in text
    assert row_table(found, "").columns == ("row", "net", "test error %", "train loss", "failed", "s")
    assert published_chart(found) is None


def test_published_values_of_other_nets_are_told() -> None:
    rows = [fake.row("a", "plain8", 5.0, [(9.0, 0.5)])]
    found = fake.outcome(rows, others={"NIN": 8.81, "Highway": 7.72})
    told = "also there, not trained here: NIN 8.81 · Highway 7.72"
    assert told in repr(found)
    assert told in to_text(outcome_report(found))
    assert outcome_dict(found)["others"] == {"NIN": 8.81, "Highway": 7.72}
    assert "also there" not in repr(fake.outcome(rows))


def test_all_failed_is_no_order() -> None:
    found = fake.outcome([fake.row(k, "plain8", 5.0 + len(k), [(90.0, GUESS)]) for k in ("a", "bb")])
    assert ordering_text(found, "") == "no order to compare: fewer than two rows are known, or all of them failed."


def test_what_is_missing_and_how_to_go_on() -> None:
    whole = table()
    first = replace(whole.rows[0], planned=5, records={0: whole.rows[0].records[0]})
    part = StudyOutcome(study=whole.study, budget="quick", rows=(first, whole.rows[1]))
    assert (part.missing, part.complete) == (4, False)
    assert to_text(outcome_parts(part)).split("\n")[1:3] == [
        "4 of 7 runs are not over; what follows is of those that are.",
        "To go on: skipway study tablet --budget quick --seeds 5 --row identity --row 'gate, b = -6'",
    ]
    assert "0/1, 5 planned" in repr(part)
    assert go_on(whole) == "skipway study tablet --budget quick"
    elsewhere = replace(whole, places={"results": "my results", "out": "folders"})
    assert go_on(elsewhere) == "skipway study tablet --budget quick --results 'my results' --out folders"
    assert f"command: {go_on(elsewhere)}" in " ".join(to_text(outcome_report(elsewhere)).split())


def test_before_the_first_run() -> None:
    nothing = StudyOutcome(
        study=table().study, budget="quick", rows=tuple(replace(r, records={}) for r in table().rows)
    )
    text = repr(nothing)
    assert text.split("\n")[1] == "8 of 8 runs are not over; nothing is known yet."
    assert "Kendall" not in text
    assert "Row by row" not in to_text(outcome_report(nothing))
    jsonschema.validate(json.loads(dumps(outcome_dict(nothing))), schema("study-1.0"))


def test_a_recipe_names_all_its_rows() -> None:
    longer = replace(made.SETTINGS, recipe=replace(made.SETTINGS.recipe, steps=30))
    rows = [fake.row(label, "plain8", None, [(9.0, 0.5)]) for label in ("a", "b", "c")]
    rows = [replace(r, row=replace(r.row, settings=longer)) if r.row.label != "b" else r for r in rows]
    text = " ".join(repr(fake.outcome(rows)).split())
    assert "a · c: recipe quick: 30 steps of 64" in text
    assert " b: recipe quick: 20 steps of 64" in text


def test_troubles_are_said() -> None:
    assert "\nplain8 seed 0 died: killed\n" in repr(replace(table(), troubles=("plain8 seed 0 died: killed",)))


def measured() -> StudyOutcome:
    values = {
        0: {"mean_length": 4.0, "units": 27, "by_length": [1.0, 3.0], "status": "x"},
        1: {"mean_length": 6.0, "units": 27, "by_length": [2.0, 5.0]},
    }
    failed = {0: {"status": "diverged"}}
    return fake.outcome(
        [
            fake.row("a", "plain8", None, [(9.0, 0.5), (9.0, 0.5)], measured=values),
            fake.row("b", "resnet8", None, [(None, "nan")], measured=failed),
        ],
        measure=lambda _: {}, measures="the gradient by path length",
    )  # fmt: skip


def test_what_was_measured_on_the_nets() -> None:
    found = measured_table(measured())
    assert found is not None
    assert found.columns == ("row", "mean length", "units")
    assert found.rows == (("a", "5.00 ± 1.41", "27"), ("b", "–", "–"))
    (chart,) = measured_charts(measured())
    (series,) = chart.series
    assert (chart.x, chart.title) == ("length", "Measured by length")
    assert (series.name, series.x, series.y) == ("a", (0.0, 1.0), (1.5, 4.0))
    assert (series.low, series.high) == ((1.0, 3.0), (2.0, 5.0))
    assert measured_table(table()) is None
    nothing = fake.outcome([fake.row("a", "plain8", None, [(9.0, 0.5)], measured={0: {"change": -0.0}})])
    assert measured_table(nothing).rows == (("a", "0"),)  # type: ignore[union-attr]


def test_runs_that_were_not_measured_on() -> None:
    found = fake.outcome([fake.row("a", "plain8", None, [(9.0, 0.5)])], measure=lambda _: {})
    assert (found.missing, found.unmeasured, found.complete) == (0, 1, False)
    assert "Trained, but not measured on: 1 of 1 nets." in repr(found)


def test_the_chart_rises_where_the_order_is_the_published_one() -> None:
    chart = published_chart(table())
    assert chart is not None
    (series,) = chart.series
    assert (series.x, series.y) == ((6.61, 8.70, 12.22), (21.0, 30.5, 40.0))
    assert series.labels == ("identity", "gate, b = -6", "1×1")
    assert chart.note.endswith("Not drawn, since one side has no value: gate, b = 0.")


def test_the_report_has_figures() -> None:
    parts = outcome_report(measured())
    titles = [part.title for part in parts if isinstance(part, Section)]
    assert titles == [
        "The answer", "Row by row", "Differences", "Learning curves", "Measured on the trained nets", "How it was done",
    ]  # fmt: skip
    curves = next(part for part in parts if isinstance(part, Section) and part.title == "Learning curves")
    # A single test at the end is no curve.
    (loss,) = curves.parts
    assert isinstance(loss, Lines)
    # Seeds 0 and 1 wrote 2 and 3 at step 10, 1 and 2 at step 20.
    assert (loss.series[0].y, loss.series[0].low, loss.series[0].high) == ((2.5, 1.5), (2.0, 1.0), (3.0, 2.0))
    page = to_html(parts, title="t")
    assert page.count("<figure") == 2
    assert "<h1>Which row is best?</h1>" in page


def test_names_are_shown_as_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    found = fake.outcome([fake.row(evil, evil, 5.0, [(9.0, 0.5)], group=evil)], question=evil, source=evil)
    assert "<img" not in to_html(outcome_report(found), title=evil).split("<script")[0]


def test_json_follows_its_schema() -> None:
    kind = schema("study-1.0")
    jsonschema.Draft202012Validator.check_schema(kind)
    for found in (table(), measured()):
        jsonschema.validate(json.loads(dumps(outcome_dict(found))), kind)
    values = outcome_dict(table())
    assert values["rows"][2]["published"] == "fail"
    assert values["rows"][3]["failed_seeds"] == [1]
    assert values["orderings"][0]["kendall_tau_b"]["tau"] == pytest.approx(5 / math.sqrt(30))


def test_every_table_fits_a_terminal() -> None:
    for found in (table(), measured()):
        assert max(map(len, repr(found).split("\n"))) <= 100


def test_a_row_is_found_by_its_label() -> None:
    found = table()
    assert found.row("1×1").failed == (1,)
    assert isinstance(found.rows[0], RowRuns)
    with pytest.raises(KeyError):
        found.row("2×2")
    assert found.effect("gate, b = -6", "identity", of="train_loss").mean == pytest.approx(0.4)  # type: ignore[union-attr]


def test_no_curve_of_nothing() -> None:
    assert curve_series("a", []) is None
    assert curve_series("a", [{}, {}]) is None
    assert isinstance(row_table(table(), ""), Table)
    assert made.SETTINGS.recipe.steps == 20

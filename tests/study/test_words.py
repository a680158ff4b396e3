"""What a comparison says, of runs whose numbers are known."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import jsonschema
import pytest

from skipway.report import dumps, schema, to_text
from skipway.spec import DataSpec, RunSpec
from skipway.study.comparison.comparison import SCHEMA_VERSION
from skipway.study.comparison.tables import effect_text, interval_text, number_text, result_table
from skipway.study.comparison.view import comparison_parts, comparison_report
from skipway.study.curves import learning_curves
from skipway.study.effects import Effect
from skipway.study.jobs.plan import ComparisonPlan
from skipway.study.summary import error_step, training_failed

sys.path.insert(0, str(Path(__file__).parent))
import made

GUESS = math.log(10)


def three(path: Path):
    return made.comparison(
        path,
        {
            "plain56": {k: made.result(80.0 + k, GUESS) for k in range(3)},
            "resnet56": {k: made.result(20.0 + 2 * k, 0.5) for k in range(3)},
            "resnet56@preact": {k: made.result(21.0 + k, 0.25) for k in range(3)},
        },
    )


def test_the_whole_text(tmp_path: Path) -> None:
    text = to_text(comparison_parts(three(tmp_path)))
    assert max(map(len, text.split("\n"))) <= 100
    # Differences -60, -59, -58: t(0.975, 2) · 1 / √3 = 2.48; -59, -59, -59, of which one answer of 360 is known to be
    # rounded: t · (100 / 360) / √6 / √3 = 0.28; 1, 0, -1.
    assert text.startswith(
        "skipway · plain56 against resnet56 and resnet56@preact on digits: 20 steps of 64, 3 seeds each\n"
        "plain56: training failed (3 of 3): the training loss stayed at that of guessing.\n"
        "resnet56 is better than plain56 by 59.00 points [56.52, 61.48]. Test errors: 22.00 ± 2.00 % and\n"
        "81.00 ± 1.00 %.\n"
        "resnet56@preact is better than plain56 by 59.00 points [58.72, 59.28]. Test errors: 22.00 ± 1.00 %\n"
        "and 81.00 ± 1.00 %.\n"
        "Between resnet56 and resnet56@preact no difference is shown: resnet56 − resnet56@preact = 0.00\n"
        "points [-2.48, +2.48], 3 seeds.\n"
    )
    row = next(line for line in text.split("\n") if line.startswith(" resnet56 "))
    assert row.split() == [
        "resnet56", "22.00", "±", "2.00", "0.500", "±", "0.000", "-59.0", "[-61.5,", "-56.5]", "ok",
    ]  # fmt: skip
    plain = next(line for line in text.split("\n") if line.startswith(" plain56 "))
    assert plain.split()[-2:] == ["reference", "failed"]


def test_the_whole_table(tmp_path: Path) -> None:
    table = three(tmp_path).table()
    assert table.columns == (
        "design", "test error %", "train loss", "error − reference's [95 %]", "training", "parameters", "FLOP",
        "images/s", "seconds", "grad start", "grad end",
    )  # fmt: skip
    assert table.rows[1] == (
        "resnet56", "22.00 ± 2.00", "0.500 ± 0.000", "-59.0 [-61.5, -56.5]", "ok", "75.0 k", "–", "–", "2", "–", "–",
    )  # fmt: skip


def test_one_seed_claims_nothing(tmp_path: Path) -> None:
    results = {"plain56": {0: made.result(80.0, 2.0)}, "resnet56": {0: made.result(20.0, 0.5)}}
    found = made.comparison(tmp_path, results)
    (answer,) = found.to_dict()["answer"]
    assert answer == (
        "resnet56 makes 60.00 points fewer test errors than plain56, with one seed: whether that is chance cannot be "
        "said. Test errors: 20.00 % and 80.00 %."
    )
    assert "-60.0 (one seed)" in repr(found)


def test_a_worse_design_is_called_worse(tmp_path: Path) -> None:
    results = {
        "resnet56": {k: made.result(20.0 + k, 0.5) for k in range(2)},
        "plain56": {k: made.result(70.0 + k, 2.0) for k in range(2)},
    }
    answer = made.comparison(tmp_path, results).to_dict()["answer"]
    assert answer == [
        "plain56 is worse than resnet56 by 50.00 points [48.98, 51.02]. Test errors: 70.50 ± 0.71 % and 20.50 ± 0.71 %."
    ]


def test_diverged_runs_are_failed_and_no_pair(tmp_path: Path) -> None:
    results = {
        "resnet56": {k: made.result(20.0 + k, 0.5) for k in range(3)},
        "plain56": {
            0: made.result(None, "nan", status="diverged"),
            1: made.result(None, None, status="diverged"),
            2: made.result(60.0, 1.0),
        },
    }
    found = made.comparison(tmp_path, results)
    summary = found.summaries["plain56"]
    assert summary.failed == (0, 1)
    assert summary.effect is not None
    assert (summary.effect.n, summary.effect.mean) == (1, 38.0)
    assert found.to_dict()["answer"][0] == (
        "plain56: training failed in some runs (2 of 3): the loss stopped being finite."
    )
    assert "failed 2 of 3" in repr(found)
    # One pair of those that were asked for is not the one seed that was not asked for.
    assert "with one pair of 3 seeds: whether that is chance cannot be said." in " ".join(repr(found).split())
    assert "+38.0 (one pair)" in repr(found)


def test_a_reference_that_diverged_is_the_reference_all_the_same(tmp_path: Path) -> None:
    lost = made.result(None, "nan", status="diverged")
    results = {"plain56": {0: lost, 1: lost}, "resnet56": {k: made.result(20.0 + k, 0.5) for k in range(2)}}
    found = made.comparison(tmp_path / "all", results)
    table = result_table(found)
    assert [row[3] for row in table.rows] == ["reference", "–"]
    assert found.to_dict()["answer"][-1] == (
        "resnet56 and plain56 have no seed in which both have a test error: plain56 diverged in 2 of 2."
    )
    crossed = {"plain56": {0: lost, 1: made.result(9.0, 0.5)}, "resnet56": {0: made.result(9.0, 0.5), 1: lost}}
    assert (
        made.comparison(tmp_path / "crossed", crossed)
        .to_dict()["answer"][-1]
        .endswith("no seed in which both have a test error: resnet56 diverged in 1 of 2, plain56 diverged in 1 of 2.")
    )


def test_the_same_difference_twice_may_be_chance(tmp_path: Path) -> None:
    """One answer of 360 more, with two seeds: no spread, and no news."""
    one = 100 / 360
    results = {
        "plain20": {k: made.result(3 * one + k, 0.1) for k in range(2)},
        "resnet20": {k: made.result(4 * one + k, 0.1) for k in range(2)},
    }
    found = made.comparison(tmp_path, results)
    effect = found.effect("resnet20")
    assert effect is not None
    assert not effect.shown
    # t(0.975, 1) · (100 / 360) / √6 / √2
    assert effect.high - effect.mean == pytest.approx(12.7062 * one / math.sqrt(12), rel=1e-5)
    assert found.to_dict()["answer"][0].startswith(
        "Between resnet20 and plain20 no difference is shown: resnet20 − plain20 = +0.28 points "
        "[-0.74, +1.30], 2 seeds."
    )


def test_tokens_are_answers_each() -> None:
    images, tokens = ({"data": {"test_size": 50, "input_shape": shape}} for shape in ([3, 8, 8], [8]))
    assert error_step([images]) == 2.0
    assert error_step([tokens]) == 0.25
    assert error_step([tokens, images]) == 2.0
    assert error_step([]) == 0.0


def test_a_small_effect_has_the_digits_it_takes(tmp_path: Path) -> None:
    small = Effect(n=3, mean=-0.0151, low=-0.0298, high=-0.0004)
    assert small.shown
    assert effect_text(small) == "-0.0151 [-0.0298, -0.0004]"
    assert effect_text(Effect(n=3, mean=-0.3, low=-0.5, high=-0.1)) == "-0.3 [-0.5, -0.1]"
    # Not shown: no digits are spent on it, and nothing has the sign of nothing.
    assert effect_text(Effect(n=3, mean=-0.0001, low=-0.02, high=0.01)) == "0.0 [0.0, 0.0] not shown"
    assert number_text(-0.0004, 3, signed=True) == number_text(0.0, 3, signed=True) == "0.000"
    found = made.comparison(
        tmp_path,
        {
            "a": {k: made.result(5.0, 0.1) for k in range(3)},
            "b": {k: made.result(5.0 + 0.002 * (k - 1) + 0.006, 0.1) for k in range(3)},
        },
    )
    for run in found.runs["a"] | found.runs["b"]:
        for model in found.models:
            file = tmp_path / model / f"seed-{run}" / "environment.json"
            values = json.loads(file.read_text())
            values["data"]["test_size"] = 10**6
            file.write_text(json.dumps(values))
    assert found.to_dict()["answer"][0].startswith("b is worse than a by 0.006 points [0.001, 0.011].")


def test_failing_is_a_loss_near_that_of_guessing(tmp_path: Path) -> None:
    results = {"a": {0: made.result(89.0, GUESS - 0.049)}, "b": {0: made.result(89.0, GUESS - 0.051)}}
    found = made.comparison(tmp_path, results)
    assert training_failed(found.runs["a"][0])
    assert not training_failed(found.runs["b"][0])


def test_runs_that_are_not_over(tmp_path: Path) -> None:
    results = {"plain56": {0: made.result(80.0, 2.0), 1: None}, "resnet56": {0: None, 1: made.result(20.0, 0.5)}}
    found = made.comparison(tmp_path, results)
    assert found.missing == [("resnet56", 0), ("plain56", 1)]
    assert not found.complete
    assert found.to_dict()["answer"] == [
        f"2 of 4 runs are not over; what follows is of those that are.\nTo go on: skipway compare --resume {tmp_path}",
        "resnet56 and plain56 have no seed in common that is over.",
    ]
    assert "1 of 2 over" in repr(found)


def test_nothing_is_over(tmp_path: Path) -> None:
    text = repr(made.comparison(tmp_path, {"plain56": {0: None}}))
    assert text.endswith("No run has a test error.")


def test_a_report_without_inspections_says_so(tmp_path: Path) -> None:
    text = to_text(comparison_report(three(tmp_path)))
    assert "note: the signal by depth and the stream map (no net of these runs was inspected)" in text
    assert "Findings" not in text


def test_json_follows_its_schema(tmp_path: Path) -> None:
    kind = schema(f"comparison-{SCHEMA_VERSION}")
    jsonschema.Draft202012Validator.check_schema(kind)
    odd = {
        "a": {0: made.result(None, "nan", status="diverged"), 1: None},
        "b": {0: made.result(2.0, 0.1), 1: made.result(3.0, 0.1)},
    }
    for found in (three(tmp_path / "three"), made.comparison(tmp_path / "odd", odd)):
        jsonschema.validate(json.loads(dumps(found.to_dict())), kind)


def test_learning_curves_are_mean_and_band(tmp_path: Path) -> None:
    found = three(tmp_path)
    loss, error = learning_curves({"plain56": found.runs["plain56"].values()})
    # Seeds 0, 1, 2 write losses of 2, 3, 4 at step 10 and 1, 2, 3 at step 20.
    (series,) = loss.series
    assert (series.x, series.y, series.low, series.high) == ((10.0, 20.0), (3.0, 2.0), (2.0, 1.0), (4.0, 3.0))
    (series,) = error.series
    assert (series.x, series.y, series.low, series.high) == ((20.0,), (81.0,), (80.0,), (82.0,))


def test_a_long_curve_has_few_points(tmp_path: Path) -> None:
    found = made.comparison(tmp_path, {"a": {0: made.result(1.0, 1.0)}})
    lines = "".join(json.dumps({"step": k, "loss": float(k)}) + "\n" for k in range(1, 10_001))
    (tmp_path / "a" / "seed-0" / "metrics.jsonl").write_text(lines)
    (series,) = learning_curves({"a": found.runs["a"].values()})[0].series
    assert 250 <= len(series.y) <= 300
    assert series.y[0] == (1 + 34) / 2  # 34 steps to a point
    assert series.x is not None
    assert series.x[-1] == 10_000


def test_the_command_says_what_differs_from_the_defaults() -> None:
    from dataclasses import replace

    from skipway.study.jobs.command import command_of
    from skipway.train.recipes import find_recipe

    recipe = find_recipe("quick")
    settings = RunSpec(
        model="", data=DataSpec(name="cifar10", image_size=16),
        recipe=replace(recipe, steps=600, optimizer=replace(recipe.optimizer, lr=0.1)), threads=1, test_every=60,
        compile="units", residual_in_fp32=True,
    )  # fmt: skip
    plan = ComparisonPlan(models=("plain56", "resnet20@exclusive_gate(bias=-6)"), seeds=(2, 3), settings=settings)
    assert command_of(plan) == (
        "skipway compare plain56 'resnet20@exclusive_gate(bias=-6)' --data cifar10 --recipe quick --steps 600 "
        "--batch 128 --seeds 2 --base-seed 2 --lr 0.1 --image-size 16 --compile units --threads 1 "
        "--test-every 60 --residual-in-fp32"
    )
    # Seeds were added that leave a gap; 0 tests along the way are no default of compare.
    settings = RunSpec(model="", recipe=replace(recipe, steps=10), channels_last=False)
    shared = "skipway compare mlp40 --data digits --recipe quick --steps 10 --batch 128"
    assert command_of(ComparisonPlan(models=("mlp40",), seeds=(0, 1, 5), settings=settings)) == (
        f"{shared} --seeds 2 --test-every 0 --channels-first && "
        f"{shared} --seeds 1 --base-seed 5 --test-every 0 --channels-first"
    )


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [(9999.4, False, "9999.400"), (2.797e22, False, "2.8e22"), (2.797e22, True, "+2.8e22"), (-3e5, True, "-3.0e5"),
     (0.25, True, "+0.250")],
)  # fmt: skip
def test_what_has_left_all_bounds_is_told_shortly(value: float, signed: bool, text: str) -> None:
    assert number_text(value, 3, signed=signed) == text
    assert interval_text(Effect(n=1, mean=value, low=None, high=None), 3) == number_text(value, 3, signed=True)

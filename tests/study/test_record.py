"""What is kept of a run, and where."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from skipway.errors import SkipwayError
from skipway.spec import DataSpec, RecipeSpec, RunSpec
from skipway.study.records.record import Record, same_anywhere, told_apart_by
from skipway.study.records.results import Results, run_name
from skipway.train.folder import read_json
from skipway.train.run import load_run

sys.path.insert(0, str(Path(__file__).parent))
import fake
import made

SPEC = RunSpec(model="resnet8@exclusive_gate(bias=-6)", data=DataSpec(name="cifar10"), recipe=RecipeSpec(steps=20))


def test_the_name_of_a_run_is_the_same_on_every_machine() -> None:
    elsewhere = replace(
        SPEC, data=replace(SPEC.data, root="/data", download=True), threads=7, checkpoint_every=5, log_every=1,
        inspect=False,
    )  # fmt: skip
    assert same_anywhere(elsewhere) == same_anywhere(SPEC)
    assert run_name(elsewhere) == run_name(SPEC)
    assert run_name(SPEC).startswith("resnet8")
    assert not set(run_name(SPEC)) & set('/\\:*?"<>| ')


def test_words_and_settings_of_later_versions_leave_the_name() -> None:
    reworded = replace(SPEC, recipe=replace(SPEC.recipe, name="other", source="put in other words"))
    assert run_name(reworded) == run_name(SPEC)
    # A setting that is at its default tells nothing apart: so a later version may add one.
    assert set(told_apart_by(SPEC)) == {"model", "data", "recipe"}
    assert told_apart_by(SPEC)["recipe"] == {"steps": 20}


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, seed=1),
        replace(SPEC, model="resnet8"),
        replace(SPEC, precision="32-true"),
        replace(SPEC, data=replace(SPEC.data, image_size=16)),
        replace(SPEC, recipe=replace(SPEC.recipe, steps=21)),
        replace(SPEC, recipe=replace(SPEC.recipe, optimizer=replace(SPEC.recipe.optimizer, lr=0.2))),
    ],
    ids=["seed", "model", "precision", "image size", "steps", "rate"],
)
def test_another_run_has_another_name(other: RunSpec) -> None:
    assert run_name(other) != run_name(SPEC)


def test_a_record_of_a_run_folder(tmp_path: Path) -> None:
    spec = replace(made.SETTINGS, model="resnet8", data=DataSpec(root="/mine"))
    made.write_run(tmp_path / "run", spec, made.result(12.5, 0.25))
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    environment["data"]["root"] = "/mine"
    (tmp_path / "run" / "environment.json").write_text(json.dumps(environment))
    found = Record.of(load_run(tmp_path / "run"), commit="abc")
    assert (found.status, found.test_error, found.train_loss, found.seconds, found.failed) == (
        "finished", 12.5, 0.25, 2.0, False,
    )  # fmt: skip
    assert (found.loss, found.tests) == (((10, 2.0), (20, 1.0)), ((20, 12.5),))
    assert "/mine" not in json.dumps(found.to_dict())
    assert Record.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_curves_are_thinned_to_means(tmp_path: Path) -> None:
    made.write_run(tmp_path / "run", replace(made.SETTINGS, model="resnet8"), made.result(12.5, 0.25))
    lines = [{"step": k, "loss": float(k)} for k in range(1, 1001)] + [{"step": 1001, "loss": "nan"}]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = Record.of(load_run(tmp_path / "run"))
    # 1000 points in chunks of nine: the first is the mean of 1 to 9 at step 9, the last of the one that is left.
    assert len(found.loss) == 112
    assert (found.loss[0], found.loss[-1]) == ((9, 5.0), (1000, 1000.0))


@pytest.mark.parametrize(
    ("error", "loss", "failed"),
    [
        (90.0, math.log(10) - 0.049, True),
        (89.0, math.log(10) - 0.051, False),
        (90.0, "nan", True),
        (None, 1.0, True),
        (None, None, True),
    ],
)
def test_what_has_failed(error: float | None, loss: float | str | None, failed: bool) -> None:
    assert fake.record("plain8", 0, error, loss).failed is failed


def test_files_are_found_again(tmp_path: Path) -> None:
    results = Results(tmp_path)
    kept = fake.record("resnet8", 3, 12.5, 0.25)
    assert results.read_record(kept.spec) is None
    results.write_record(kept)
    assert results.read_record(replace(kept.spec, threads=5)) == kept
    assert results.read_record(replace(kept.spec, seed=4)) is None
    results.write_measured("lesion", kept.spec, {"units": 3})
    assert results.read_measured("lesion", kept.spec) == {"units": 3}
    assert results.read_measured("paths", kept.spec) is None
    results.write_claim("quick", "grad-sum", {"verdict": "holds"})
    assert read_json(results.claim_path("quick", "grad-sum")) == {"verdict": "holds"}
    assert not results.claim_path("standard", "grad-sum").exists()
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    stem = run_name(kept.spec)
    assert names == ["claims/quick/grad-sum.json", f"measured/lesion/{stem}.json", f"runs/{stem}.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "skipway.record/9"}, "a record of schema 'skipway.record/9'"),
        ({"loss": None}, "a record that does not hold"),
        ({"result": {"status": "won"}}, "no steps"),
        ({"environment": {}}, "no skipway"),
        ({"spec": {"model": "resnet8", "colour": "red"}}, "unknown key of a run spec 'colour'"),
        ({"spec": {"model": "resnet20"}}, "is the record of another run"),
    ],
)
def test_records_that_were_edited(change: dict[str, object], said: str, tmp_path: Path) -> None:
    results, kept = Results(tmp_path), fake.record("resnet8", 0, 12.5, 0.25)
    results.write_record(kept)
    path = results.record_path(kept.spec)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SkipwayError, match=said) as caught:
        results.read_record(kept.spec)
    assert str(path) in str(caught.value)

"""A comparison from the first step to the report, and all that is refused before the first step."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import skipway
from skipway.errors import SkipwayError
from skipway.spec import DataSpec, RunSpec
from skipway.study.compare import compare_settings, resume_comparison
from skipway.study.comparison.folder import ComparisonFolder
from skipway.study.jobs.machine import workers_and_threads
from skipway.study.jobs.plan import ComparisonPlan
from skipway.train.plan import safe_name

sys.path.insert(0, str(Path(__file__).parent))
import made


def again(out: Path, models: list[str], **changes):
    return skipway.compare(models, out=out, **{"seeds": 2, "workers": 2, **made.TINY, **changes})


def stamps(out: Path) -> dict[str, int]:
    return {str(p.relative_to(out)): p.stat().st_mtime_ns for p in out.rglob("seed-*/*.*")}


def test_what_lies_in_the_folder(compared: Path) -> None:
    for model in ("plain8", "resnet8"):
        for seed in (0, 1):
            run = compared / model / f"seed-{seed}"
            names = {p.name for p in run.iterdir()}
            assert names >= {
                "spec.json", "environment.json", "metrics.jsonl", "inspection-start.json", "inspection-end.json",
                "model.safetensors", "result.json", "checkpoint",
            }  # fmt: skip
            assert f"{model} seed {seed}, process" in (compared / "logs" / f"{model}-seed-{seed}.txt").read_text()
    assert (compared / "report.html").stat().st_size > 1e6
    plan = json.loads((compared / "comparison.json").read_text())
    assert plan["models"] == ["plain8", "resnet8"]
    assert plan["seeds"] == [0, 1]
    assert plan["settings"]["recipe"]["steps"] == 8
    assert plan["settings"]["threads"] == 1
    assert plan["settings"]["test_every"] == 1  # a tenth of the steps
    assert plan["runs"][1] == {"model": "resnet8", "seed": 0, "folder": "resnet8/seed-0"}


def test_two_processes_carried_it_out(compared: Path) -> None:
    pids = {p.read_text().split("process ")[1].split()[0] for p in (compared / "logs").iterdir()}
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


def test_the_result(compared: Path) -> None:
    found = skipway.load_comparison(compared)
    assert found.complete
    for model in ("plain8", "resnet8"):
        summary, runs = found.summaries[model], found.runs[model]
        errors = [runs[k].result["test_error"] for k in (0, 1)]
        assert summary.test_error is not None
        assert summary.test_error.mean == pytest.approx(sum(errors) / 2)
        net = skipway.create_model(model, in_channels=1, image_size=8)
        assert summary.parameters == sum(p.numel() for p in net.parameters())
        assert summary.gradient_start is not None
        assert summary.gradient_start > 0
        assert summary.gradient_end != summary.gradient_start
    # The same seeds: the same batches, another net.
    assert found.effect("resnet8").mean == pytest.approx(
        found.summaries["resnet8"].test_error.mean - found.summaries["plain8"].test_error.mean
    )


def test_forward_flops_are_those_of_one_sample(compared: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    net = skipway.create_model("resnet8", in_channels=1, image_size=8).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(torch.zeros(1, 1, 8, 8))
    found = skipway.load_comparison(compared).summaries["resnet8"].flops
    assert found == pytest.approx(counter.get_total_flops(), rel=0.05)  # the counter leaves out norms and additions


def test_speed_was_measured_alone(compared: Path) -> None:
    speed = json.loads((compared / "speed.json").read_text())
    for model in ("plain8", "resnet8"):
        facts = speed[model]
        assert facts["samples_per_sec"] == pytest.approx(16 / facts["step_sec"])
        assert facts["step_sec_low"] <= facts["step_sec"] <= facts["step_sec_high"]
        assert 2 <= facts["steps"] <= 20
        assert facts["processor"]
        assert facts["threads"] == 1  # all cores, which are one in these tests
        assert torch.__version__.startswith(facts["torch"])


def test_a_worker_process_computes_what_this_one_computes(compared: Path, tmp_path: Path) -> None:
    from skipway.train.fit import run_spec

    spec = skipway.load_comparison(compared).runs["resnet8"][1].spec
    here = run_spec(spec, tmp_path / "run")
    there = load_file(compared / "resnet8" / "seed-1" / "model.safetensors")
    for name, tensor in load_file(here.folder.weights_path).items():
        assert torch.equal(tensor, there[name]), name


def test_finished_runs_are_not_repeated(compared: Path, tmp_path: Path, in_process: list[str], heard) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    before = stamps(out)
    again(out, ["plain8", "resnet8"], listener=heard)
    assert in_process == []
    assert stamps(out) == before
    assert heard.notes == [
        "2 models × 2 seeds on digits · recipe quick, 8 steps of 16 · 0 runs to do · 4 finished before and reused"
    ]


def test_models_and_seeds_are_added(compared: Path, tmp_path: Path, in_process: list[str], heard) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    before = stamps(out)
    found = again(out, ["resnet8@preact", "resnet8"], seeds=1, base_seed=2, listener=heard)
    assert sorted(in_process) == [
        "plain8 seed 2", "resnet8 seed 2", "resnet8@preact seed 0", "resnet8@preact seed 1", "resnet8@preact seed 2",
    ]  # fmt: skip
    assert found.models == ("plain8", "resnet8", "resnet8@preact")
    assert found.plan.seeds == (0, 1, 2)
    assert found.complete
    assert {name: stamp for name, stamp in stamps(out).items() if name in before} == before
    kept, planned = heard.notes
    assert kept == f"{out} compares with plain8, which stays the reference"
    assert planned.startswith("3 models × 3 seeds on digits · recipe quick, 8 steps of 16 · 5 runs to do, 2 at a time")
    assert planned.endswith(" · 4 finished before and reused")
    assert set(found.speed) == {"plain8", "resnet8", "resnet8@preact"}


def test_a_run_that_was_stopped_goes_on(compared: Path, tmp_path: Path, in_process: list[str], capsys) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    run = out / "resnet8" / "seed-1"
    before = load_file(run / "model.safetensors")
    for name in ("result.json", "model.safetensors", "inspection-end.json"):
        (run / name).unlink()
    found = resume_comparison(out)
    assert in_process == ["resnet8 seed 1"]
    assert found.complete
    after = load_file(run / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    # It went on from its checkpoint, which was behind the last step.
    assert "resnet8, seed 1, from step 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("models", "changes", "text"),
    [
        (["resnet8", "plain8", "resnet8"], {}, "resnet8 is named twice\nexpected: each model once"),
        (["a:b", "a_b"], {}, "a:b and a_b would share the folder a_b\nexpected: names that differ more"),
        ([], {}, "no models\nexpected: at least one name"),
        ("resnet8", {}, "models='resnet8'\nexpected: a list of names"),
        (["resnet8", torch.nn.Linear(1, 1)], {}, "a model of type Linear\nexpected: names, since each run builds"),
        (["resnet8"], {"seeds": 0}, "seeds=0\nexpected: an integer from 1"),
        (["resnet8"], {"base_seed": -1}, "base_seed=-1\nexpected: an integer from 0"),
        (["resnet8"], {"workers": 0}, "workers=0\nexpected: an integer from 1"),
        (["resnet8"], {"data": "digitz"}, "unknown data set 'digitz'"),
        (["resnet8"], {"batch_size": 2000}, "batch_size=2000, but digits has 1437 training samples"),
        (
            ["plain8", "resnet8@preakt", "resnet8"],
            {},
            "nothing was started, because of resnet8@preakt: unknown design 'preakt'\nexpected: did you mean 'preact'",
        ),
        (["plain8", "gpt_nano"], {}, "nothing was started, because of gpt_nano: gpt_nano reads token ids"),
    ],
)
def test_refused_before_anything_is_started(models, changes, text: str, tmp_path: Path, in_process: list[str]) -> None:
    out = tmp_path / "new"
    with pytest.raises(SkipwayError) as caught:
        again(out, models, **changes)
    assert str(caught.value).startswith(text)
    assert in_process == []
    assert not out.exists()


def test_a_folder_with_other_settings(compared: Path, in_process: list[str]) -> None:
    with pytest.raises(SkipwayError) as caught:
        again(compared, ["plain8"], steps=9, batch_size=32)
    assert str(caught.value) == (
        f"{compared} holds a comparison with other settings: steps 9, was 8; batch_size 32, was 16\n"
        "expected: the same settings, to add models or seeds to it\ntry: another --out"
    )
    assert in_process == []


def test_a_folder_with_something_else(compared: Path, tmp_path: Path, in_process: list[str]) -> None:
    with pytest.raises(SkipwayError, match="is not empty and holds a run"):
        again(compared / "plain8" / "seed-0", ["plain8"])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SkipwayError, match="is not empty and holds no comparison"):
        again(tmp_path, ["plain8"])
    assert in_process == []


def test_a_run_of_another_spec_in_the_way(compared: Path, tmp_path: Path, in_process: list[str]) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    shutil.copytree(out / "plain8" / "seed-0", out / "resnet20" / "seed-0")
    with pytest.raises(SkipwayError) as caught:
        again(out, ["resnet20"])
    assert str(caught.value).startswith(
        f"{out / 'resnet20' / 'seed-0'} holds a run of another spec\nexpected: resnet20 with seed 0"
    )
    assert in_process == []


def test_a_place_that_cannot_be_written(tmp_path: Path, in_process: list[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SkipwayError) as caught:
        again(tmp_path / "file" / "c", ["plain8"])
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'file' / 'c'}: Not a directory")
    assert in_process == []


def test_two_comparisons_in_one_folder(compared: Path, tmp_path: Path, in_process: list[str]) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    with ComparisonFolder(out).locked(), pytest.raises(SkipwayError, match="another process"):
        again(out, ["plain8"])


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(SkipwayError) as caught:
        resume_comparison(tmp_path)
    assert str(caught.value) == (
        f"no comparison in {tmp_path}\nexpected: a folder with comparison.json, as skipway compare writes it"
    )


def test_a_plan_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text('{"schema": "skipway.comparison-plan/9"}')
    with pytest.raises(SkipwayError, match=r"schema 'skipway\.comparison-plan/9'"):
        resume_comparison(tmp_path)


def test_a_plan_goes_through_json() -> None:
    settings = RunSpec(model="", data=DataSpec(name="cifar10", image_size=16), threads=2)
    plan = ComparisonPlan(models=("a", "b@c(d=1)"), seeds=(3, 4), settings=settings, workers=5)
    assert ComparisonPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert plan.spec("a", 4).seed == 4
    assert safe_name("resnet20@exclusive_gate(bias=-6)") == "resnet20@exclusive_gate_bias=-6_"


@pytest.mark.parametrize(
    ("runs", "cores", "workers", "expected"),
    [(9, 2, None, (2, 1)), (1, 2, None, (1, 2)), (3, 16, None, (3, 5)), (9, 8, 2, (2, 4)), (2, 4, 9, (2, 2))],
)
def test_the_machine_is_shared_out(runs, cores, workers, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skipway.study.jobs.machine.cores", lambda: cores)
    settings = RunSpec(model="", accelerator="cpu")
    assert workers_and_threads(runs, settings, workers) == expected


def test_one_run_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("skipway.study.jobs.machine.cores", lambda: 16)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7")
    settings = RunSpec(model="", accelerator="cuda")
    from skipway.study.jobs.machine import worker_devices

    assert worker_devices(settings) == ["5", "7"]
    assert workers_and_threads(9, settings, None) == (2, 8)
    with pytest.raises(SkipwayError, match="workers=3 for 2 GPUs\nexpected: at most one run for each GPU"):
        workers_and_threads(9, settings, 3)


def test_several_devices_for_one_run_are_refused(in_process: list[str]) -> None:
    with pytest.raises(SkipwayError, match="devices=2 for a comparison"):
        compare_settings(["plain8"], RunSpec(model="", devices=2))

"""What a study would take: counted by others, timed by a clock that is known, and summed by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import skipway
from skipway.cli import main
from skipway.errors import SkipwayError
from skipway.report import dumps
from skipway.spec import DataSpec, Memory, OptimizerSpec, RecipeSpec, RunSpec, ScheduleSpec
from skipway.study.jobs.speed import Bench
from skipway.study.projection import cost
from skipway.study.projection.cost import StepCost, step_cost
from skipway.study.projection.projection import ProjectedRow, Projection, project
from skipway.study.published import STUDIES, Row, Study
from skipway.study.records.results import Results

sys.path.insert(0, str(Path(__file__).parent))
import fake

SGD = RecipeSpec(name="sgd", steps=100, batch_size=64)
SPEC = RunSpec(model="plain8", recipe=SGD, precision="32-true", accelerator="cpu")


def study(*rows: Row, settings: RunSpec = SPEC, seeds: int = 2) -> Study:
    return Study(
        id="throw-away", title="A title", source="nobody", question="what does it cost?", rows=lambda _: rows,
        settings=lambda _: settings, seeds=lambda _: seeds,
    )  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine on which a step takes a tenth of a second for each sample; the samples of each step."""
    made: list[int] = []
    real = Bench.step

    def step(self, batches, *, around=None) -> float:
        batch = next(batches)
        made.append(len(batch[0]))
        real(self, iter([batch]), around=around)
        return 0.1 * len(batch[0])

    monkeypatch.setattr(Bench, "step", step)
    return made


def test_operations_are_those_that_pytorch_counts_and_that_show_prints() -> None:
    found = step_cost(replace(SPEC, model="resnet8@preact"), threads=1)
    net = skipway.create_model("resnet8@preact", num_classes=10, in_channels=1).eval()
    x = torch.zeros(1, 1, 8, 8)
    with FlopCounterMode(display=False) as counter:
        net(x)
    assert found.forward_flops == counter.get_total_flops()
    assert found.forward_flops == skipway.inspect(net, x, structure_only=True).totals["flops"]
    assert found.training_flops == 3 * 64 * counter.get_total_flops()
    assert found.parameters == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("memory", ["keep", "recompute"])
def test_memory_is_what_autograd_keeps_of_a_whole_batch(memory: Memory) -> None:
    spec = replace(SPEC, recipe=replace(SGD, batch_size=48), memory=memory)
    found = step_cost(spec, threads=1)
    bench = Bench(spec)
    own = {p.data_ptr() for p in bench.net.parameters()} | {b.data_ptr() for b in bench.net.buffers()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x, y = next(bench.batches(48))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = F.cross_entropy(bench.net(x), y)
    whole = sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own)
    assert found.activation_bytes == pytest.approx(whole, rel=0.01)
    del loss
    weights = sum(p.nbytes for p in bench.net.parameters())
    assert found.gradient_bytes == weights
    assert found.optimizer_bytes == weights, "one momentum for each"
    assert found.weight_bytes == weights + sum(b.nbytes for b in bench.net.buffers())
    assert found.memory_bytes == found.activation_bytes + 2 * weights + found.weight_bytes


def test_adam_keeps_two_moments() -> None:
    adam = replace(SGD, optimizer=OptimizerSpec(name="adamw"), batch_size=4)
    found = step_cost(
        RunSpec(model="bert_nano", data=DataSpec(name="reverse"), recipe=adam, accelerator="cpu"), threads=1
    )
    assert found.optimizer_bytes == pytest.approx(2 * found.gradient_bytes, rel=1e-3)  # and a count of steps
    assert found.input_shape == (8,)


def test_a_step_that_would_take_long_is_timed_on_fewer_samples_and_scaled(clock: list[int]) -> None:
    found = step_cost(SPEC, threads=1)
    # 64 samples would take 6.4 s and 16 would take 1.6 s, which is more than 1.5; 8 take 0.8 s.
    assert found.measured_batch == 8
    assert found.step_sec == pytest.approx(6.4)
    assert clock == [2, 4, 8, 8, 8]
    assert step_cost(replace(SPEC, recipe=replace(SGD, batch_size=10)), threads=1).measured_batch == 10


def test_a_step_that_takes_its_time_whatever_the_batch_is_timed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Bench.step

    def step(self, batches, *, around=None) -> float:
        batch = next(batches)
        real(self, iter([batch]), around=around)
        return 1.0 + 0.001 * len(batch[0])

    monkeypatch.setattr(Bench, "step", step)
    found = step_cost(SPEC, threads=1)
    assert (found.measured_batch, found.step_sec) == (64, pytest.approx(1.064))


def test_a_batch_that_would_not_fit_is_timed_on_fewer_samples(
    clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(SPEC, recipe=replace(SGD, batch_size=10))
    whole = step_cost(small, threads=1)
    assert whole.measured_batch == 10
    monkeypatch.setattr(cost, "free_bytes", lambda _: 1.9 * whole.activation_bytes)
    assert step_cost(small, threads=1).measured_batch == 8
    monkeypatch.setattr(cost, "free_bytes", lambda _: 2.1 * whole.activation_bytes)
    assert step_cost(small, threads=1).measured_batch == 10


def test_a_batch_of_one_and_generators_and_threads(clock: list[int]) -> None:
    torch.manual_seed(7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    one = replace(SPEC, model="bert_nano", data=DataSpec(name="reverse"), recipe=replace(SGD, batch_size=1))
    assert step_cost(one, threads=threads + 1).measured_batch == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_nets_that_cost_the_same_are_measured_once(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    real = Bench.__init__

    def init(self, spec, opened=None) -> None:
        built.append(f"{spec.model} {spec.recipe.batch_size}")
        real(self, spec, opened)

    monkeypatch.setattr(Bench, "__init__", init)
    slower = replace(SGD, steps=300, schedule=ScheduleSpec(name="constant"), optimizer=OptimizerSpec(lr=0.2))
    rows = (
        Row(label="a", model="mlp2"),
        Row(label="b", model="mlp2", settings=replace(SPEC, recipe=slower, test_every=7)),
        Row(label="c", model="mlp2", settings=replace(SPEC, recipe=replace(SGD, batch_size=8))),
    )
    found = project(study(*rows), "quick", workers=1)
    assert built == ["mlp2 64", "mlp2 8"]
    a, b, c = found.rows
    assert (b.run_flops, b.run_sec) == (3 * a.run_flops, pytest.approx(3 * a.run_sec))
    assert a.run_flops == 3 * a.cost.forward_flops * 64 * 100
    assert a.run_sec == pytest.approx(640.0)
    assert c.run_sec == pytest.approx(80.0)
    assert [row.runs for row in found.rows] == [2, 2, 2]
    assert [row.row.label for row in project(study(*rows), "quick", only=["c"], seeds=5).rows] == ["c"]


def step(seconds: float, **given: object) -> StepCost:
    facts = {"device": "cpu", "processor": "A Processor", "cores": 4, "precision": "32-true", "channels_last": True}
    return StepCost(**{
        "parameters": 1000, "forward_flops": 10_000_000, "activation_bytes": 2**20, "weight_bytes": 4000,
        "gradient_bytes": 4000, "optimizer_bytes": 4000, "step_sec": seconds, "measured_batch": 64, "batch_size": 64,
        "input_shape": (1, 8, 8), "data_note": "digits", "facts": {**facts, "torch": "2.9.0"}, **given,
    })  # fmt: skip


def made(*costs: StepCost, workers: int, runs: int = 1) -> Projection:
    labels = [Row(label=f"row {k}", model="mlp2") for k in range(len(costs))]
    rows = [ProjectedRow(row=r, spec=SPEC, runs=runs, cost=c) for r, c in zip(labels, costs, strict=True)]
    return Projection(study=study(*labels), budget="paper", rows=tuple(rows), workers=workers, threads=2)


def test_hours_are_shared_by_workers_and_no_shorter_than_the_longest_run() -> None:
    assert made(step(1.0), step(3.0), workers=1, runs=5).seconds == 2000.0  # 5 × 100 s and 5 × 300 s
    assert made(step(1.0), step(3.0), workers=2, runs=5).seconds == 1000.0
    assert made(step(1.0), step(3.0), workers=4).seconds == 300.0
    assert made(step(1.0), step(3.0), workers=1, runs=5).flops == 5 * 2 * 3 * 10_000_000 * 64 * 100


def test_the_report_says_what_was_measured_and_what_was_scaled() -> None:
    plain = made(step(36.0), workers=1, runs=5)
    text = " ".join(str(plain).split())
    assert "5 runs (1 row × 5 seeds), 1 at a time, each with 2 threads: about 5.0 h and 960.0 GFLOP in all." in text
    assert "scaled up" not in text
    assert "random" not in text
    other = step(36.0, measured_batch=8, data_note="random samples of the shape of cifar10, which is not there")
    scaled = made(step(36.0), other, workers=1)
    text = " ".join(str(scaled).split())
    assert "1 of 2 rows were timed on fewer samples" in text
    assert "8 of 64" in text
    assert "Timed on random samples of the shape of cifar10, which is not there" in text
    values = scaled.to_dict()
    assert values["schema"] == "skipway.projection/1.0"
    assert values["hours"] == pytest.approx(2.0)
    assert [(r["scaled"], r["measured_batch_size"], r["hours_per_run"]) for r in values["rows"]] == [
        (False, 64, 1.0), (True, 8, 1.0),
    ]  # fmt: skip
    assert values["rows"][0]["memory_bytes"] == 2**20 + 12_000
    assert dumps(values)


def test_runs_on_record_are_not_counted(tmp_path: Path, clock: list[int]) -> None:
    results, asked = Results(tmp_path), study(Row(label="a", model="mlp2"), Row(label="b", model="plain8"))
    whole = project(asked, "quick", results=results, workers=1)
    assert (whole.runs, whole.recorded) == (4, 0)
    for seed in range(2):
        results.write_record(replace(fake.record("mlp2", seed, 9.0, 0.5), spec=replace(SPEC, model="mlp2", seed=seed)))
    rest = project(asked, "quick", results=results, workers=1)
    assert [row.runs for row in rest.rows] == [0, 2]
    assert rest.seconds == pytest.approx(2 * rest.rows[1].run_sec)
    assert "2 runs (2 rows × 2 seeds, of which 2 on record and not counted), 1 at a time" in " ".join(str(rest).split())
    assert rest.to_dict()["runs_on_record"] == 2
    for seed in range(2):
        spec = replace(SPEC, model="plain8", seed=seed)
        results.write_record(replace(fake.record("plain8", seed, 9.0, 0.5), spec=spec))
    assert project(asked, "quick", results=results).seconds == 0.0
    assert project(asked, "quick").runs == 4  # asked from Python without a folder


def test_the_command_line_counts_what_is_missing(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    list(STUDIES)
    monkeypatch.setitem(STUDIES._items, "throw-away", study(Row(label="a", model="mlp2")))
    Results(tmp_path).write_record(replace(fake.record("mlp2", 0, 9.0, 0.5), spec=replace(SPEC, model="mlp2")))
    assert main(["study", "throw-away", "--dry-run", "--results", str(tmp_path)]) == 0
    assert "1 run (1 row × 2 seeds, of which 1 on record" in " ".join(capsys.readouterr().out.split())


def test_data_that_is_not_there_is_replaced_by_random_samples_of_its_shape(tmp_path: Path, clock: list[int]) -> None:
    rows = [
        Row(label=name, model="plain8", settings=replace(SPEC, data=DataSpec(name=name, image_size=size)))
        for name, size in (("cifar10", None), ("cifar100", 16), ("imagenet", 32), ("digits", None))
    ]
    rows[-1] = replace(rows[-1], settings=SPEC)
    found = project(study(*rows[:-1]), "paper", root=str(tmp_path))
    assert [row.cost.input_shape for row in found.rows] == [(3, 32, 32), (3, 16, 16), (3, 32, 32)]
    heads = [row.cost.parameters - found.rows[0].cost.parameters for row in found.rows]
    assert heads == [0, 90 * 65, 990 * 65], "100 and 1000 classes of 64 channels and a bias"
    for row in found.rows:
        assert row.cost.data_note == f"random samples of the shape of {row.row.label}, which is not there"
    assert "random" not in project(study(rows[-1]), "quick").rows[0].cost.data_note
    with pytest.raises(SkipwayError, match="data set 'cifar1000'"):
        project(study(Row(label="a", model="plain8"), settings=replace(SPEC, data=DataSpec(name="cifar1000"))), "paper")


def test_a_model_that_is_unknown_or_does_not_fit_is_said() -> None:
    with pytest.raises(SkipwayError, match="bert_nano reads token ids"):
        project(study(Row(label="a", model="bert_nano")), "quick")
    with pytest.raises(SkipwayError, match="unknown study 'tabel3'"):
        project("tabel3", "quick")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(STUDIES))
def test_every_study_is_projected(name: str) -> None:
    found = project(name, "quick", workers=1, seeds=1)
    assert len(found.rows) == len(STUDIES[name].rows("quick"))
    assert all(row.cost.step_sec > 0 and row.cost.forward_flops > 0 for row in found.rows)
    assert str(found)


def test_a_folder_of_data_is_not_handed_to_data_without_files(tmp_path: Path, clock: list[int]) -> None:
    found = project("pre-post-norm", "quick", root=str(tmp_path), only=["pre-norm, no warm-up, 6 layers"])
    assert [row.spec.data.root for row in found.rows] == [None]

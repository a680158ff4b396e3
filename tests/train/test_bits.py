"""One spec, one result, to the bit: run twice, stopped and resumed, inspected or not, logged often or seldom."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from skipway.spec import DataSpec, RunSpec
from skipway.train.fit import resume, run_spec
from skipway.train.listen import Listener
from skipway.train.run import Run
from train.runs import ADAMW, TEXT, FromData, Noisy, lines, open_once, tiny, weights

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

CASES = {
    "bf16": tiny(precision="bf16-mixed"),
    "float32": tiny(),
    "augmented, smoothed, clipped": tiny(
        data=DataSpec(augment="crop-flip", train_size=200),
        recipe=replace(tiny().recipe, label_smoothing=0.1, clip_norm=0.5),
        steps=9,  # 288 samples: into the second epoch
    ),
    "dropout on the shortcut": tiny("resnet8@dropout_shortcut"),
    "text, AdamW, clipped": tiny("gpt_nano", data=TEXT, recipe=ADAMW, batch_size=8),
    "text, rebuilt": tiny("gpt_nano", data=TEXT, recipe=ADAMW, batch_size=8, memory="recompute"),
    "images, rebuilt": tiny("resnet8@preact", memory="recompute"),
    "text, checkpointed": tiny("gpt_nano", data=TEXT, recipe=ADAMW, batch_size=8, memory="checkpoint"),
    "dropout, checkpointed": tiny("resnet8@dropout_shortcut", memory="checkpoint"),
    "whatever fits": tiny("resnet8@preact", memory="auto"),
    "user's module, three generators": tiny("module:Noisy", recipe=ADAMW),
    "seldom logged": tiny(steps=7, log_every=5, test_every=2),
}
STOPS = (3, 0)
# The others differ from these in what is tested elsewhere: ways of dealing with memory, and how often is logged.
QUICK = (
    "bf16", "augmented, smoothed, clipped", "text, AdamW, clipped", "images, rebuilt", "dropout, checkpointed",
    "user's module, three generators",
)  # fmt: skip
TWICE = ("bf16", "user's module, three generators")


def marked(quick: Collection[str]) -> list[Any]:
    """All cases, those marked that are not quick."""
    return [pytest.param(case, marks=[] if case in quick else pytest.mark.exhaustive) for case in CASES]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory):
    """The undisturbed run of a case, made once."""
    made: dict[str, Run] = {}

    def undisturbed(case: str) -> Run:
        if case not in made:
            made[case] = start(CASES[case], tmp_path_factory.mktemp("undisturbed"))
        return made[case]

    return undisturbed


def module_of(spec: RunSpec) -> nn.Module | None:
    torch.manual_seed(5)
    return Noisy() if spec.model.startswith("module:") else None


def start(spec: RunSpec, out: Path, **how: Any) -> Run:
    how.setdefault("data", open_once(spec.data))
    return run_spec(spec, out, module=module_of(spec), **how)


def go_on(run: Run, **how: Any) -> Run:
    return resume(run.path, module=module_of(run.spec), **{"data": open_once(run.spec.data), **how})


def same(run: Run, other: Run) -> None:
    assert run.status == other.status == "finished"
    assert lines(run) == lines(other)
    assert weights(run) == weights(other)
    clock = ("seconds", "samples_per_sec")
    assert {k: v for k, v in run.result.items() if k not in clock} == {
        k: v for k, v in other.result.items() if k not in clock
    }


@pytest.mark.parametrize("case", marked(TWICE))  # what is resumed below is run again too
def test_two_runs_of_one_spec_are_one(case: str, once, tmp_path: Path) -> None:
    torch.randn(3)  # whatever was drawn before in this process
    same(start(CASES[case], tmp_path / "again"), once(case))


@pytest.mark.parametrize("at", [STOPS[0], pytest.param(STOPS[1], marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("case", marked(QUICK))
def test_stopped_and_resumed_is_undisturbed(case: str, at: int, once, tmp_path: Path) -> None:
    spec = CASES[case]
    stopped = start(spec, tmp_path / "run", data=FromData(open_once(spec.data), at))
    assert stopped.status == "stopped"
    assert not stopped.folder.weights_path.exists()
    torch.randn(11)
    same(go_on(stopped), once(case))


def test_another_seed_is_another_run(once, tmp_path: Path) -> None:
    other = start(replace(CASES["float32"], seed=1), tmp_path / "run")
    assert weights(other) != weights(once("float32"))


@pytest.mark.parametrize("every", [1, 2, 4])
def test_an_error_behind_a_checkpoint(every: int, tmp_path: Path) -> None:
    """The listener raises; what was trained behind the last checkpoint is trained again, to the same bits."""
    spec = tiny(steps=7, checkpoint_every=every, log_every=3)
    undisturbed = start(spec, tmp_path / "undisturbed")

    class Raises(Listener):
        def measured(self, line: dict[str, Any]) -> None:
            if line["step"] == 6:
                raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        start(spec, tmp_path / "run", listener=Raises())
    run = Run(tmp_path / "run")
    assert [line["step"] for line in run.metrics()] == [3, 6]
    same(go_on(run), undisturbed)


def test_stopped_three_times(tmp_path: Path) -> None:
    spec = tiny("resnet8@dropout_shortcut", steps=8, log_every=3, precision="bf16-mixed")
    undisturbed = start(spec, tmp_path / "undisturbed")
    run = start(spec, tmp_path / "run", data=FromData(open_once(spec.data), 1))
    for at in (2, 6):
        run = go_on(run, data=FromData(open_once(spec.data), at))
        assert run.status == "stopped"
    same(go_on(run), undisturbed)


def test_how_often_is_logged_saved_and_inspected_changes_no_bit(tmp_path: Path) -> None:
    spec = tiny("resnet8@dropout_shortcut")
    plain = start(spec, tmp_path / "plain")
    for name, other in {
        "inspected": replace(spec, inspect=True),
        "saved": replace(spec, checkpoint_every=1),
        "logged": replace(spec, log_every=4),
        "tested": replace(spec, test_every=1),
    }.items():
        run = start(other, tmp_path / name)
        assert weights(run) == weights(plain), name
        assert run.result["test_error"] == plain.result["test_error"]
    seen = Run(tmp_path / "inspected")
    assert (seen.inspection("start"), seen.inspection("end")) != (None, None)
    assert Run(tmp_path / "plain").inspection("end") is None


def test_a_stop_in_the_last_step_is_the_end(tmp_path: Path) -> None:
    spec = tiny()
    run = start(spec, tmp_path / "run", data=FromData(open_once(spec.data), spec.recipe.steps - 1))
    assert run.status == "finished"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_behind_its_step_and_says_how_to_go_on(number: int, heard, tmp_path: Path) -> None:
    spec = tiny(log_every=4)
    before = signal.getsignal(number)
    data = FromData(open_once(spec.data), 2, lambda: signal.raise_signal(number))
    run = start(spec, tmp_path / "run", data=data, listener=heard)
    assert heard.notes == [f"stopped at step 3; to go on: skipway train --resume {tmp_path / 'run'}"]
    assert (run.status, run.metrics()) == ("stopped", [])
    assert signal.getsignal(number) is before
    go_on(run, listener=heard)
    assert [step for step, _ in heard.starts] == [0, 3]
    assert [line["step"] for line in heard.lines] == [4, 6, 6]


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    spec = tiny(checkpoint_every=2)

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start(spec, tmp_path / "run", data=FromData(open_once(spec.data), 3, twice))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    same(go_on(Run(tmp_path / "run")), start(spec, tmp_path / "undisturbed"))


def test_the_state_of_the_precision_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the loss scale of float16 on a GPU; here the plugin of float32 is given one."""
    from lightning_fabric.plugins import Precision

    scale = {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3}
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(Precision, "state_dict", lambda self: scale)
    monkeypatch.setattr(Precision, "load_state_dict", lambda self, state: given.append(state))
    spec = tiny()
    go_on(start(spec, tmp_path / "run", data=FromData(open_once(spec.data), 2)))
    assert given == [scale]

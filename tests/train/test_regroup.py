"""Resumed on another number of processes: the losses of the undisturbed run, and words where they cannot be."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from skipway.errors import SkipwayError
from skipway.spec import DataSpec, RunSpec
from skipway.train.fit import resume, run_spec
from skipway.train.run import Run
from train.runs import ADAMW, FromData, open_once, tiny
from train.test_ranks import losses, together

if TYPE_CHECKING:
    from pathlib import Path

    from train.conftest import Heard

DRAWN = "; the net draws random numbers (dropout), which are others now, so losses differ by the draw"
STAYS = "each step has the same samples, in the same order and equally augmented"
TOKENS = tiny(
    "gpt_nano", data=DataSpec(name="reverse", test_size=101), recipe=ADAMW, batch_size=12, steps=8, accelerator="cpu",
    checkpoint_every=2, strategy="ddp",
)  # fmt: skip
IMAGES = tiny(
    "vit_tiny", data=DataSpec(augment="crop-flip"), recipe=ADAMW, batch_size=12, steps=8, accelerator="cpu",
    checkpoint_every=2, strategy="ddp",
)  # fmt: skip
CASES = {"tokens, DDP": TOKENS, "tokens, FSDP2": replace(TOKENS, strategy="fsdp2"), "augmented images, DDP": IMAGES}
PAIRS = [(1, 2), (2, 1), (2, 3), (3, 2)]


def stopped(spec: RunSpec, path: Path, *, ranks: int) -> Run:
    """A run of one process, stopped behind its third step, with the checkpoint that so many ranks would have left."""
    run = run_spec(spec, path, data=FromData(open_once(spec.data), 2))
    state = run.folder.checkpoint_path
    with safe_open(state, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(state)
    save_file({k: torch.cat([v] * ranks) if k.startswith("random/") else v for k, v in tensors.items()}, state, header)
    return run


@pytest.mark.parametrize(
    ("spec", "differs"),
    [
        (TOKENS, ""),
        (
            tiny("resnet8@dropout_shortcut"),
            DRAWN + "; BatchNorm sees 32 samples at a time, was 16, so losses differ by its statistics",
        ),
    ],
    ids=["gpt_nano", "dropout and BatchNorm"],
)
def test_what_differs_is_said(spec: RunSpec, differs: str, heard: Heard, tmp_path: Path) -> None:
    run = stopped(spec, tmp_path / "run", ranks=2)
    resume(run.path, data=open_once(spec.data), listener=heard)
    assert heard.notes == [f"goes on with 1 process, was 2: {STAYS}{differs}"]
    assert run.environment["regrouped"] == [{"step": 3, "devices": 1}]


def test_the_draw_behind_a_change_is_a_draw_of_its_own_and_the_same_each_time(tmp_path: Path) -> None:
    spec = tiny("resnet8@dropout_shortcut")
    undisturbed = run_spec(spec, tmp_path / "undisturbed", data=open_once(spec.data))
    twice = [
        resume(stopped(spec, tmp_path / name, ranks=3).path, data=open_once(spec.data)) for name in ("one", "other")
    ]
    # Not once more what was drawn at the beginning.
    assert torch.initial_seed() not in range(spec.seed, spec.seed + 3)
    assert torch.equal(losses(twice[0]), losses(twice[1]))
    assert torch.equal(losses(twice[0])[:3], losses(undisturbed)[:3])
    assert not torch.equal(losses(twice[0])[3:], losses(undisturbed)[3:])


@pytest.fixture(scope="module")
def regrouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case undisturbed on 1, 2 and 3 processes, and stopped in its fourth step and resumed by each pair."""
    folder = tmp_path_factory.mktemp("regrouped")
    for ranks in (1, 2, 3):
        jobs: list[dict[str, Any]] = []
        for case, spec in CASES.items():
            jobs.append({"name": f"{case}-{ranks}", "spec": spec})
            jobs += [
                {"name": f"{case}-{before}-{now}", "spec": spec, "stop_at": 3, "status": "stopped"}
                for before, now in PAIRS
                if before == ranks
            ]
        together(folder, *jobs, ranks=ranks)
    for ranks in (1, 2, 3):
        pairs = [pair for pair in PAIRS if pair[1] == ranks]
        jobs = [
            {"name": f"{case}-{before}-{now}", "spec": spec, "resume": True}
            for case, spec in CASES.items()
            for before, now in pairs
        ]
        together(folder, *jobs, ranks=ranks)
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize(("before", "now"), PAIRS)
@pytest.mark.parametrize("case", CASES)
def test_losses_of_the_undisturbed_run(case: str, before: int, now: int, regrouped: Path) -> None:
    undisturbed = Run(regrouped / f"{case}-{before}")
    run = Run(regrouped / f"{case}-{before}-{now}")
    assert (undisturbed.environment["devices"], run.environment["regrouped"][0]["devices"]) == (before, now)
    apart = (losses(run) - losses(undisturbed)).abs()
    print(f"{case} {before}→{now}: losses apart {apart.max():.1e}")
    assert torch.equal(apart[:4], torch.zeros(4))
    torch.testing.assert_close(losses(run), losses(undisturbed), rtol=0, atol=1e-5)
    assert run.result["test_loss"] == pytest.approx(undisturbed.result["test_loss"], abs=1e-5)
    for key, value in undisturbed.model().state_dict().items():
        torch.testing.assert_close(run.model().state_dict()[key], value, rtol=0, atol=1e-3)


@pytest.mark.exhaustive
def test_a_batch_that_cannot_be_shared_out(tmp_path: Path) -> None:
    spec = replace(TOKENS, recipe=replace(TOKENS.recipe, batch_size=16))
    together(tmp_path, {"name": "run", "spec": spec, "stop_at": 1, "status": "stopped"})
    said = together(tmp_path, {"name": "run", "spec": spec, "resume": True}, ranks=3)
    refused = [line for line in said.splitlines() if line.startswith("REFUSED")]
    assert refused == ["REFUSED run: batch_size=16 over 3 processes"] * 3
    assert Run(tmp_path / "run").status == "stopped"


def test_no_process_is_too_few(tmp_path: Path) -> None:
    run = stopped(TOKENS, tmp_path / "run", ranks=1)
    with pytest.raises(SkipwayError, match=r"^devices=0"):
        resume(run.path, devices=0)

"""Checkpoints of a sharded net: whole or not at all, and damaged ones refused. Here one process holds all rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from skipway.errors import SkipwayError
from skipway.spec import DataSpec
from skipway.train import shards
from skipway.train.fit import resume, run_spec
from skipway.train.run import Run, load_run
from train.crash import POINTS, Death, carry_on, finish, same
from train.runs import ADAMW, FromData, lines, open_once, tiny, weights

if TYPE_CHECKING:
    from pathlib import Path

    import torch

SPEC = tiny(
    "gpt_nano", data=DataSpec(name="reverse", test_size=20), recipe=ADAMW, batch_size=8, accelerator="cpu",
    checkpoint_every=2, strategy="fsdp2",
)  # fmt: skip
EXHAUSTIVE = pytest.mark.exhaustive
SHARD = "step-4-rank-0-of-1.safetensors"
# A parameter of many rows.
WEIGHT = "model/head.fc.weight"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_spec(SPEC, tmp_path_factory.mktemp("undisturbed") / "run", data=open_once(SPEC.data))


def stopped(path: Path) -> Run:
    """Stopped in its fourth step."""
    run = run_spec(SPEC, path, data=FromData(open_once(SPEC.data), 3))
    assert run.status == "stopped"
    return run


def go_on(run: Run) -> Run:
    return resume(run.path, data=open_once(SPEC.data))


def change(shard: Path, tensors: dict[str, torch.Tensor], **rows: list[int]) -> None:
    """Write a shard anew with some tensors changed, and some entries of what its metadata say about rows."""
    with safe_open(shard, framework="pt") as file:
        header = file.metadata()
    said = json.loads(header["rows"]) | rows
    save_file(load_file(shard) | tensors, shard, {**header, "rows": json.dumps(said)})


def test_stopped_and_resumed_is_undisturbed(undisturbed: Run, tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    folder = run.folder.checkpoint_path.parent
    assert {p.name for p in folder.iterdir()} == {"state.safetensors", SHARD}
    held = set(load_file(run.folder.checkpoint_path)) | set(load_file(folder / SHARD))
    assert {f"model/{key}" for key in undisturbed.model().state_dict()} <= held
    assert {f"optimizer/head.fc.weight/{name}" for name in ("exp_avg", "exp_avg_sq", "step")} <= held
    go_on(run)
    assert (lines(run), weights(run)) == (lines(undisturbed), weights(undisturbed))
    assert load_run(run.path).model().state_dict().keys() == undisturbed.model().state_dict().keys()
    assert {p.name for p in folder.iterdir()} == {"state.safetensors", "step-6-rank-0-of-1.safetensors"}


@pytest.mark.parametrize("point", ["half", *(pytest.param(p, marks=EXHAUSTIVE) for p in POINTS if p != "half")])
def test_killed_inside_the_write_of_a_shard(point: str, undisturbed: Run, tmp_path: Path) -> None:
    """The one before stays whole; so it does where the file that names the shards is not written any more."""
    path = tmp_path / "run"
    assert carry_on(SPEC, path, death=Death(SHARD, point)) == -9
    same(finish(SPEC, path), undisturbed)
    assert len(list((path / "checkpoint").iterdir())) == 2


@pytest.mark.parametrize("point", ["before", pytest.param("written", marks=EXHAUSTIVE)])
def test_killed_between_the_shards_and_the_file_that_names_them(point: str, undisturbed: Run, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert carry_on(SPEC, path, death=Death("state.safetensors", point, nth=1)) == -9
    assert (path / "checkpoint" / SHARD).exists()
    same(finish(SPEC, path), undisturbed)


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    state = run.folder.checkpoint_path
    shard = state.with_name(SHARD)
    whole = shard.read_bytes()
    weight = load_file(shard)[WEIGHT]
    rows, columns = weight.shape

    def refused() -> str:
        with pytest.raises(SkipwayError) as raised:
            go_on(run)
        shard.write_bytes(whole)
        return str(raised.value)

    shard.unlink()
    assert re.fullmatch(rf"a shard of {state} cannot be read: .*\nexpected: the files as they were written", refused())
    shard.write_bytes(whole[:-1])
    assert refused().startswith(f"a shard of {state} cannot be read: ")
    change(shard, {WEIGHT: weight[: rows // 2].clone()})
    assert refused() == (
        f"the shards hold {rows // 2} of {rows} rows of {WEIGHT}\nexpected: the files as they were written"
    )
    other = "the checkpoint is of another model: {}\nexpected: the model that the run began with"
    change(shard, {WEIGHT: weight[:, 1:].clone()})
    assert refused() == other.format(f"{WEIGHT} is {(rows, columns - 1)}, in the model {(rows, columns)}")
    change(shard, {}, **{"model/stranger": [0, 3]})
    assert refused() == other.format("it has model/stranger")
    assert go_on(run).status == "finished"


def test_shards_that_the_first_process_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on machines that share no disk."""
    monkeypatch.setattr(shards, "write_tensors", lambda *given: None)
    with pytest.raises(SkipwayError) as raised:
        run_spec(SPEC, tmp_path / "run", data=open_once(SPEC.data))
    assert str(raised.value) == (
        "the first process does not see step-2-rank-0-of-1.safetensors\n"
        f"expected: {tmp_path / 'run' / 'checkpoint'} on a disk that all share"
    )
    assert Run(tmp_path / "run").status == "begun"


def test_convolutions_are_sharded_in_the_plain_layout(tmp_path: Path) -> None:
    spec = tiny("resnet8", steps=2, strategy="fsdp2", accelerator="cpu")
    assert run_spec(spec, tmp_path / "run", data=open_once(spec.data)).environment["channels_last"] is False
    with pytest.raises(SkipwayError) as raised:
        run_spec(replace(spec, channels_last=True), tmp_path / "other", data=open_once(spec.data))
    assert str(raised.value) == (
        "--channels-last with strategy fsdp2\nexpected: contiguous weights\ntry: --channels-first, or ddp"
    )

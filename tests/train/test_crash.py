"""Killed with SIGKILL at any moment, then resumed: the same bits as if nothing had happened."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from skipway.train.folder import RunFolder
from train.crash import POINTS, Death, carry_on, finish, same
from train.runs import tiny

if TYPE_CHECKING:
    from pathlib import Path

    from skipway.spec import RunSpec
    from skipway.train.run import Run

SPEC = tiny("resnet8@dropout_shortcut", steps=6, checkpoint_every=2, log_every=3)
KILLED = -9
FILES = (
    "spec.json", "environment.json", "inspection-start.json", "state.safetensors", "model.safetensors",
    "inspection-end.json", "result.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return finish(SPEC, tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if p in ("half", "renamed") else pytest.mark.exhaustive) for p in POINTS]
)
def test_killed_inside_the_write_of_a_checkpoint(point: str, undisturbed: Run, tmp_path: Path) -> None:
    """The second of three checkpoints; the first one stays whole."""
    path = tmp_path / "run"
    assert carry_on(SPEC, path, death=Death("state.safetensors", point, nth=1)) == KILLED
    assert not RunFolder(path).finished
    same(finish(SPEC, path), undisturbed)


@pytest.mark.parametrize(
    "file",
    [
        "spec.json", "model.safetensors",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("environment.json", "result.json")),
    ],
)  # fmt: skip
def test_killed_inside_the_write_of_another_file(file: str, undisturbed: Run, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert carry_on(SPEC, path, death=Death(file, "half")) == KILLED
    same(finish(SPEC, path), undisturbed)


def test_killed_at_two_moments(tmp_path: Path) -> None:
    spec = replace(SPEC, recipe=replace(SPEC.recipe, steps=30), checkpoint_every=1)
    _killed(spec, tmp_path, kills=2, inside=0, seed=0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("file", FILES)
def test_killed_inside_every_write(file: str, point: str, tmp_path: Path) -> None:
    spec = replace(SPEC, inspect=True)
    path = tmp_path / "run"
    assert carry_on(spec, path, death=Death(file, point)) == KILLED
    same(finish(spec, path), finish(spec, tmp_path / "undisturbed"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_killed_at_twenty_moments(precision: str, tmp_path: Path) -> None:
    """A checkpoint in each step, so that some of the moments fall into the write of one."""
    spec = tiny("resnet8@dropout_shortcut", steps=150, checkpoint_every=1, log_every=7, precision=precision)
    _killed(spec, tmp_path, kills=20, inside=3, seed=1)


def _killed(spec: RunSpec, folder: Path, *, kills: int, inside: int, seed: int) -> None:
    """Kill at random moments, so many at least, and so many inside the write of a checkpoint; go on; compare.

    A stretch that was over when its moment came ends a run; the next one begins in a folder of its own.
    """
    undisturbed = finish(spec, folder / "undisturbed")
    began = time.perf_counter()
    finish(spec, folder / "timed")
    length = time.perf_counter() - began
    draw = random.Random(seed)
    done = halves = tries = 0
    run = folder / "0"
    while done < kills or halves < inside:
        tries += 1
        assert tries < 10 * kills
        code = carry_on(spec, run, after_sec=draw.uniform(0, 0.6 * length))
        assert code == KILLED or (code == 0 and RunFolder(run).finished)
        if code == KILLED:
            done += 1
            halves += (run / "checkpoint" / ".state.safetensors.new").exists()
        if RunFolder(run).finished:  # a moment may come when all is written and the process still runs
            same(finish(spec, run), undisturbed)
            run = folder / str(tries)
    same(finish(spec, run), undisturbed)

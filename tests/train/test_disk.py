"""A disk that is full: a clear error, and what was there before is whole."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skipway.errors import SkipwayError
from skipway.train.checkpoint import load_checkpoint
from skipway.train.fit import resume, run_spec
from skipway.train.metrics import MetricsFile
from skipway.train.run import Run
from train.runs import FromData, lines, open_once, tiny, weights

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = tiny(steps=6, checkpoint_every=2)
ROOM = "expected: room on the disk\ntry: free some space, then go on"
FOLDER = "expected: a folder that you may write\ntry: another folder"


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        limit(size)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    undisturbed = run_spec(SPEC, tmp_path / "undisturbed")
    path = tmp_path / "run"
    state = path / "checkpoint" / "state.safetensors"
    full = FromData(open_once(SPEC.data), 3, lambda: limit(100_000))  # the net alone has 300 kB
    with files_no_larger_than(resource.RLIM_INFINITY), pytest.raises(SkipwayError) as raised:
        run_spec(SPEC, path, data=full)
    assert str(raised.value) == (f"cannot write {state}: no space left; what was there before is whole\n{ROOM}")
    assert load_checkpoint(state).position.step == 2
    assert [p.name for p in state.parent.iterdir()] == ["state.safetensors"]
    run = resume(path)
    assert (weights(run), lines(run)) == (weights(undisturbed), lines(undisturbed))


def test_metrics_that_do_not_fit(tmp_path: Path) -> None:
    undisturbed = run_spec(SPEC, tmp_path / "undisturbed")
    path = tmp_path / "run"
    metrics = path / "metrics.jsonl"
    full = FromData(open_once(SPEC.data), 3, lambda: limit(metrics.stat().st_size + 20))
    with files_no_larger_than(resource.RLIM_INFINITY), pytest.raises(SkipwayError) as raised:
        run_spec(SPEC, path, data=full)
    assert str(raised.value) == (f"cannot write {metrics}: no space left; what was there before is whole\n{ROOM}")
    # The line that did not fit is cut off in the middle; whoever reads leaves it out.
    assert not metrics.read_text().endswith("\n")
    assert [line["step"] for line in Run(path).metrics()] == [1, 2, 3]
    run = resume(path)
    assert (weights(run), lines(run)) == (weights(undisturbed), lines(undisturbed))


def test_the_command_line_says_it_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from skipway.cli import main

    monkeypatch.chdir(tmp_path)
    command = ["train", "resnet8", "--steps", "4", "--batch", "32", "--threads", "1", "--no-inspect", "--out", "run"]
    with files_no_larger_than(100_000):
        code = main(command)
    out, err = capsys.readouterr()
    assert code == 2
    assert err.endswith("error: cannot write run/checkpoint/state.safetensors: no space left\n" + ROOM + "\n")
    assert "Traceback" not in out + err


@pytest.mark.exhaustive
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """On a file system of 1 MB, where this is permitted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(  # noqa: S603  # our own command
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],  # noqa: S607  # wherever the system has it
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("no permission to mount a file system")
    try:
        path = disk / "run"
        # The first checkpoint of 600 kB fits, the second one does not fit beside it.
        with pytest.raises(SkipwayError, match="no space left; what was there before is whole"):
            run_spec(SPEC, path)
        assert load_checkpoint(path / "checkpoint" / "state.safetensors").position.step == 2
    finally:
        subprocess.run(["umount", str(disk)], check=True)  # noqa: S603, S607  # as above


def test_a_line_longer_than_what_is_left_is_written_in_pieces(tmp_path: Path, monkeypatch) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    inner = file._file

    class Slow:
        def write(self, data: bytes) -> int:
            return inner.write(data[:3])

    file._file = Slow()  # type: ignore[assignment]
    file.write({"step": 1, "loss": 0.5})
    inner.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 0.5}\n'


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
def test_what_the_system_refuses_is_said(number: int, tmp_path: Path, monkeypatch) -> None:
    """No permission, a read-only disk …: root may write anywhere, so the system's answer is made up here."""

    def refuse(self: Path, *args: object, **how: object) -> None:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    path = tmp_path / "run"
    with pytest.raises(SkipwayError) as raised:
        run_spec(SPEC, path)
    said = {
        errno.EACCES: f"Permission denied\n{FOLDER}",
        errno.EROFS: f"Read-only file system\n{FOLDER}",
        errno.ENOSPC: f"no space left\n{ROOM}",
        errno.EDQUOT: f"no space left\n{ROOM}",
    }
    assert str(raised.value) == f"cannot write {path}: {said[number]}"


def test_metrics_cut_back_before_anything_new_is_written(tmp_path: Path) -> None:
    """Killed with a line behind the checkpoint, resumed, stopped before the next line, resumed again."""
    spec = tiny(steps=9, log_every=6, checkpoint_every=4)
    undisturbed = run_spec(spec, tmp_path / "undisturbed")

    def fail() -> None:
        raise RuntimeError("no more")

    path = tmp_path / "run"
    with pytest.raises(RuntimeError, match="no more"):
        run_spec(spec, path, data=FromData(open_once(spec.data), 7, fail))
    assert [line["step"] for line in Run(path).metrics()] == [6]
    assert resume(path, data=FromData(open_once(spec.data), 4)).status == "stopped"
    assert load_checkpoint(path / "checkpoint" / "state.safetensors").position.metrics_bytes == 0
    assert lines(resume(path)) == lines(undisturbed)


def test_metrics_that_somebody_shortened(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run_spec(SPEC, path, data=FromData(open_once(SPEC.data), 2))
    metrics = path / "metrics.jsonl"
    size = metrics.stat().st_size
    metrics.write_text("")
    with pytest.raises(SkipwayError) as raised:
        resume(path)
    assert str(raised.value) == (
        f"{metrics} has 0 bytes, the checkpoint saw {size}\nexpected: the file as it was written"
    )


def test_metrics_that_somebody_edited(tmp_path: Path) -> None:
    run = run_spec(SPEC, tmp_path / "run")
    run.folder.metrics_path.write_text('{"step": 1}\nhello\n')
    with pytest.raises(SkipwayError, match=r"metrics\.jsonl holds a line that is no JSON: Expecting value"):
        run.metrics()

"""Worker processes that are killed or told to stop, and the report that needs no torch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import skipway
from skipway.study.compare import resume_comparison

sys.path.insert(0, str(Path(__file__).parent))
import made


class Acts(made.Heard):
    """Does something once, as soon as the first run that is under way has a file.

    Args:
        out: folder of the comparison.
        file: name of the file in the run's folder.
        act: is given `out` and the name of the run.
    """

    def __init__(self, out: Path, file: str, act) -> None:
        super().__init__()
        self._out, self._file, self._act = out, file, act

    def moved(self, states) -> None:
        super().moved(states)
        for state in states:
            model, _, seed = state.name.split()
            path = self._out / model / f"seed-{seed}" / self._file
            if self._act is not None and state.status == "running" and path.exists() and path.stat().st_size:
                act, self._act = self._act, None
                act(self._out, state.name)


def kill_worker(out: Path, name: str) -> None:
    log = (out / "logs" / f"{name.replace(' ', '-')}.txt").read_text()
    os.kill(int(re.findall(r"process (\d+)", log)[0]), signal.SIGKILL)


def press_ctrl_c(_out: Path, _name: str) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_worker_that_is_killed_takes_nothing_with_it(
    tmp_path: Path, in_process_later, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the first run is seen long before it is over.
    monkeypatch.setattr("skipway.study.jobs.pool._GLANCE_SEC", 0.02)
    out = tmp_path / "c"
    heard = Acts(out, "spec.json", kill_worker)
    # One worker: the killed run is the first, and the second runs in a new process.
    found = skipway.compare(
        ["resnet8", "plain8"], out=out, seeds=1, workers=1, listener=heard, steps=40, batch_size=16, threads=1
    )
    assert [s.status for s in heard.states] == ["died", "finished"]
    _, trouble = heard.notes
    assert trouble == (
        "resnet8 seed 0 died: its process was killed (short of memory?)\n"
        f"    its log: {out / 'logs' / 'resnet8-seed-0.txt'}"
    )
    assert found.missing == [("resnet8", 0)]
    assert not (out / "report.html").exists()
    in_process_later()
    assert resume_comparison(out).complete
    assert (out / "report.html").exists()


def test_ctrl_c_stops_behind_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "c"
    heard = Acts(out, "metrics.jsonl", press_ctrl_c)
    found = skipway.compare(
        ["resnet8", "plain8"], out=out, seeds=1, workers=1, listener=heard, steps=2000, batch_size=16, threads=1
    )
    assert heard.stops == 1
    assert [s.status for s in heard.states] == ["stopped", "waiting"]
    assert found.runs["resnet8"][0].status == "stopped"
    assert found.missing == [("resnet8", 0), ("plain8", 0)]
    assert f"To go on: skipway compare --resume {out}" in found.to_dict()["answer"][0]
    # This process is as it was: its own Ctrl-C works.
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        "from skipway.study.jobs.worker import check_not_importing\n"
        "check_not_importing()\n"
        "worker = multiprocessing.get_context('spawn').Process(target=print)\n"
        "worker.start()\n"
        "worker.join()\n"
        "print('the worker ended with', worker.exitcode)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603  # our own script
    assert "the worker ended with 1" in done.stdout
    assert "a worker process imports your script, and the script starts a comparison again" in done.stderr
    assert 'try: if __name__ == "__main__": skipway.compare(…)' in done.stderr

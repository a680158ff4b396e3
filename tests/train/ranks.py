"""Runs of several processes: each job is a run to begin, to stop or to go on with, by all ranks together.

torchrun --nproc-per-node 2 ranks.py FOLDER JOBS.json, or the same without torchrun for specs with several devices.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from functools import partial
from pathlib import Path

from skipway.errors import SkipwayError
from skipway.spec import RunSpec
from skipway.train import watch
from skipway.train.fit import resume, run_spec
from train.runs import FromData, open_once


def suffer(strike: dict) -> None:
    """A signal, or a disk with room for so many bytes a file."""
    if "signal" in strike:
        os.kill(os.getpid(), strike["signal"])
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (strike["file_size"], resource.RLIM_INFINITY))


def main(folder: Path, jobs: list[dict]) -> None:
    for job in jobs:
        path = folder / job["name"]
        watch.SILENT_BEATS = job.get("silent_beats", watch.SILENT_BEATS)
        spec = RunSpec.from_dict(job["spec"])
        data = open_once(spec.data)
        if "stop_at" in job:
            data = FromData(data, job["stop_at"])
        strike = job.get("strike")
        if strike and int(os.environ.get("LOCAL_RANK", "0")) == strike["rank"]:
            data = FromData(data, strike["at"], partial(suffer, strike))
        try:
            run = resume(path, data=data) if job.get("resume") else run_spec(spec, path, data=data)
        except SkipwayError as error:
            # The line with its end in one write: both ranks write to one pipe.
            print(f"REFUSED {job['name']}: {error.given}\n", end="", flush=True)
            if strike:
                sys.exit(2)
            continue
        assert run.status == job.get("status", "finished"), run.status


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))

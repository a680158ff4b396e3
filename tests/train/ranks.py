"""Runs under ``torchrun``: each job is a run to begin, to stop or to go on with, by all ranks together.

torchrun --nproc-per-node 2 ranks.py FOLDER JOBS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skipway.errors import SkipwayError
from skipway.spec import RunSpec
from skipway.train.fit import resume, run_spec
from train.runs import FromData, open_once


def main(folder: Path, jobs: list[dict]) -> None:
    for job in jobs:
        path = folder / job["name"]
        spec = RunSpec.from_dict(job["spec"])
        data = open_once(spec.data)
        if "stop_at" in job:
            data = FromData(data, job["stop_at"])
        try:
            run = resume(path, data=data) if job.get("resume") else run_spec(spec, path, data=data)
        except SkipwayError as error:
            # The line with its end in one write: both ranks write to one pipe.
            print(f"REFUSED {job['name']}: {error.given}\n", end="", flush=True)
            continue
        assert run.status == job.get("status", "finished"), run.status


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))

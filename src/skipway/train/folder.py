"""The run folder: what a training writes, where, and how nothing is left half-written.

DIR/spec.json                what was asked for
DIR/environment.json         what it ran on and with, and the data's fingerprint
DIR/inputs.safetensors       of images: size, mean and deviation with which inputs are made of them
DIR/metrics.jsonl            one line each `log_every` steps, and one for each test
DIR/inspection-start.json    the net before the first step
DIR/checkpoint/state.safetensors   everything needed to go on; where the net is sharded, beside the shards it names
DIR/inspection-end.json      the net behind the last step
DIR/model.safetensors        final weights
DIR/result.json              the last thing written: a run with it is over
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from skipway.errors import SkipwayError
from skipway.report.files import beside, write_json, writing
from skipway.spec import RunSpec
from skipway.train.kept import check_environment, check_line, check_result

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RunFolder", "read_json", "there"]


class RunFolder:
    """Paths and files of one run.

    Args:
        path: the folder; need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec_path = self.path / "spec.json"
        self.environment_path = self.path / "environment.json"
        self.inputs_path = self.path / "inputs.safetensors"
        self.metrics_path = self.path / "metrics.jsonl"
        self.checkpoint_path = self.path / "checkpoint" / "state.safetensors"
        self.weights_path = self.path / "model.safetensors"
        self.result_path = self.path / "result.json"

    def inspection_path(self, when: str) -> Path:
        """Where the inspection at the ``"start"`` or the ``"end"`` lies."""
        return self.path / f"inspection-{when}.json"

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return there(self.result_path)

    def check_free(self, spec: RunSpec) -> None:
        """Whether a new run may begin here.

        Raises:
            SkipwayError: it holds another run, the same run, or something else.
        """
        if there(self.spec_path):
            same = self.read_spec() == spec
            what = "this very run" if same else "another run"
            state = "finished" if self.finished else "not finished"
            hint = self.go_on(spec) if same and not self.finished else "another folder: --out, or out= in Python"
            raise SkipwayError(f"{self.path} holds {what}, {state}", "an empty or new folder", hint)
        # A process killed in its first moments leaves these behind.
        own = {".lock", beside(self.spec_path).name}
        if self.path.is_dir() and any(p.name not in own for p in self.path.iterdir()):
            raise SkipwayError(f"{self.path} is not empty and holds no run", "an empty or new folder", "another --out")

    def go_on(self, spec: RunSpec) -> str:
        """What to type to go on with the run; of a module, which the command line has not, in Python."""
        if spec.model.startswith("module:"):
            return f"skipway.resume({str(self.path)!r}, module={spec.model.removeprefix('module:')}(…))"
        return f"skipway train --resume {self.path}"

    def begin(self, spec: RunSpec, facts: dict[str, Any]) -> None:
        """Write what is asked for, and on what it runs; done when nothing can be refused any more.

        Raises:
            SkipwayError: the folder cannot be written.
        """
        write_json(self.spec_path, spec.to_dict())
        write_json(self.environment_path, facts)

    def read_spec(self) -> RunSpec:
        """What was asked for.

        Raises:
            SkipwayError: no run lies there, or one of another version.
        """
        if not there(self.spec_path):
            raise SkipwayError(f"no run in {self.path}", "a folder with spec.json, as skipway train writes it")
        values = read_json(self.spec_path)
        try:
            return RunSpec.from_dict(values)
        except SkipwayError as error:
            raise SkipwayError(f"{self.spec_path}: {error.given}", error.expected, error.hint) from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of the metrics; a last line that was cut off is left out.

        Raises:
            SkipwayError: another line is no JSON, or says no step.
        """
        if not there(self.metrics_path):
            return []
        try:
            lines = self.metrics_path.read_text(encoding="utf-8").split("\n")
            return [check_line(self.metrics_path, json.loads(line)) for line in lines[:-1]]
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise SkipwayError(
                f"{self.metrics_path} holds a line that is no JSON: {error}", "the file as it was written"
            ) from None

    def read_result(self) -> dict[str, Any]:
        """How it ended.

        Raises:
            SkipwayError: it has not, or the file does not say how.
        """
        values = read_json(self.result_path)
        check_result(self.result_path, values)
        return values

    def read_environment(self) -> dict[str, Any]:
        """What it ran on and with.

        Raises:
            SkipwayError: there is no such file, or it does not say so.
        """
        values = read_json(self.environment_path)
        check_environment(self.environment_path, values)
        return values

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the system lets go of it however the process ends.

        Raises:
            SkipwayError: another process holds it.
        """
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise SkipwayError(
                    f"another process trains in {self.path}", "one process for each run", "wait, or another --out"
                ) from None
        try:
            yield
        finally:
            lock.release()


def there(path: Path) -> bool:
    """Whether a file exists.

    Raises:
        SkipwayError: the system does not tell, as where its name is too long or a folder may not be read.
    """
    try:
        return path.exists()
    except OSError as error:
        raise SkipwayError(f"cannot look for {path}: {error.strerror or error}", "a folder that you may read") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        SkipwayError: it is missing or holds no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SkipwayError(f"{path} is missing", "a whole run folder") from None
    except OSError as error:
        raise SkipwayError(f"cannot read {path}: {error.strerror or error}", "a file that you may read") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SkipwayError(f"{path} holds no JSON: {error}", "the file as it was written") from None
    if not isinstance(value, dict):
        raise SkipwayError(f"{path} holds a {type(value).__name__}", "a JSON object")
    return value

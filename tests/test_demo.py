"""The demo shows what it says: nets side by side, what stands on their streams, and what was found."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skipway.study.jobs.worker import carry_out

if TYPE_CHECKING:
    from types import ModuleType

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


@pytest.fixture
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demo_in_small(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "skipway.study.jobs.pool.run_jobs", lambda jobs, **_: {job: carry_out(job) for job in jobs}
    )  # in this process, which has torch already
    monkeypatch.setattr("skipway.study.jobs.speed.cores", lambda: 1)
    assert demo.main(("plain8", "resnet8"), out=tmp_path / "demo", steps=4, seeds=1) == 0
    out = capsys.readouterr().out
    assert "━━ skipway compare plain8 resnet8 ━━" in out
    assert "━━ the stream of resnet8, before the first step ━━" in out
    assert re.search(r"▽ +stack\.units\.0 +ReLU\( x \+ A\(x\) \)", out)
    last = out.split("━━ what was found ━━\n")[1]
    assert re.search(
        r"^resnet8 makes \d+\.\d\d points (fewer|more) test errors than plain8, with one seed", last, re.MULTILINE
    )
    assert f"report: {tmp_path / 'demo' / 'report.html'} · " in last
    assert (tmp_path / "demo" / "report.html").exists()
    # A second call tells it again.
    assert demo.main(("plain8", "resnet8"), out=tmp_path / "demo", steps=4, seeds=1) == 0
    assert "0 runs to do · 2 finished before and reused" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_demo(demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(out=tmp_path / "demo") == 0
    found = capsys.readouterr().out.split("━━ what was found ━━\n")[1]
    assert "resnet56 is better than plain56 by" in found
    assert "resnet56@preact is better than plain56 by" in found

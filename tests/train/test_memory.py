"""``--memory auto``: what was chosen is said, written down, and kept when the run goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from skipway.models import memory
from skipway.train.fit import resume, run_spec
from train.runs import FromData, open_once, tiny, weights

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from train.conftest import Heard


def test_auto_is_said_and_a_resumed_run_goes_on_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: Heard
) -> None:
    spec = tiny("resnet8@preact", memory="auto")
    data = open_once(spec.data)
    monkeypatch.setattr(memory, "free_bytes", lambda _: 0)
    cut = run_spec(spec, tmp_path / "cut", data=FromData(data, 3), listener=heard)
    assert cut.status == "stopped"
    assert cut.environment["memory"] == "recompute"  # the smallest, for a net of three units
    assert heard.notes[0].startswith("memory: recompute, for 32 samples on 0 B (keep ")
    assert "not even that is expected to fit" in heard.notes[0]
    told = len(heard.notes)
    monkeypatch.setattr(memory, "free_bytes", lambda _: 2**40)
    again = resume(cut.path, data=data, listener=heard)
    assert again.status == "finished"
    assert not any(note.startswith("memory:") for note in heard.notes[told:])
    assert again.environment["memory"] == "recompute"
    whole = run_spec(replace(spec, memory="recompute"), tmp_path / "whole", data=data)
    assert "memory" not in whole.environment
    assert weights(again) == weights(whole)
    plenty = run_spec(spec, tmp_path / "plenty", data=data, listener=heard)
    assert plenty.environment["memory"] == "keep"

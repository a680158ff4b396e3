"""The demo shows what it says: the same layers, one flag, and what differs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import pytest

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        runpy.run_path(str(DEMO), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "skipway · tv:resnet50\n16 residual units, each proved" in out
    assert out.count("120 residual units, each proved") == 2
    post, pre = row(out, "cosine of tokens, first → last")
    assert post[1] > 0.99  # behind 60 post-norm layers all tokens are alike
    assert pre[1] < 0.9
    post, pre = row(out, "loss, 30 steps of Adam")
    assert post[1] > 5.4  # ln 256 = 5.55: nothing was learnt
    assert pre[1] < 4.5


def row(out: str, name: str) -> list[tuple[float, float]]:
    """First and last value in both columns of the closing table."""
    (line,) = [line for line in out.splitlines() if line.strip().startswith(name)]
    pairs = re.findall(r"([\d.e-]+) → ([\d.e-]+)", line.replace(name, ""))
    return [(float(first), float(last)) for first, last in pairs]

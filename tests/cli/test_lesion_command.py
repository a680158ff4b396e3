"""`skipway lesion` on the command line: what goes to standard output, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from skipway.cli import main

if TYPE_CHECKING:
    from pathlib import Path

NOISY = """
import torch
from torch import nn

print("loading")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x):
        print("running")
        return x + self.branch(x)

def make():
    print("building")
    net = nn.Sequential(*(Block() for _ in range(3)))
    net.example_input_array = torch.zeros(2, 8)
    return net
"""


def test_a_model_that_prints_does_not_spoil_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "noisy.py"
    file.write_text(NOISY, encoding="utf-8")
    assert main(["lesion", f"{file}:make", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["units"]) == 3
    for said in ("loading", "building", "running"):
        assert said in err
    # Without --json it prints where it likes.
    assert main(["lesion", f"{file}:make"]) == 0
    assert "building" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["²", "1-²", "each,²", "٣"])
def test_digits_that_are_no_numbers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lesion", "mlp2", "--delete", text]) == 3
    assert capsys.readouterr().err == (
        f"error: --delete: {text.rpartition(',')[2]!r} is no number\nexpected: each, a number, a range or paths\n"
        "try: --delete each,1-10\n"
    )

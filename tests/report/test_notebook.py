"""What a notebook shows: the terminal report as HTML, every name in it as text."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import skipway


def test_an_inspection_shows_itself_in_a_notebook() -> None:
    inspection = skipway.inspect(nn.Sequential(nn.Linear(4, 4)), torch.randn(2, 4), structure_only=True)
    hostile = replace(inspection, model="<img src=x onerror=alert(1)>")
    shown = hostile._repr_mimebundle_(include=[], exclude=[])["text/html"]
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown
    assert "<img" not in shown
    assert "NO RESIDUAL UNITS FOUND" in shown

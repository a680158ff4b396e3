"""Fixtures of the training tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from skipway.train.listen import Listener

if TYPE_CHECKING:
    from skipway.spec import RunSpec


class Heard(Listener):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, str]] = []
        self.lines: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.results: list[dict[str, Any]] = []

    def started(self, spec: RunSpec, *, step: int, facts: str) -> None:
        self.starts.append((step, facts))

    def measured(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def ended(self, result: dict[str, Any]) -> None:
        self.results.append(result)


@pytest.fixture
def heard() -> Heard:
    return Heard()

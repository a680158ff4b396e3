"""Which commit a criterion is from."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from skipway.study.records import provenance
from skipway.study.records.provenance import keyword_commit

if TYPE_CHECKING:
    from pathlib import Path

TEXT = 'claim(\n    "one",\n    words="{words}",\n    criterion="{first} "\n    "{second}",\n)\n'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(provenance, "_SOURCE", tmp_path)
    git(tmp_path, "init", "-q")
    return tmp_path


def git(folder: Path, *arguments: str, when: int = 0) -> str:
    date = f"2026-01-01T00:00:{when:02}+00:00"
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in (
        ("NAME", "n"), ("EMAIL", "e@example.org"), ("DATE", date))}  # fmt: skip
    done = subprocess.run(  # noqa: S603  # arguments of this file
        ["git", "-C", str(folder), "-c", "commit.gpgsign=false", *arguments],  # noqa: S607  # git, wherever it is
        capture_output=True, text=True, check=True, env={**os.environ, **who},
    )  # fmt: skip
    return done.stdout.strip()


def commit(folder: Path, when: int) -> str:
    git(folder, "add", "claim.py")
    git(folder, "commit", "-qm", "x", when=when)
    return git(folder, "rev-parse", "HEAD")[:10]


def test_the_commit_of_a_criterion_is_the_newest_among_its_lines(repository: Path) -> None:
    file = repository / "claim.py"
    file.write_text(TEXT.format(words="a", first="holds if", second="so"))
    assert keyword_commit(file, "criterion") == ""  # not committed yet
    assert keyword_commit(file, "conclusion") == ""
    first = commit(repository, 1)
    file.write_text(TEXT.format(words="other words", first="holds if", second="so"))
    commit(repository, 2)
    assert keyword_commit(file, "criterion") == first
    file.write_text(TEXT.format(words="other words", first="holds if", second="not so"))
    assert keyword_commit(file, "criterion") == first + "+"
    third = commit(repository, 3)
    assert keyword_commit(file, "criterion") == third
    file.write_text(TEXT.format(words="words again", first="holds if", second="not so"))
    assert keyword_commit(file, "criterion") == third

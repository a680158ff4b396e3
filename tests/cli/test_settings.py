"""Findings that are known or not wanted: by option, by pyproject.toml, by a baseline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from skipway.cli import main

if TYPE_CHECKING:
    from pathlib import Path

NET = "mlp40@plain"
STRICT = ["inspect", NET, "--fail-on", "warning"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_project_leaves_rules_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, *STRICT)[0] == 1
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.skipway]\nignore = ["missing-shortcut", "gradient-vanishing"]\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path / "deep" / "er")
    code, out, _ = told(capsys, *STRICT)
    assert code == 0
    assert "no findings" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ignore = ["missing-shortcuts"]', "did you mean 'missing-shortcut'"),
        ("ignore = 'missing-shortcut'", 'a list of rule ids: ignore = ["norm-after-add"]'),
        ("ignored = []", "did you mean 'ignore'"),
        ("ignore = [", "is no TOML"),
    ],
)
def test_settings_that_are_not_understood(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.skipway]\n{text}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, err = told(capsys, *STRICT)
    assert code == 3
    assert not out
    assert words in err
    assert "pyproject.toml" in err


@pytest.mark.parametrize(("text", "given"), [("tool = 1", "tool = 1"), ("[tool]\nskipway = 3", "skipway = 3")])
def test_settings_that_are_no_table(
    text: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, err = told(capsys, *STRICT)
    assert (code, out) == (3, "")
    assert f"{given} in {tmp_path / 'pyproject.toml'}\nexpected: a table: [tool.skipway]" in err


def test_known_findings_fail_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "known.json"
    report = told(capsys, "inspect", NET, "--json")[1]
    file.write_text(report, encoding="utf-8")
    code, out, _ = told(capsys, *STRICT, "--baseline", str(file))
    assert code == 0
    assert "no findings" in out
    assert "2 findings (missing-shortcut, gradient-vanishing)" in " ".join(out.split())
    # One of the two is new: it fails, and JSON still holds both, to be the next baseline.
    held = json.loads(report)
    held["findings"] = held["findings"][1:]
    file.write_text(json.dumps(held), encoding="utf-8")
    code, out, _ = told(capsys, *STRICT, "--baseline", str(file), "--json")
    assert code == 1
    assert [f["rule"] for f in json.loads(out)["findings"]] == ["missing-shortcut", "gradient-vanishing"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("{", "is no report of an inspection"),
        ('{"schema": "other"}', "is no report of an inspection"),
        ("[]", "is no report of an inspection: it holds list, no object"),
        ("3", "it holds int, no object"),
        ('"x"', "it holds str, no object"),
        ("null", "it holds NoneType, no object"),
        ("odd units", "is no report of an inspection"),
        ("another", "is the report of mlp40@post_act"),
    ],
)
def test_a_baseline_that_is_none(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "known.json"
    if content == "another":
        content = told(capsys, "inspect", NET, "--json")[1].replace(f'"{NET}"', '"mlp40@post_act"')
    if content == "odd units":
        content = json.dumps(json.loads(told(capsys, "inspect", NET, "--json")[1]) | {"units": 3})
    if content is not None:
        file.write_text(content, encoding="utf-8")
    code, out, err = told(capsys, *STRICT, "--baseline", str(file))
    assert code == 3
    assert not out
    assert words in " ".join(err.split())
    assert f"skipway inspect {NET} --json >" in err

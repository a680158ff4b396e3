"""The README runs: its Python, its commands, and the output that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from skipway.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def masked(text: str) -> str:
    """Everything but the measured numbers and the spaces that align them."""
    return re.sub(r" +", " ", re.sub(r"-?\d[\d.]*(e-?\d+)?(→-?\d[\d.]*(e-?\d+)?)?%?", "#", text))


def test_it_opens_with_the_two_commands() -> None:
    first = [line.strip() for line in README.splitlines() if line.startswith("    ")][:2]
    assert [line.split("#")[0].strip() for line in first] == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("install", "demo", "test", "test-all", "lint"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_twenty_lines_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip() and not line.startswith("#")]) <= 20
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102  # this is the test
    out = capsys.readouterr().out
    # What the comments promise is what is printed.
    promised = re.findall(r"print\(.*\)  # (.*)", code)
    assert len(promised) == 3
    for text in promised:
        assert f"{text}\n" in out
    assert "9 residual units, each proved" in out
    assert "0 findings" in out


@pytest.mark.parametrize("session", blocks("console"), ids=lambda s: s.split("\n")[0])
def test_the_output_shown_is_the_output(session: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, shown = session.rstrip().split("\n", 1)
    assert main(shlex.split(command.removeprefix("$ skipway "))) == 0
    printed = capsys.readouterr().out.rstrip()
    assert len(printed.split("\n")) <= 40
    assert max(map(len, printed.split("\n"))) <= 100
    assert masked(printed) == masked(shown)


@pytest.mark.parametrize("block", blocks("bash"), ids=lambda block: block.split("\n")[0])
def test_commands(
    block: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one block run one after the other in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for command in block.strip().split("\n"):
        if "completion" in command:
            continue
        program, *arguments = shlex.split(command)
        assert program == "skipway"
        assert main(arguments) == 0, command
        assert capsys.readouterr().out


def test_files_that_it_names_are_there() -> None:
    for name in re.findall(r"\]\((\w+\.md)\)", README):
        assert (ROOT / name).is_file()
    assert (ROOT / "src" / "skipway" / "report" / "schema" / "inspection-1.0.json").is_file()


def test_every_limitation_names_a_test_that_is_there() -> None:
    rows = [line for line in (ROOT / "LIMITATIONS.md").read_text(encoding="utf-8").splitlines() if "::" in line]
    assert len(rows) > 10
    for row in rows:
        path, name = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)[0]
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")

"""The pages under docs/ run: every command gives the output that is shown, but for measured numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from skipway.cli import main
from test_readme import masked

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def sessions() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [(page.name, block) for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]
    return found


@pytest.mark.parametrize(("page", "session"), sessions(), ids=lambda s: s.split("\n")[0])
def test_the_output_shown_is_the_output(
    page: str, session: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command, shown = session.rstrip().split("\n", 1)
    assert main(shlex.split(command.removeprefix("$ skipway "))) in (0, 1), page
    assert masked(capsys.readouterr().out.rstrip()) == masked(shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page run one after the other, as a reader would type them."""
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, page.name, "exec"), names)  # noqa: S102  # this is the test

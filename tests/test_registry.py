"""The registry fills itself from the files of a package."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from skipway.errors import UnknownNameError
from skipway.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose files register an item each; one private file would fail if it were imported."""
    root = tmp_path / "fruitbowl"
    root.mkdir()
    head = "from skipway.registry import Registry\nFRUIT = Registry('fruit', 'fruitbowl')\n"
    (root / "__init__.py").write_text(head)
    for name in ("apple", "pear"):
        (root / f"{name}.py").write_text(f"from fruitbowl import FRUIT\nFRUIT.add({name!r}, {len(name)})\n")
    (root / "_private.py").write_text(textwrap.dedent("raise RuntimeError('private files are not imported')\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "fruitbowl"
    for module in [m for m in sys.modules if m.split(".")[0] == "fruitbowl"]:
        del sys.modules[module]


def fruit(package: str) -> Registry[int]:
    return __import__(package).FRUIT


def test_siblings_are_found(package: str) -> None:
    assert dict(fruit(package)) == {"apple": 5, "pear": 4}
    assert "apple" in fruit(package)
    assert len(fruit(package)) == 2


def test_names_follow_a_pattern(package: str) -> None:
    assert fruit(package).names() == ["apple", "pear"]
    assert fruit(package).names("p*") == ["pear"]


def test_nothing_is_imported_before_the_first_look(package: str) -> None:
    fruit(package)
    assert "fruitbowl.apple" not in sys.modules


def test_an_unknown_name_is_answered(package: str) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown fruit 'aple'\nexpected: did you mean 'apple'\?"):
        fruit(package)["aple"]


def test_a_name_is_given_once(package: str) -> None:
    registry = fruit(package)
    assert registry["apple"] == 5
    with pytest.raises(KeyError, match="fruit 'apple' is registered twice"):
        registry.add("apple", 1)


def test_a_file_that_fails_to_import_fails_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a registry would answer 'unknown name' where the truth is a broken file."""
    package = tmp_path / "half_broken"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("raise RuntimeError('this file is broken')")
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry[int] = Registry("thing", "half_broken")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="this file is broken"):
            list(registry)

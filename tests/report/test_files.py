"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from typing import TYPE_CHECKING

import pytest

from skipway.errors import SkipwayError
from skipway.parts import Text
from skipway.report import write_html
from skipway.report.files import check_target, write_text

if TYPE_CHECKING:
    from pathlib import Path


def test_written_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    assert write_text(str(target), "one λ\n") == target
    assert target.read_bytes() == "one λ\n".encode()
    write_text(target, "two")
    assert target.read_text(encoding="utf-8") == "two"
    assert list(tmp_path.iterdir()) == [target]


def test_others_may_read_it_as_any_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a", "x")
        assert os.umask(0o022) == 0o022  # the mask is as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.html"
    target.write_text("old", encoding="utf-8")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SkipwayError) as refused:
        write_html(target, [Text(text="new")], title="t")
    assert str(refused.value) == (
        f"{target} cannot be written: No space left on device\nexpected: a file in a folder that can be written to"
    )
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_new_file_takes_the_old_one_s_place_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.html"
    target.write_text("old", encoding="utf-8")

    def failing(_self: Path, _target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(type(target), "replace", failing)
    with pytest.raises(SkipwayError, match="cannot be written: Input/output error"):
        write_text(target, "new")
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("use", [check_target, lambda path: write_text(path, "x")])
def test_refusals(use, tmp_path: Path) -> None:
    with pytest.raises(SkipwayError) as folder:
        use(tmp_path)
    assert str(folder.value) == f"{tmp_path} is a folder\nexpected: the name of a file\ntry: {tmp_path}/report.html"
    with pytest.raises(SkipwayError) as missing:
        use(tmp_path / "no" / "a.html")
    assert str(missing.value) == (
        f"{tmp_path}/no/a.html cannot be written: there is no folder {tmp_path}/no\n"
        f"expected: an existing folder\ntry: mkdir -p {tmp_path}/no"
    )


def test_what_is_no_page_is_not_overwritten(tmp_path: Path) -> None:
    spec, page = tmp_path / "spec.json", tmp_path / "report.html"
    spec.write_text("{}", encoding="utf-8")
    page.write_text("<!DOCTYPE html><title>old</title>", encoding="utf-8")
    check_target(page)
    with pytest.raises(SkipwayError) as refused:
        check_target(spec)
    assert str(refused.value) == (
        f"{spec} holds something that is no HTML page, and would be lost\n"
        f"expected: a new file, or an old report\ntry: {tmp_path}/spec.html"
    )


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path and mode == os.W_OK))
    with pytest.raises(SkipwayError) as refused:
        check_target(tmp_path / "a.html")
    assert str(refused.value).startswith(f"{tmp_path}/a.html cannot be written: no permission to write in its folder")

    def denied(**_where: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", denied)
    with pytest.raises(SkipwayError) as denied_late:
        write_text(tmp_path / "a.html", "x")
    assert str(denied_late.value).startswith(f"{tmp_path}/a.html cannot be written: Permission denied\nexpected: ")

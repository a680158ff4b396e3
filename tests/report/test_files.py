"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from skipway.errors import SkipwayError
from skipway.parts import Text
from skipway.report import write_html
from skipway.report.files import beside, check_target, write_atomically, write_json, write_text

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
        f"cannot write {target}: no space left; what was there before is whole\n"
        "expected: room on the disk\ntry: free some space, then go on"
    )
    assert target.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_new_file_takes_the_old_one_s_place_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.html"
    target.write_text("old", encoding="utf-8")

    def failing(_self: Path, _target: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(type(target), "replace", failing)
    with pytest.raises(SkipwayError, match=r"a\.html: Input/output error; what was there before is whole"):
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
        f"cannot write {tmp_path}/no/a.html: there is no folder {tmp_path}/no\n"
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
    assert str(refused.value) == (
        f"cannot write {tmp_path}/a.html: no permission to write in its folder\n"
        "expected: a folder that you may write\ntry: another folder"
    )

    def denied(_self: Path, _data: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "write_bytes", denied)
    with pytest.raises(SkipwayError, match=r"^cannot write .*/a.html: Permission denied\nexpected: "):
        write_text(tmp_path / "a.html", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_half_left_by_a_killed_process_is_written_over(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.json"
    beside(target).parent.mkdir()
    beside(target).write_text("ha", encoding="utf-8")
    write_json(target, {"a": 1})
    assert target.read_text(encoding="utf-8") == '{\n  "a": 1\n}\n'
    assert list(target.parent.iterdir()) == [target]


def test_what_a_writer_leaves_to_its_owner_alone_is_as_readable_as_any_file(tmp_path: Path) -> None:
    target = tmp_path / "made" / "weights"
    before = os.umask(0o022)

    def private(temporary: Path) -> None:
        temporary.touch(mode=0o600)

    try:
        write_atomically(target, private)
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_a_link_gives_way_to_the_file(tmp_path: Path) -> None:
    """What it points to is somebody else's, and stays."""
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_text("old", encoding="utf-8")
    link.symlink_to(old)
    write_text(link, "new")
    assert not link.is_symlink()
    assert (link.read_text(encoding="utf-8"), old.read_text(encoding="utf-8")) == ("new", "old")

"""Text and the reverse task."""

from __future__ import annotations

import itertools
import sysconfig
from pathlib import Path

import pytest
import torch

from skipway.data import open_data
from skipway.data.text_files import read_texts
from skipway.errors import SkipwayError
from skipway.spec import DataSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty files, each of its own letter; the 10th and the 20th are to be held out."""
    root = tmp_path / "texts"
    for k in range(20):
        path = root / ("sub" if k % 3 else ".") / f"{k:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([65 + k]) * (50 + k))
    return root


def test_every_tenth_file_is_held_out(folder: Path) -> None:
    texts = read_texts(str(folder))
    names = [p.name for p in sorted(p for p in folder.rglob("*") if p.is_file())]
    held_out = {65 + int(names[k][:2]) for k in (9, 19)}
    assert set(texts.test.tolist()) == held_out
    assert set(texts.train.tolist()) == {65 + k for k in range(20)} - held_out
    assert sorted(texts.train.tolist() + texts.test.tolist()) == sorted(
        b for k in range(20) for b in [65 + k] * (50 + k)
    )
    assert texts.note == f"20 files of {folder}; every 10th file held out"


def test_of_few_files_the_last_tenth_is_held_out(tmp_path: Path) -> None:
    content = bytes(range(250)) * 2
    (tmp_path / "one.bin").write_bytes(content)
    texts = read_texts(str(tmp_path / "one.bin"))
    assert bytes(texts.train.tolist() + texts.test.tolist()) == content
    assert len(texts.test) == 50
    assert texts.note == f"1 file of {tmp_path}/one.bin; last tenth held out"


def test_windows_are_pieces_of_the_text_and_what_follows_them(folder: Path) -> None:
    data, texts = open_data(DataSpec(name="text", root=str(folder), context=16)), read_texts(str(folder))
    train, test = bytes(texts.train.tolist()), bytes(texts.test.tolist())
    starts = set()
    for x, y in itertools.islice(data.train(batch_size=32, seed=0), 20):
        assert torch.equal(x[:, 1:], y[:, :-1])
        for row, target in zip(x.tolist(), y.tolist(), strict=True):
            assert bytes(row) + bytes(target[-1:]) in train
            starts.add(bytes(row))
    assert len(starts) > 50
    joined = torch.cat([x for x, _ in data.test(batch_size=3)])
    after = torch.cat([y for _, y in data.test(batch_size=3)])
    assert bytes(joined.flatten().tolist()) == test[: data.info.test_size * 16]
    assert bytes(after.flatten().tolist()) == test[1 : data.info.test_size * 16 + 1]


def test_every_place_may_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(range(40)))
    data = open_data(DataSpec(name="text", root=str(tmp_path / "t"), context=3))
    seen = {int(s) for x, _ in itertools.islice(data.train(batch_size=8, seed=0), 200) for s in x[:, 0]}
    assert seen == set(range(36 - 3))


def test_a_subset_is_the_beginning(folder: Path) -> None:
    spec = DataSpec(name="text", root=str(folder), context=16, train_size=5, test_size=2)
    data, whole = open_data(spec), read_texts(str(folder)).train[:81]
    assert (data.info.train_size, data.info.test_size) == (5, 2)
    seen = {int(b) for _, y in itertools.islice(data.train(batch_size=5, seed=0), 100) for b in y.flatten()}
    assert seen == set(whole.tolist())


def test_the_default_text_is_the_standard_library_without_its_tests() -> None:
    texts = read_texts(None)
    library = Path(sysconfig.get_paths()["stdlib"])
    both = bytes(torch.cat([texts.train, texts.test]).tolist())
    assert (library / "argparse.py").read_bytes() in both
    assert (
        not (library / "test" / "test_argparse.py").exists()
        or (library / "test/test_argparse.py").read_bytes() not in both
    )
    assert "files of the Python standard library" in texts.note


FILES = "a file, or a folder with files\ntry: no root: Python's own library"


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ("text image_size=8", "image_size=8 for text, which has no images", "no image_size"),
        ("text augment=crop", "augment='crop' for text, which has no images", "no augment"),
        ("reverse normalize=pixel", "normalize='pixel' for reverse, which has no images", "no normalize"),
        ("reverse root=x", "root='x' for reverse, which is read from no folder", "no root"),
        (
            "reverse train_size=5",
            "train_size=5 for reverse, whose training samples are made on the fly",
            "no train_size",
        ),
        ("text root=nowhere", "root='nowhere' of text: no such file or folder", FILES),
        ("text root=empty", "root='empty' of text: an empty folder", FILES),
        ("text root=short", "90 bytes of train text", "at least 129, for a context of 128"),
        ("text root=short context=20", "10 bytes of test text", "at least 21, for a context of 20"),
        (
            "text root=short context=9 train_size=10",
            "train_size=10, but the train text has 9 windows of 9 bytes",
            "at most 9",
        ),
    ],
)
def test_refused(tmp_path: Path, options: str, given: str, expected: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").write_bytes(b"x" * 100)
    name, *rest = options.split()
    values = {k: int(v) if v.isdigit() else v for k, v in (option.split("=") for option in rest)}
    with pytest.raises(SkipwayError) as caught:
        open_data(DataSpec(name=name, **values))  # type: ignore[arg-type]
    assert str(caught.value) == f"{given}\nexpected: {expected}"


def test_reverse() -> None:
    data = open_data(DataSpec(name="reverse"))
    (x, y) = next(data.train(batch_size=64, seed=0))
    assert y.tolist() == [row[::-1] for row in x.tolist()]
    assert x.shape == (64, 8)
    assert x.unique().tolist() == list(range(8))
    assert sum(len(y) for _, y in data.test(batch_size=100)) == data.info.test_size == 1024
    assert open_data(DataSpec(name="reverse", test_size=10)).info.test_size == 10

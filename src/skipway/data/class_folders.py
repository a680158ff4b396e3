"""Folders of class folders: which files there are, and which are for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.data.files import readable
from skipway.data.order import generator
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["ClassFolders", "Labelled", "class_folders", "split_folders"]

_TEST_NAMES: Final = ("test", "val")
_HELD_OUT: Final = 5  # a fifth, where the folder has no split of its own
_LAYOUT: Final = "train/CLASS/*.png and test/CLASS/*.png (or val), or CLASS/*.png; .jpg and others likewise"

Labelled = tuple[str, int]  # path of a file and its label


@dataclass(frozen=True, kw_only=True)
class ClassFolders:
    """Files of both splits with their labels.

    Args:
        root: folder below which they lie.
        train: for training.
        test: for testing.
        classes: names of the class folders, sorted; a label counts in them.
        note: where the split comes from, in words.
    """

    root: Path
    train: tuple[Labelled, ...]
    test: tuple[Labelled, ...]
    classes: tuple[str, ...]
    note: str


def split_folders(root: Path) -> tuple[Path, Path] | None:
    """The folders ``train`` and ``test`` (or ``val``) of `root`, if it has both."""
    train = root / "train"
    tests = [root / name for name in _TEST_NAMES if (root / name).is_dir()]
    return (train, tests[0]) if train.is_dir() and tests else None


def class_folders(root: Path) -> ClassFolders:
    """Read a folder of class folders, with or without a split.

    Without one, a fifth of every class is for testing, drawn once with a fixed seed.

    Raises:
        SkipwayError: there are no class folders, one holds no image, or the splits differ in their classes.
    """
    with readable(root):
        split = split_folders(root)
        if split is not None:
            train, test = split
            classes = _classes(train)
            strange = sorted(set(_classes(test)) - set(classes))
            if strange:
                raise SkipwayError(f"{test / strange[0]} is no class of {train}", f"class folders as in {train}")
            return ClassFolders(
                root=root,
                train=_files(train, classes, classes),
                test=_files(test, classes, _classes(test)),
                classes=classes,
                note=f"class folders in {train.name}/ and {test.name}/",
            )
        base = root / "train" if (root / "train").is_dir() else root
        classes = _classes(base)
        train_files, test_files = _draw(_files(base, classes, classes), len(classes))
        note = "class folders, a fifth of each kept for testing, drawn once"
        return ClassFolders(root=root, train=train_files, test=test_files, classes=classes, note=note)


def _classes(folder: Path) -> tuple[str, ...]:
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise SkipwayError(f"{folder} holds no class folders", _LAYOUT)
    return tuple(found)


def _files(folder: Path, classes: Sequence[str], present: Sequence[str]) -> tuple[Labelled, ...]:
    """All images of the classes that are present; every one of these must have some."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    label_of = {name: classes.index(name) for name in present}
    found = make_dataset(str(folder), label_of, extensions=IMG_EXTENSIONS, allow_empty=True)
    empty = sorted(set(label_of.values()) - {label for _, label in found})
    if empty:
        raise SkipwayError(
            f"class folder without images: {folder / classes[empty[0]]}", f"files {', '.join(IMG_EXTENSIONS)}"
        )
    return tuple(found)


def _draw(files: Sequence[Labelled], num_classes: int) -> tuple[tuple[Labelled, ...], tuple[Labelled, ...]]:
    """Four fifths and one fifth of every class; at least one of each kind where a class has two files."""
    order = torch.randperm(len(files), generator=generator("split")).tolist()
    by_class: list[list[int]] = [[] for _ in range(num_classes)]
    for k in order:
        by_class[files[k][1]].append(k)
    chosen = {k for ks in by_class for k in ks[: max(round(len(ks) / _HELD_OUT), int(len(ks) > 1))]}
    if not chosen:
        raise SkipwayError("no class has two images, one to train with and one to test with", "more images")
    train = tuple(f for k, f in enumerate(files) if k not in chosen)
    return train, tuple(f for k, f in enumerate(files) if k in chosen)

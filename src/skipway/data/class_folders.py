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

_TEST_NAMES: Final = ("test", "val", "validation", "valid")
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


def split_folders(root: Path, tests: Sequence[str] = _TEST_NAMES) -> tuple[Path, Path] | None:
    """The folders ``train`` and ``test`` (or ``val`` …) of `root`, if it has both.

    Args:
        root: where they are looked for.
        tests: names of the second, in order of preference; the first that has classes of ``train`` is taken, since the
            images of some test sets have no labels.
    """
    train = root / "train"
    classes = _below(train)
    found = [root / name for name in tests if (root / name).is_dir()]
    labelled = [folder for folder in found if _below(folder) & classes]
    return (train, (labelled or found)[0]) if classes and found else None


def class_folders(root: Path, tests: Sequence[str] = _TEST_NAMES) -> ClassFolders:
    """Read a folder of class folders, with or without a split.

    Without one, a fifth of every class is for testing, drawn once with a fixed seed.

    Args:
        root: the folder.
        tests: as for `split_folders`.

    Raises:
        SkipwayError: there are no class folders, one holds no image, or the splits differ in their classes.
    """
    with readable(root):
        split = split_folders(root, tests)
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
        base = root / "train" if _below(root / "train") else root
        classes = _classes(base)
        _check_no_splits(base, classes)
        train_files, test_files = _draw(_files(base, classes, classes), len(classes))
        note = "class folders, a fifth of each kept for testing, drawn once"
        return ClassFolders(root=root, train=train_files, test=test_files, classes=classes, note=note)


def _below(folder: Path) -> set[str]:
    """Names of the folders in a folder; none where there is no such folder."""
    if not folder.is_dir():
        return set()
    return {p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")}


def _check_no_splits(folder: Path, classes: Sequence[str]) -> None:
    """Raise where what looks like classes are splits under names that are not known: each holds the same folders.

    Raises:
        SkipwayError: it is so.
    """
    inner = [_below(folder / name) for name in classes]
    if len(classes) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner):
        raise SkipwayError(
            f"the folders {', '.join(classes)} in {folder} each hold the folders {', '.join(sorted(inner[0]))}",
            _LAYOUT,
            "rename the splits to train and test",
        )


def _classes(folder: Path) -> tuple[str, ...]:
    found = sorted(_below(folder))
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

"""Folders of images as people have them: 16 bits, links, unlabelled test sets, other sets beside them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from data.make_files import class_tree, encode, images, write_parquet
from skipway.data import folder_images, open_data
from skipway.data.class_folders import class_folders
from skipway.errors import SkipwayError
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from pathlib import Path


def deep(folder: Path, dtype: str, *, low: float, high: float) -> np.ndarray:
    """Ten images of each of two classes in 16-bit integers or floats."""
    values = np.random.default_rng(0).uniform(low, high, (20, 8, 8)).astype(dtype)
    for k, image in enumerate(values):
        path = folder / "ab"[k % 2] / f"{k:02}.{'png' if dtype == 'uint16' else 'tiff'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return values


@pytest.mark.parametrize("as_needed", [False, True])
def test_16_bits_become_8(tmp_path: Path, as_needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values = deep(tmp_path, "uint16", low=1000, high=60000)
    if as_needed:
        monkeypatch.setattr(folder_images, "IN_MEMORY", 0)
    data = open_data(DataSpec(name=str(tmp_path), image_size=8))
    assert data.info.input_shape == (1, 8, 8)
    x = data.sample(16)[0]
    assert x.std() == pytest.approx(1, abs=0.1)
    if not as_needed:
        found = (x * data.statistics.std.item() + data.statistics.mean.item()).round()  # type: ignore[attr-defined]
        exact = np.rint(values / 65535 * 255)
        assert all(any(np.array_equal(image[0].numpy(), one) for one in exact) for image in found)


def test_floats_are_refused(tmp_path: Path) -> None:
    deep(tmp_path, "float32", low=0, high=1)
    with pytest.raises(SkipwayError, match=r"00\.tiff: pixels are 32-bit floats, whose range is not known") as caught:
        open_data(DataSpec(name=str(tmp_path)))
    assert "expected: 8 or 16 bits a channel" in str(caught.value)


def linked(folder: Path, store: Path) -> None:
    """Class folders that hold links to images elsewhere."""
    store.mkdir()
    for k, image in enumerate(images(20, 8, 8)):
        (store / f"{k:02}.png").write_bytes(encode(image))
        link = folder / ("cat" if k < 11 else "dog") / f"{k:02}.png"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(store / f"{k:02}.png")


def labels(folder: Path) -> list[int]:
    data = open_data(DataSpec(name=str(folder)))
    y = torch.cat([data.sample(data.info.train_size)[1], next(data.test(batch_size=99))[1]])
    return torch.bincount(y, minlength=2).tolist()


def test_a_link_that_is_moved_to_another_class_is_of_that_class(tmp_path: Path) -> None:
    linked(tmp_path / "pets", tmp_path / "store")
    assert labels(tmp_path / "pets") == [11, 9]
    (tmp_path / "pets" / "cat" / "10.png").rename(tmp_path / "pets" / "dog" / "10.png")
    assert labels(tmp_path / "pets") == [10, 10]


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    linked(tmp_path / "pets", tmp_path / "store")
    (tmp_path / "store" / "03.png").unlink()
    with pytest.raises(SkipwayError, match=r"03\.png is missing"):
        labels(tmp_path / "pets")


@pytest.mark.parametrize("as_needed", [False, True])
def test_names_in_any_bytes(tmp_path: Path, as_needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class_tree(tmp_path, classes=("a", "b"))
    first = next((tmp_path / "a").iterdir())
    try:
        first.rename(first.with_name("caf\udce9.png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    if as_needed:
        monkeypatch.setattr(folder_images, "IN_MEMORY", 0)
    assert open_data(DataSpec(name=str(tmp_path), image_size=16)).info.train_size == 16


def test_a_damaged_image_may_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_images, "IN_MEMORY", 0)
    monkeypatch.setattr("skipway.data.image_files._STATISTICS", 10)
    class_tree(tmp_path, classes=("a", "b"), n=20)

    def fingerprint() -> str:
        return open_data(DataSpec(name=str(tmp_path), image_size=16)).info.fingerprint

    whole = fingerprint()
    same = []
    for path in sorted(tmp_path.rglob("*.png")):
        content = path.read_bytes()
        path.write_bytes(content[:-20])
        with suppress(SkipwayError):  # the few that mean and deviation are of cannot be damaged
            same.append(fingerprint() == whole)
        path.write_bytes(content)
    assert len(same) >= 20
    assert all(same)


class TestSplits:
    def test_an_unlabelled_test_set_stands_back(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "train", classes=("a", "b"))
        class_tree(tmp_path / "val", classes=("a", "b"))
        class_tree(tmp_path / "test", classes=("images",))
        assert class_folders(tmp_path).note == "class folders in train/ and val/"
        (tmp_path / "val").rename(tmp_path / "valid")
        assert class_folders(tmp_path).note == "class folders in train/ and valid/"

    def test_imagenet_is_tested_on_val(self, tmp_path: Path) -> None:
        for split in ("train", "val", "test"):
            class_tree(tmp_path / split, classes=("a", "b"), n=3)
        spec = DataSpec(name="imagenet", root=str(tmp_path), image_size=8)
        assert "train/ and val/" in open_data(spec).info.note
        assert class_folders(tmp_path).note == "class folders in train/ and test/"

    def test_a_class_called_train(self, tmp_path: Path) -> None:
        for name in ("car", "plane", "train"):
            class_tree(tmp_path / name, classes=(".",))
        assert class_folders(tmp_path).classes == ("car", "plane", "train")

    def test_splits_by_other_names_are_no_classes(self, tmp_path: Path) -> None:
        for split in ("training", "holdout"):
            class_tree(tmp_path / split, classes=("cat", "dog"))
        with pytest.raises(SkipwayError, match=r"the folders holdout, training in .* each hold the folders cat, dog"):
            class_folders(tmp_path)


def grey_set(folder: Path, value: int) -> None:
    encoded = [encode(np.full((28, 28, 1), value, dtype=np.uint8)) for _ in range(10)]
    for split in ("train", "test"):
        write_parquet(folder / f"{split}-0.parquet", list(encoded), list(range(10)), image="image")


def test_another_set_beside_it_is_not_read(tmp_path: Path) -> None:
    grey_set(tmp_path / "MNIST", 0)
    spec = DataSpec(name="fashion_mnist", root=str(tmp_path))
    with pytest.raises(SkipwayError, match="no files of fashion_mnist"):
        open_data(spec)
    grey_set(tmp_path / "fashion_mnist", 200)
    assert open_data(spec).statistics.mean.item() == 200  # type: ignore[attr-defined]

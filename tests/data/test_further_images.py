"""Inputs made of further images are those that the set itself would have given in a test, to the last bit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.make_files import class_tree, parquet_cifar
from skipway.data import folder_images, open_data
from skipway.data.class_folders import class_folders
from skipway.errors import SkipwayError
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from pathlib import Path

    from skipway.data import Dataset
    from skipway.data.preparation import Preparation


def opened(spec: DataSpec) -> tuple[Dataset, Preparation, torch.Tensor]:
    """A set, what makes inputs of further images, and its own test images as it gives them."""
    data = open_data(spec)
    assert data.preparation is not None
    return data, data.preparation, next(data.test(batch_size=data.info.test_size))[0]


@pytest.mark.parametrize("normalize", ["channel", "pixel"])
def test_images_of_a_set_in_memory(tmp_path: Path, normalize: Any) -> None:
    _, test = parquet_cifar(tmp_path / "cifar10")
    _, prepare, own = opened(DataSpec(name="cifar10", root=str(tmp_path), normalize=normalize))
    assert torch.equal(prepare(list(test)), own)
    assert torch.equal(prepare([Image.fromarray(image) for image in test]), own)
    assert prepare(test[0]).shape == (1, 3, 32, 32)
    assert prepare(test[0]).is_contiguous(memory_format=torch.channels_last)


def test_grey_images_of_any_kind_of_file(tmp_path: Path) -> None:
    data, prepare, own = opened(DataSpec())
    grey = (next(data.test(batch_size=360))[0] / prepare.scale + prepare.shift).round().to(torch.uint8)[:, 0].numpy()
    assert torch.equal(prepare(list(grey)), own)
    Image.fromarray(grey[0]).convert("RGB").save(tmp_path / "colour.png")
    assert torch.equal(prepare(str(tmp_path / "colour.png")), own[:1])


def test_images_of_another_size_are_cut_as_the_folder_cuts_them(tmp_path: Path) -> None:
    class_tree(tmp_path / "pets" / "train", side=40)
    class_tree(tmp_path / "pets" / "test", n=3, side=52)
    _, prepare, own = opened(DataSpec(name=str(tmp_path / "pets"), image_size=20))
    files = [path for path, _ in class_folders(tmp_path / "pets").test]
    assert torch.equal(prepare(files), own)
    wide = np.zeros((52, 80, 3), np.uint8)
    wide[:, 14:66] = np.asarray(Image.open(files[0]).convert("RGB"))
    assert torch.equal(prepare(wide), own[:1])


@pytest.mark.parametrize("normalize", ["channel", "pixel"])
def test_images_that_are_read_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalize: Any) -> None:
    monkeypatch.setattr(folder_images, "IN_MEMORY", 0)
    class_tree(tmp_path / "big" / "train", n=9, side=40)
    class_tree(tmp_path / "big" / "val", n=4, side=40)
    _, prepare, own = opened(DataSpec(name=str(tmp_path / "big"), image_size=32, normalize=normalize))
    assert torch.equal(prepare([path for path, _ in class_folders(tmp_path / "big").test]), own)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system grants no cores")
def test_no_more_processes_read_than_cores_are_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_images, "IN_MEMORY", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    class_tree(tmp_path / "big", n=6, side=16)
    data = open_data(DataSpec(name=str(tmp_path / "big")))
    assert data._loader([], lambda image: image, []).num_workers == 1  # type: ignore[attr-defined]


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    _, prepare, _ = opened(DataSpec())
    (tmp_path / "text.png").write_text("no image")
    for given, words in (
        (tmp_path / "none.png", "there is no file"), (tmp_path / "text.png", "cannot be decoded"),
        (np.zeros((8, 8)), "float64 array"), (np.zeros((8, 8, 2), np.uint8), "shape .8, 8, 2."),
        (np.zeros((0, 8, 3), np.uint8), "shape"), (torch.zeros(8, 8), "Tensor"), ([], "no images"),
        (np.zeros((5, 9), np.uint8), "an image of 5×9 pixels"),
    ):  # fmt: skip
        with pytest.raises(SkipwayError, match=words):
            prepare(given)


def test_sets_of_other_things_have_none() -> None:
    assert open_data(DataSpec(name="reverse", test_size=5)).preparation is None

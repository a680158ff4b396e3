"""Statistics, resizing, subsets: each against a second way to compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from data.make_files import images, parquet_cifar
from skipway.data import open_data
from skipway.data.resize import resize
from skipway.data.statistics import statistics
from skipway.data.subset import balanced, subset
from skipway.errors import SkipwayError
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_are_those_of_numpy_in_float64(channels: int) -> None:
    pixels = images(700, 6, 5, channels) | 240  # bright: sums of squares leave float32's whole numbers early
    exact = pixels.astype(np.float64)
    by_channel, by_pixel = (
        statistics(torch.from_numpy(pixels), "channel"),
        statistics(torch.from_numpy(pixels), "pixel"),
    )
    np.testing.assert_allclose(by_channel.mean.numpy()[0, 0], exact.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(by_channel.std.numpy()[0, 0], exact.std((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(by_pixel.mean.numpy(), exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(by_pixel.std.numpy().item(), (exact - exact.mean(0)).std(), rtol=1e-12)


def test_images_without_spread_are_not_divided_by_zero() -> None:
    pixels = torch.full((300, 4, 4, 3), 255, dtype=torch.uint8)
    for kind in ("channel", "pixel"):
        found = statistics(pixels, kind)
        assert found.mean.unique().tolist() == [255.0]
        assert found.std.unique().tolist() == [1.0]


def test_normalised_training_images_have_mean_zero_and_deviation_one() -> None:
    for normalize in ("channel", "pixel"):
        data = open_data(DataSpec(normalize=normalize))
        x, _ = data.sample(data.info.train_size)
        assert abs(x.double().mean().item()) < 1e-6
        assert abs(x.double().std(correction=0).item() - 1) < 1e-6


def test_a_subset_does_not_change_the_statistics(tmp_path: Path) -> None:
    parquet_cifar(tmp_path)
    options = {"name": "cifar10", "root": str(tmp_path)}
    whole, part = open_data(DataSpec(**options)), open_data(DataSpec(**options, train_size=20))
    assert torch.equal(whole.statistics.mean, part.statistics.mean)  # type: ignore[attr-defined]
    assert torch.equal(whole.sample(10)[1], part.sample(10)[1])


@pytest.mark.parametrize(("side", "new"), [(32, 16), (32, 8), (12, 6), (32, 32)])
def test_whole_factors_average_the_area(side: int, new: int) -> None:
    pixels, k = images(3, side, side), side // new
    means = pixels.astype(np.float64).reshape(3, new, k, new, k, 3).mean((2, 4))
    np.testing.assert_array_equal(resize(torch.from_numpy(pixels), new, "x").numpy(), np.round(means))


@pytest.mark.parametrize(("side", "new"), [(32, 20), (28, 27), (33, 16)])
def test_other_factors_are_pillows_bilinear(side: int, new: int) -> None:
    pixels = images(3, side, side)
    found = resize(torch.from_numpy(pixels), new, "x").numpy().astype(int)
    for image, small in zip(pixels, found, strict=True):
        theirs = np.asarray(Image.fromarray(image).resize((new, new), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(theirs - small).max() <= 1


def test_subsets_are_balanced_nested_and_fixed() -> None:
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 4)[torch.randperm(84)]
    previous: set[int] = set()
    for size in (1, 3, 12, 20, 83):
        chosen = subset(labels, size, "train", "x")
        assert chosen is not None
        assert chosen.tolist() == sorted(chosen.tolist())
        assert len(chosen.unique()) == size
        assert previous <= set(chosen.tolist())
        previous = set(chosen.tolist())
        assert torch.equal(chosen, subset(labels, size, "train", "x"))  # type: ignore[arg-type]
    counts = torch.bincount(labels[subset(labels, 20, "train", "x")])
    assert counts.tolist() == [8, 8, 4], "a class that has no more gives its share to the others"
    assert subset(labels, None, "train", "x") is None
    assert subset(labels, 84, "train", "x") is None
    assert sorted(balanced(labels, "x").tolist()) == list(range(84))
    assert not torch.equal(balanced(labels, "x"), balanced(labels, "y"))


def test_subsets_of_a_set() -> None:
    data = open_data(DataSpec(train_size=50, test_size=30))
    assert (data.info.train_size, data.info.test_size) == (50, 30)
    _, labels = data.sample(50)
    assert torch.bincount(labels).tolist() == [5] * 10
    assert torch.bincount(next(data.test(batch_size=30))[1]).tolist() == [3] * 10


def test_the_fingerprint_tells_what_changes_samples() -> None:
    specs = [
        DataSpec(),
        DataSpec(augment="crop"),
        DataSpec(augment="crop-flip"),
        DataSpec(normalize="pixel"),
        DataSpec(image_size=4),
        DataSpec(train_size=1000),
        DataSpec(test_size=300),
    ]
    assert len({open_data(spec).info.fingerprint for spec in specs}) == len(specs)
    assert open_data(DataSpec(augment="none")).info.fingerprint == open_data(DataSpec()).info.fingerprint
    assert open_data(DataSpec(image_size=8)).info.fingerprint == open_data(DataSpec()).info.fingerprint


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"image_size": 9}, "image_size=9, but the images of digits have 8×8 pixels\nexpected: at most 8"),
        ({"train_size": 2000}, "train_size=2000, but digits has 1437 train samples\nexpected: at most 1437"),
        ({"test_size": 361}, "test_size=361, but digits has 360 test samples\nexpected: at most 360"),
        ({"root": "x"}, "root='x' for digits, which is read from no folder\nexpected: no root"),
    ],
)
def test_more_than_there_is(options: dict[str, int], text: str) -> None:
    with pytest.raises(SkipwayError) as caught:
        open_data(DataSpec(**options))  # type: ignore[arg-type]
    assert str(caught.value) == text

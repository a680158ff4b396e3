"""The batch at a step: which samples, how they are cut, that it depends on nothing but spec, seed and step."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.make_files import images, parquet_cifar
from oracle.image_batches import batch_by_image, samples_of_step
from skipway.data import Dataset, open_data
from skipway.data.image_store import Augment, ImageStore, padding, stored_bytes
from skipway.data.order import Order, generator
from skipway.data.statistics import Statistics, statistics
from skipway.errors import SkipwayError
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
UNIT = Statistics("channel", torch.zeros(1, 1, 3, dtype=torch.float64), torch.ones(1, 1, 3, dtype=torch.float64))
SPECS = [
    DataSpec(name="digits", train_size=100),
    DataSpec(name="digits", augment="crop-flip", normalize="pixel"),
    DataSpec(name="digits", augment="crop", image_size=4),
    DataSpec(name="reverse"),
    DataSpec(name="text", context=16, train_size=5000, test_size=230),
]


@pytest.fixture(scope="module")
def opened() -> dict[DataSpec, Dataset]:
    return {spec: open_data(spec) for spec in SPECS}


def take(data: Dataset, n: int, **options: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(itertools.islice(data.train(**options), n))


def same(one: list[tuple[torch.Tensor, torch.Tensor]], other: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for p, q in zip(one, other, strict=True) for a, b in zip(p, q, strict=True)
    )


@pytest.mark.parametrize("spec", SPECS, ids=str)
class TestEverySet:
    def test_a_start_leaves_out_what_came_before(self, spec: DataSpec, opened: dict[DataSpec, Dataset]) -> None:
        data = opened[spec]
        whole = take(data, 9, batch_size=30, seed=3)
        for start in (0, 1, 4, 8):
            assert same(take(data, 9 - start, batch_size=30, seed=3, start=start), whole[start:])

    def test_another_seed_gives_another_batch(self, spec: DataSpec, opened: dict[DataSpec, Dataset]) -> None:
        first, second = (take(opened[spec], 1, batch_size=30, seed=s) for s in (0, 1))
        assert not same(first, second)

    def test_opened_again_it_is_the_same(self, spec: DataSpec, opened: dict[DataSpec, Dataset]) -> None:
        again = open_data(spec)
        assert again.info == opened[spec].info
        assert same(take(again, 3, batch_size=30, seed=3), take(opened[spec], 3, batch_size=30, seed=3))

    @pytest.mark.parametrize("world_size", [2, 3])
    def test_the_parts_of_the_processes_are_the_batch(
        self, spec: DataSpec, opened: dict[DataSpec, Dataset], world_size: int
    ) -> None:
        data = opened[spec]
        whole = take(data, 4, batch_size=30, seed=5, start=2)
        parts = [
            take(data, 4, batch_size=30, seed=5, start=2, rank=r, world_size=world_size) for r in range(world_size)
        ]
        joined = [
            tuple(torch.cat(tensors) for tensors in zip(*at_step, strict=True)) for at_step in zip(*parts, strict=True)
        ]
        assert all(len(p[0]) == 30 // world_size for part in parts for p in part)
        assert same(whole, joined)  # type: ignore[arg-type]

    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_the_test_set_once_over(self, spec: DataSpec, opened: dict[DataSpec, Dataset], world_size: int) -> None:
        data = opened[spec]
        parts = [list(data.test(batch_size=100, rank=r, world_size=world_size)) for r in range(world_size)]
        assert {len(p) for p in parts} == {math.ceil(data.info.test_size / 100)}
        labels = torch.cat([part[k][1] for k in range(len(parts[0])) for part in parts])
        assert len(labels) == data.info.test_size
        assert torch.equal(labels, torch.cat([y for _, y in data.test(batch_size=7)]))

    def test_shapes_and_types_are_as_declared(self, spec: DataSpec, opened: dict[DataSpec, Dataset]) -> None:
        data = opened[spec]
        for x, y in (take(data, 1, batch_size=6, seed=0)[0], next(data.test(batch_size=6)), data.sample(6)):
            assert x.shape == (6, *data.info.input_shape)
            assert x.dtype == getattr(torch, data.info.input_dtype)
            assert y.dtype == torch.int64
            assert y.shape == ((6,) if data.info.task == "image" else x.shape)
            assert 0 <= y.min() <= y.max() < data.info.num_classes

    def test_samples_to_look_at_are_fixed(self, spec: DataSpec, opened: dict[DataSpec, Dataset]) -> None:
        assert same([opened[spec].sample(8)], [opened[spec].sample(8)])

    def test_a_batch_larger_than_the_set(self, spec: DataSpec, opened: dict[DataSpec, Dataset]) -> None:
        data, n = opened[spec], opened[spec].info.train_size
        with pytest.raises(SkipwayError) as caught:
            data.train(batch_size=n + 1, seed=0)
        assert str(caught.value) == (
            f"batch_size={n + 1}, but {spec.name} has {n} training samples\nexpected: at most {n}"
        )


def test_requests_that_make_no_sense() -> None:
    data = open_data(DataSpec(train_size=20))
    for options, text in (
        ({"batch_size": 0}, "batch_size=0\nexpected: at least 1"),
        ({"batch_size": 4, "start": -1}, "start=-1\nexpected: the number of batches to leave out, from 0"),
        (
            {"batch_size": 5, "world_size": 2},
            "batch_size=5 over 2 processes\nexpected: a multiple of 2: the global batch",
        ),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank=2 of world_size=2\nexpected: a rank in [0, world_size)"),
    ):
        with pytest.raises(SkipwayError) as caught:
            data.train(seed=0, **options)
        assert str(caught.value) == text
    with pytest.raises(SkipwayError, match="21 samples of digits, which has 20"):
        data.sample(21)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    channels=st.sampled_from([1, 3, 4]),
    augment=st.sampled_from(["crop-flip", "crop", "none"]),
    kind=st.sampled_from(["channel", "pixel"]),
    seed=st.integers(0, 10**6),
)
def test_cut_as_image_by_image(
    n: int, height: int, width: int, channels: int, augment: Augment, kind: str, seed: int
) -> None:
    pixels = images(n, height, width, channels, seed=seed)
    numbers = statistics(torch.from_numpy(pixels), kind)  # type: ignore[arg-type]
    store = ImageStore(torch.from_numpy(pixels), augment, numbers, CPU)
    p = padding(augment, min(height, width))
    assert store.variants == (2 * p + 1) ** 2 * (2 if augment == "crop-flip" else 1)
    drawn = np.random.default_rng(seed)
    ranges = (n, 2 if augment == "crop-flip" else 1, 2 * p + 1, 2 * p + 1)
    draws = [tuple(int(drawn.integers(r)) for r in ranges) for _ in range(7)]
    k = 2 * p + 1
    found = store.cut(torch.tensor([d[0] for d in draws]), torch.tensor([(m * k + y) * k + x for _, m, y, x in draws]))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for dtype, tolerance in ((np.float32, 0.0), (np.float64, 1e-3)):  # 1e-3: the deviation may be as small as 1
        mean, std = (t.numpy().astype(dtype) for t in (numbers.mean, numbers.std))
        expected = batch_by_image(pixels, draws, mean=mean, std=std, padding=p, subtract_first=kind == "pixel")
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=tolerance)


def test_whole_batches_are_those_of_the_oracle(tmp_path: Path) -> None:
    pixels, _ = parquet_cifar(tmp_path / "cifar10", train=50)
    data = open_data(DataSpec(name="cifar10", root=str(tmp_path)))
    numbers = statistics(torch.from_numpy(pixels), "channel")
    for step, (x, y) in enumerate(take(data, 6, batch_size=20, seed=11)):
        samples = samples_of_step(50, 11, step, 20)
        variants = torch.randint(0, 162, (20,), generator=generator("augment", 11, step)).tolist()
        draws = [(s, v // 81, v // 9 % 9, v % 9) for s, v in zip(samples, variants, strict=True)]
        mean, std = (t.float().numpy() for t in (numbers.mean, numbers.std))
        expected = batch_by_image(pixels, draws, mean=mean, std=std, padding=4, subtract_first=False)
        np.testing.assert_array_equal(x.numpy(), expected)
        assert y.tolist() == [s % 10 for s in samples]


def test_a_sample_is_not_augmented(tmp_path: Path) -> None:
    pixels, held_out = parquet_cifar(tmp_path)
    for normalize in ("channel", "pixel"):
        data = open_data(DataSpec(name="cifar10", root=str(tmp_path), normalize=normalize))
        numbers = statistics(torch.from_numpy(pixels), normalize)
        x, y = data.sample(20)
        normal = ((torch.from_numpy(pixels) - numbers.mean) / numbers.std).permute(0, 3, 1, 2).float()
        distances = (x[:, None] - normal[None]).abs().amax((2, 3, 4))
        assert distances.amin(1).max() < 1e-5, "each is one of the training images"
        assert (distances.argmin(1) % 10).tolist() == y.tolist() == [*range(10), *range(10)]
        x, y = next(data.test(batch_size=20))
        expected = ((torch.from_numpy(held_out) - numbers.mean) / numbers.std).permute(0, 3, 1, 2).float()
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-5)


def test_crops_and_flips_are_drawn_for_each_image_and_evenly() -> None:
    n = 162 * 100
    variants = torch.cat(
        [torch.randint(0, 162, (81,), generator=generator("augment", 0, step)) for step in range(n // 81)]
    )
    counts = torch.bincount(variants, minlength=162).double()
    chi2 = ((counts - 100) ** 2 / 100).sum().item()
    assert 161 - 4 * math.sqrt(322) < chi2 < 161 + 4 * math.sqrt(322)
    assert len(variants[:81].unique()) > 40


@given(size=st.integers(1, 20), batch=st.integers(1, 45), seed=st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_every_epoch_holds_every_sample_once(size: int, batch: int, seed: int) -> None:
    order = Order(size, seed)
    stream = torch.cat([order.samples(k * batch, batch) for k in range(-(-3 * size // batch))])[: 3 * size]
    for epoch in stream.view(3, size):
        assert sorted(epoch.tolist()) == list(range(size))
    assert torch.equal(stream[batch:], Order(size, seed).samples(batch, max(0, 3 * size - batch)))


def test_epochs_differ() -> None:
    order = Order(1000, 0)
    assert not torch.equal(order.permutation(0), order.permutation(1))
    assert not torch.equal(Order(1000, 0).permutation(0), Order(1000, 1).permutation(0))


def test_bytes_of_a_store_are_counted_right() -> None:
    for augment in ("crop-flip", "crop", "none"):
        store = ImageStore(torch.zeros(5, 16, 8, 3, dtype=torch.uint8), augment, UNIT, CPU)
        assert store._windows.untyped_storage().nbytes() == stored_bytes((5, 16, 8, 3), augment)


def test_padding_keeps_its_proportion() -> None:
    assert [padding("crop", side) for side in (4, 8, 16, 28, 32, 64)] == [1, 1, 2, 3, 4, 8]
    assert padding("none", 32) == 0

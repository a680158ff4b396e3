"""Class folders, in memory and read as needed; ImageNet's layout."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from data.make_files import class_tree, encode, images
from skipway.data import folder_images, open_data
from skipway.data.class_folders import class_folders
from skipway.data.image_files import ImageFiles
from skipway.data.statistics import statistics
from skipway.errors import SkipwayError
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from pathlib import Path

    from skipway.data import Dataset

CPU = torch.device("cpu")


def pixels(folder: Path) -> np.ndarray:
    """All images below class folders in the order of torchvision's ImageFolder."""
    return np.stack([np.asarray(image) for image, _ in ImageFolder(str(folder))])


def normalised(found: np.ndarray, training: np.ndarray) -> torch.Tensor:
    numbers = statistics(torch.from_numpy(training), "channel")
    return ((torch.from_numpy(found) - numbers.mean) / numbers.std).permute(0, 3, 1, 2).float()


class TestInMemory:
    @pytest.mark.parametrize("test_name", ["test", "val"])
    def test_a_split_as_torchvision_reads_it(self, tmp_path: Path, test_name: str) -> None:
        class_tree(tmp_path / "pets" / "train", classes=("b", "a", "c"))
        class_tree(tmp_path / "pets" / test_name, classes=("c", "a", "b"), n=3)
        data = open_data(DataSpec(name=str(tmp_path / "pets")))
        x, y = next(data.test(batch_size=9))
        theirs = ImageFolder(str(tmp_path / "pets" / test_name))
        assert y.tolist() == theirs.targets
        expected = normalised(pixels(tmp_path / "pets" / test_name), pixels(tmp_path / "pets" / "train"))
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-5)
        assert data.info.classes == ("a", "b", "c")
        assert (data.info.train_size, data.info.test_size, data.info.input_shape) == (30, 9, (3, 16, 16))
        assert data.info.note == f"class folders in train/ and {test_name}/"

    def test_a_fifth_of_each_class_is_kept_where_there_is_no_split(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "cat", classes=(".",), n=20)
        class_tree(tmp_path / "dog", classes=(".",), n=7)
        class_tree(tmp_path / "eel", classes=(".",), n=2)
        class_tree(tmp_path / "fox", classes=(".",), n=1)
        (tmp_path / ".hidden").mkdir()
        found = class_folders(tmp_path)
        count = [[label for _, label in files].count(k) for files in (found.train, found.test) for k in range(4)]
        assert count == [16, 6, 1, 1, 4, 1, 1, 0]
        assert not {path for path, _ in found.train} & {path for path, _ in found.test}
        assert class_folders(tmp_path) == found
        assert found.note == "class folders, a fifth of each kept for testing, drawn once"

    def test_resized_to_the_middle_square(self, tmp_path: Path) -> None:
        wide = images(6, 16, 24)
        for k, image in enumerate(wide):
            path = tmp_path / "ab"[k % 2] / f"{k}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(encode(image))
        data = open_data(DataSpec(name=str(tmp_path), image_size=8))
        assert data.info.input_shape == (3, 8, 8)
        middle = wide[:, :, 4:20].astype(float).reshape(6, 8, 2, 8, 2, 3).mean((2, 4)).round()
        x = torch.cat([data.sample(data.info.train_size)[0], next(data.test(batch_size=9))[0]])
        values = (x.permute(0, 2, 3, 1) * data.statistics.std + data.statistics.mean).round().numpy()  # type: ignore[attr-defined]
        assert sorted(v.sum() for v in values) == sorted(m.sum() for m in middle)
        assert all(any(np.array_equal(v, m) for m in middle) for v in values)

    def test_grey_stays_grey(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "grey", channels=1)
        assert open_data(DataSpec(name=str(tmp_path / "grey"))).info.input_shape == (1, 16, 16)
        class_tree(tmp_path / "grey" / "ox", classes=("x",), channels=3)
        (tmp_path / "grey" / "ox" / "x").rename(tmp_path / "grey" / "yak")
        (tmp_path / "grey" / "ox").rmdir()
        assert open_data(DataSpec(name=str(tmp_path / "grey"))).info.input_shape == (3, 16, 16)

    def test_an_added_image_is_seen(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets")
        before = open_data(DataSpec(name=str(tmp_path / "pets"))).info
        (tmp_path / "pets" / "cat" / "new.png").write_bytes(encode(images(1, 16, 16, seed=5)[0]))
        after = open_data(DataSpec(name=str(tmp_path / "pets"))).info
        assert after.train_size + after.test_size == before.train_size + before.test_size + 1


class TestReadAsNeeded:
    @pytest.fixture(autouse=True)
    def nothing_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_images, "IN_MEMORY", 0)

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        class_tree(tmp_path / "big" / "train", n=9, side=40)
        class_tree(tmp_path / "big" / "val", n=4, side=40)
        return tmp_path / "big"

    def files(self, root: Path, workers: int = 0, **options: object) -> ImageFiles:
        spec = DataSpec(name=str(root), **options)  # type: ignore[arg-type]
        return ImageFiles(class_folders(root), spec, side=32, mode="RGB", device=CPU, workers=workers)

    def take(self, data: Dataset, n: int, **options: int) -> list[torch.Tensor]:
        return [x for x, _ in itertools.islice(data.train(**options), n)]

    def test_test_images_are_those_of_torchvision(self, root: Path) -> None:
        data = self.files(root)
        view = v2.Compose([v2.Resize(37), v2.CenterCrop(32)])
        theirs, training = (
            np.stack([np.asarray(view(image)) for image, _ in ImageFolder(str(root / split))])
            for split in ("val", "train")
        )
        x, y = next(data.test(batch_size=8))
        torch.testing.assert_close(x, normalised(theirs, training), rtol=0, atol=1e-5)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert y.tolist() == [0] * 4 + [1] * 4

    def test_training_images_are_cut_by_torchvision_with_numbers_of_their_own(self, root: Path) -> None:
        """Each image's augmentation depends on seed, epoch and image: a set of one image shows it."""
        from skipway.data.order import Order, generator

        data = self.files(root)
        cut = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()])
        training = ImageFolder(str(root / "train"))
        numbers = statistics(
            torch.stack([torch.from_numpy(np.array(v2.CenterCrop(32)(v2.Resize(37)(i)))) for i, _ in training]),
            "channel",
        )
        (x,) = self.take(data, 1, batch_size=10, seed=4, start=2)
        order = torch.cat([Order(18, 4).permutation(k) for k in range(2)])[20:30]
        for position, (found, sample) in enumerate(zip(x, order.tolist(), strict=True), start=20):
            torch.default_generator.set_state(generator("augment", 4, position // 18, sample).get_state())
            expected = torch.from_numpy(np.array(cut(training[sample][0])))
            back = (found.permute(1, 2, 0) * numbers.std + numbers.mean).round()
            assert torch.equal(back.to(torch.uint8), expected)

    def test_start_ranks_and_workers_change_nothing(self, root: Path) -> None:
        data = self.files(root)
        whole = self.take(data, 5, batch_size=6, seed=1)
        later = self.take(data, 3, batch_size=6, seed=1, start=2)
        parts = [self.take(data, 5, batch_size=6, seed=1, rank=r, world_size=2) for r in range(2)]
        worked = self.take(self.files(root, workers=1), 5, batch_size=6, seed=1)
        for k in range(5):
            assert torch.equal(whole[k], torch.cat([part[k] for part in parts]))
            assert torch.equal(whole[k], worked[k])
            assert k < 2 or torch.equal(whole[k], later[k - 2])
        assert not torch.equal(whole[0], self.take(data, 1, batch_size=6, seed=2)[0])

    def test_the_global_generator_is_left_alone(self, root: Path) -> None:
        data, before = self.files(root), torch.get_rng_state()
        self.take(data, 2, batch_size=6, seed=1)
        assert torch.equal(torch.get_rng_state(), before)

    def test_options(self, root: Path) -> None:
        plain = self.files(root, augment="none", train_size=6, test_size=2, normalize="pixel")
        assert (plain.info.train_size, plain.info.test_size) == (6, 2)
        first, second = self.take(plain, 2, batch_size=6, seed=0)
        assert sorted(first.sum((1, 2, 3)).tolist()) == pytest.approx(sorted(second.sum((1, 2, 3)).tolist()))
        x, y = plain.sample(6)
        assert y.tolist() == [0, 1, 0, 1, 0, 1]
        assert sorted(x.sum((1, 2, 3)).tolist()) == pytest.approx(sorted(first.sum((1, 2, 3)).tolist()))
        crop = self.files(root, augment="crop")
        assert len({d.info.fingerprint for d in (plain, crop, self.files(root))}) == 3

    def test_an_empty_part_of_a_short_batch(self, root: Path) -> None:
        sizes = [[len(x) for x, _ in self.files(root).test(batch_size=7, rank=r, world_size=3)] for r in range(3)]
        assert np.array(sizes).sum(0).tolist() == [7, 1]
        assert min(s[1] for s in sizes) == 0

    def test_chosen_by_size(self, root: Path) -> None:
        data = open_data(DataSpec(name=str(root), image_size=16))
        assert isinstance(data, ImageFiles)
        assert data.info.input_shape == (3, 16, 16)
        assert data.info.note == "class folders in train/ and val/, read as needed; mean and deviation of 18 images"

    def test_imagenet(self, root: Path) -> None:
        data = open_data(DataSpec(name="imagenet", root=str(root), image_size=32))
        assert isinstance(data, ImageFiles)
        assert data.info.name == "imagenet"
        assert data.info.classes == ("cat", "dog")
        assert open_data(DataSpec(name="imagenet", root=str(root))).info.input_shape == (3, 224, 224)

    def test_a_damaged_image_is_named_by_the_main_process(self, root: Path) -> None:
        bad = root / "val" / "dog" / "002.png"
        bad.write_bytes(bad.read_bytes()[:300])
        for workers in (0, 1):
            with pytest.raises(SkipwayError) as caught:
                list(self.files(root, workers=workers).test(batch_size=8))
            assert str(caught.value).startswith(f"{bad}: the image cannot be decoded (")
            assert str(caught.value).endswith(
                "expected: a whole image\ntry: fetch the file again; a new run may also go without it"
            )

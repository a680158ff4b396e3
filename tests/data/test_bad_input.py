"""What is said when files are missing, forbidden, damaged or not what they should be."""

from __future__ import annotations

import builtins
import gzip
import io
import os
import pickle
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import pyarrow as pa
import pytest
import torchvision
from pyarrow import parquet

from data.make_files import (
    class_tree,
    encode,
    idx_bytes,
    idx_fashion,
    images,
    md5,
    parquet_cifar,
    pickled_cifar,
    write_parquet,
)
from skipway.data import open_data
from skipway.errors import SkipwayError, UnknownNameError
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def refusal(name: str, root: Path | None = None, **options: Any) -> str:
    with pytest.raises(SkipwayError) as caught:
        open_data(DataSpec(name=name, root=None if root is None else str(root), **options))
    return str(caught.value)


class TestNames:
    def test_a_near_miss(self) -> None:
        with pytest.raises(UnknownNameError) as caught:
            open_data(DataSpec(name="cifar-10"))
        assert str(caught.value) == (
            "unknown data set 'cifar-10'\nexpected: did you mean 'cifar10' or 'cifar100'?\n"
            "try: the path of a folder of class folders"
        )

    def test_nothing_near(self) -> None:
        assert refusal("svhn") == (
            "unknown data set 'svhn'\n"
            "expected: one of: cifar10, cifar100, digits, fashion_mnist, imagenet, reverse, text\n"
            "try: the path of a folder of class folders"
        )

    def test_a_path_that_does_not_exist(self, tmp_path: Path) -> None:
        assert refusal("no/such/folder") == (
            "data 'no/such/folder' does not exist\nexpected: a folder of class folders, or one of: "
            "cifar10, cifar100, digits, fashion_mnist, imagenet, reverse, text"
        )
        (tmp_path / "notes.txt").write_text("")
        assert refusal("notes.txt").startswith("data 'notes.txt' is no folder\nexpected: a folder of class folders")

    def test_a_folder_and_a_root(self, tmp_path: Path) -> None:
        (tmp_path / "pets").mkdir()
        assert refusal("pets", tmp_path) == (
            f"root='{tmp_path}' for the folder pets\nexpected: no root: the name is the folder"
        )


class TestMissing:
    def test_where_and_for_what_it_was_looked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SKIPWAY_DATA", "/somewhere")
        assert refusal("cifar10") == (
            "no files of cifar10 in /somewhere, /somewhere/cifar10, data, data/cifar10, "
            f"{tmp_path}/cache/skipway/data, {tmp_path}/cache/skipway/data/cifar10\n"
            "expected: cifar-10-batches-py/ as torchvision unpacks it, or train-*.parquet and test-*.parquet with the "
            "columns img and label\n"
            "try: --root FOLDER (root=FOLDER in Python) or the environment variable SKIPWAY_DATA, naming where they "
            "lie, or --download (download=True) to fetch them"
        )

    def test_in_the_folder_that_was_named(self, tmp_path: Path) -> None:
        assert refusal("imagenet", tmp_path) == (
            f"no files of imagenet in {tmp_path}, {tmp_path}/imagenet\n"
            "expected: train/CLASS/*.JPEG and val/CLASS/*.JPEG\n"
            "try: --root FOLDER (root=FOLDER in Python) or the environment variable SKIPWAY_DATA, naming where they lie"
        )
        assert "FashionMNIST/raw/ with train-images-idx3-ubyte and so on, packed or not, or train-*.parquet" in refusal(
            "fashion_mnist", tmp_path
        )

    def test_a_root_that_is_no_folder(self, tmp_path: Path) -> None:
        expected = "expected: a folder that holds the files of cifar100"
        assert refusal("cifar100", tmp_path / "x") == f"root='{tmp_path}/x' of cifar100: no such folder\n{expected}"
        (tmp_path / "x").write_text("")
        assert refusal("cifar100", tmp_path / "x") == f"root='{tmp_path}/x' of cifar100: a file\n{expected}"

    def test_half_of_parquet(self, tmp_path: Path) -> None:
        parquet_cifar(tmp_path)
        (tmp_path / "test-00000-of-00001.parquet").unlink()
        assert refusal("cifar10", tmp_path).startswith(f"no files of cifar10 in {tmp_path}")

    def test_one_batch_of_five(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        base = pickled_cifar(tmp_path, monkeypatch)
        (base / "data_batch_3").unlink()
        assert refusal("cifar10", tmp_path) == (
            f"{base}/data_batch_3 is missing\nexpected: the whole set of files\ntry: fetch it again"
        )

    def test_the_network(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def offline(*args: Any, **kwargs: Any) -> None:
            raise URLError("Temporary failure in name resolution")

        monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", offline)
        monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", offline)
        assert refusal("cifar10", tmp_path, download=True) == (
            "CIFAR10 could not be fetched: <urlopen error Temporary failure in name resolution>\n"
            "expected: a connection to the network\n"
            f"try: fetch {torchvision.datasets.CIFAR10.url} by hand and unpack it in {tmp_path}"
        )
        mirror = torchvision.datasets.FashionMNIST.mirrors[0]
        assert refusal("fashion_mnist", tmp_path, download=True).endswith(
            "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
            f"t10k-labels-idx1-ubyte.gz from {mirror} by hand into {tmp_path}/FashionMNIST/raw"
        )

    @pytest.mark.parametrize("what", ["file", "folder"])
    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        base = pickled_cifar(tmp_path, monkeypatch)
        closed = base / "data_batch_2" if what == "file" else base
        if os.geteuid() == 0:  # root may read all: refuse in its place
            real = io.open

            def guarded(file: Any, *args: Any, **kwargs: Any) -> Any:
                if not isinstance(file, int) and str(file).startswith(str(closed)):
                    raise PermissionError(13, "Permission denied", str(file))
                return real(file, *args, **kwargs)

            monkeypatch.setattr(io, "open", guarded)
            monkeypatch.setattr(builtins, "open", guarded)
            accessor = getattr(tmp_path, "_accessor", None)  # through which Python 3.10 opens paths
            if accessor is not None:
                monkeypatch.setattr(type(accessor), "open", staticmethod(guarded))
        else:
            closed.chmod(0)
        refused = closed if what == "file" else base / "batches.meta"
        try:
            assert refusal("cifar10", tmp_path) == (
                f"no permission to read {refused}\nexpected: a file that you may read\ntry: chmod u+r {refused}"
            )
        finally:
            closed.chmod(0o700)


class TestDamaged:
    def test_a_checksum(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bad = pickled_cifar(tmp_path, monkeypatch) / "data_batch_4"
        good = md5(bad)
        bad.write_bytes(bad.read_bytes()[:-1] + b"x")
        assert refusal("cifar10", tmp_path) == (
            f"{bad} is damaged: its MD5 checksum is {md5(bad)}\nexpected: {good}\n"
            "try: delete the file and fetch it again"
        )

    def test_a_pickle_that_would_run_something(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bad = pickled_cifar(tmp_path, monkeypatch, hundred=True) / "train"
        bad.write_bytes(pickle.dumps({"data": os.system}))
        monkeypatch.setattr(torchvision.datasets.CIFAR100, "train_list", [["train", md5(bad)]])
        assert refusal("cifar100", tmp_path) == (
            f"{bad} is refused: posix.system is not allowed\nexpected: a pickle of arrays, lists and strings"
        )

    def test_a_gzip_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = idx_fashion(tmp_path, monkeypatch)
        bad = raw / "t10k-labels-idx1-ubyte.gz"
        good = md5(bad)
        bad.write_bytes(bad.read_bytes()[:-3])
        assert refusal("fashion_mnist", tmp_path) == (
            f"{bad} is damaged: its MD5 checksum is {md5(bad)}\nexpected: {good}\n"
            "try: delete the file and fetch it again"
        )
        listed = [(n, md5(raw / n)) for n, _ in torchvision.datasets.FashionMNIST.resources]
        monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", listed)
        assert refusal("fashion_mnist", tmp_path).startswith(f"{bad} is damaged: Compressed file ended")

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda b: b[:-1], "is damaged: 7839 bytes for 10×28×28 values\nexpected: 7840 bytes"),
            (lambda b: b[:6], "is damaged: it starts with 00 00 08 03\nexpected: an idx file: 00 00 08 and so on"),
            (lambda b: b"", "is damaged: it starts with \nexpected: an idx file"),
            (gzip.compress, "is damaged: it starts with 1f 8b 08"),
        ],
    )
    def test_an_idx_file(self, tmp_path: Path, change: Callable[[bytes], bytes], text: str) -> None:
        bad = idx_fashion(tmp_path) / "t10k-images-idx3-ubyte"
        bad.write_bytes(change(bad.read_bytes()))
        assert refusal("fashion_mnist", tmp_path).startswith(f"{bad} {text}")

    def test_images_and_labels_that_do_not_match(self, tmp_path: Path) -> None:
        raw = idx_fashion(tmp_path)
        (raw / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(images(9, 28, 28, 1).squeeze(-1)))
        assert refusal("fashion_mnist", tmp_path) == (
            f"{raw} has 9 test images and 10 labels\nexpected: as many of both"
        )

    def test_a_parquet_file(self, tmp_path: Path) -> None:
        parquet_cifar(tmp_path)
        bad = tmp_path / "train-00000-of-00001.parquet"
        bad.write_bytes(bad.read_bytes()[:-10])
        assert refusal("cifar10", tmp_path).startswith(f"{bad} is damaged: Parquet magic bytes not found")
        assert refusal("cifar10", tmp_path).endswith("expected: a whole parquet file\ntry: fetch it again")

    @pytest.mark.parametrize(
        "content", [b"", b"no image", encode(images(1)[0])[:200], encode(images(1)[0], "JPEG")[:400]]
    )
    def test_an_image_in_a_row(self, tmp_path: Path, content: bytes) -> None:
        good = [encode(p) for p in images(5)]
        bad = tmp_path / "train-1.parquet"
        write_parquet(tmp_path / "train-0.parquet", list(good), [0] * 5)
        write_parquet(bad, [*good[:3], content, good[4]], [0] * 5)
        write_parquet(tmp_path / "test-0.parquet", list(good), [0] * 5)
        text = refusal("cifar10", tmp_path)
        assert text.startswith(f"{bad}, row 3: the image cannot be decoded (")
        assert text.endswith(")\nexpected: a whole image\ntry: fetch the file again; a new run may also go without it")
        assert not list(tmp_path.glob("cache/**/*.safetensors"))

    def test_no_rows(self, tmp_path: Path) -> None:
        parquet_cifar(tmp_path)
        path = tmp_path / "test-00000-of-00001.parquet"
        parquet.write_table(parquet.read_table(path).slice(0, 0), path)
        assert refusal("cifar10", tmp_path) == (
            f"{path} has no rows\nexpected: at least one image\ntry: fetch it again"
        )

    def test_no_image_in_a_row(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "train-0.parquet", [encode(images(1)[0]), None], [0, 0])
        write_parquet(tmp_path / "test-0.parquet", [encode(images(1)[0])], [0])
        assert refusal("cifar10", tmp_path) == (
            f"{tmp_path}/train-0.parquet, row 1: no image\nexpected: an encoded image in img.bytes"
        )

    def test_an_image_of_another_size(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "train-0.parquet", [encode(images(1)[0]), encode(images(1, 32, 31)[0])], [0, 0])
        write_parquet(tmp_path / "test-0.parquet", [encode(images(1)[0])], [0])
        assert refusal("cifar10", tmp_path) == (
            f"{tmp_path}/train-0.parquet, row 1: an image of 32×31 pixels\n"
            f"expected: 32×32, as {tmp_path}/train-0.parquet, row 0"
        )


class TestOtherThanExpected:
    def test_other_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "train-0.parquet"
        parquet.write_table(pa.table({"image": ["x"], "label": [1]}), path)
        write_parquet(tmp_path / "test-0.parquet", [encode(images(1)[0])], [0])
        expected = "expected: img (struct of bytes and path) and label (int64)"
        assert refusal("cifar10", tmp_path) == f"{path} has the columns image (string), label (int64)\n{expected}"
        parquet.write_table(pa.table({"img": ["x"], "label": [1]}), path)
        assert refusal("cifar10", tmp_path) == f"{path} has the columns img (string), label (int64)\n{expected}"
        write_parquet(path, [encode(images(1)[0])], [0.5])
        assert refusal("cifar10", tmp_path) == (
            f"{path} has the columns img (struct<bytes: binary, path: string>), label (double)\n{expected}"
        )

    @pytest.mark.parametrize(("label", "said"), [(10, "10"), (-1, "-1"), (None, "nan")])
    def test_a_label_outside_the_classes(self, tmp_path: Path, label: int | None, said: str) -> None:
        encoded: list[bytes | None] = [encode(p) for p in images(4)]
        write_parquet(tmp_path / "train-0.parquet", encoded, [0, 9, label, 1])
        write_parquet(tmp_path / "test-0.parquet", encoded, [0] * 4)
        text = refusal("cifar10", tmp_path)
        assert text.startswith(f"{tmp_path}/train-0.parquet, row 2: label {said}")
        assert text.endswith("\nexpected: a class from 0 to 9")

    def test_a_label_of_an_idx_file(self, tmp_path: Path) -> None:
        raw = idx_fashion(tmp_path)
        labels = raw / "train-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x0b")
        assert refusal("fashion_mnist", tmp_path) == f"{labels}, row 19: label 11\nexpected: a class from 0 to 9"

    def test_an_image_size_above_the_images(self, tmp_path: Path) -> None:
        parquet_cifar(tmp_path)
        assert refusal("cifar10", tmp_path, image_size=33) == (
            "image_size=33, but the images of cifar10 have 32×32 pixels\nexpected: at most 32"
        )


class TestClassFolders:
    def test_no_class_folders(self, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(encode(images(1)[0]))
        assert refusal(str(tmp_path)) == (
            f"{tmp_path} holds no class folders\nexpected: train/CLASS/*.png and test/CLASS/*.png (or val), or "
            "CLASS/*.png; .jpg and others likewise"
        )

    @pytest.mark.parametrize("split", ["", "train", "test"])
    def test_a_class_without_images(self, tmp_path: Path, split: str) -> None:
        root = tmp_path / "pets"
        for part in ("train", "test") if split else ("",):
            class_tree(root / part, n=2)
        (root / split / "cat" / "000.png").unlink()
        (root / split / "cat" / "001.png").rename(root / split / "cat" / "notes.txt")
        assert refusal(str(root)) == (
            f"class folder without images: {root / split / 'cat'}\n"
            "expected: files .jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff, .webp"
        )

    def test_a_class_of_the_test_set_alone(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets" / "train")
        class_tree(tmp_path / "pets" / "val", classes=("cat", "fox"))
        assert refusal(str(tmp_path / "pets")) == (
            f"{tmp_path}/pets/val/fox is no class of {tmp_path}/pets/train\n"
            f"expected: class folders as in {tmp_path}/pets/train"
        )

    def test_single_images(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets", n=1)
        assert refusal(str(tmp_path / "pets")) == (
            "no class has two images, one to train with and one to test with\nexpected: more images"
        )

    def test_images_of_several_sizes(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets", n=5)
        for path in (tmp_path / "pets" / "cat").iterdir():
            path.write_bytes(encode(images(1, 16, 20)[0]))
        text = refusal("pets")
        assert "an image of 16×" in text
        assert text.endswith("try: image_size=…, which brings all to one size")

    def test_an_image_that_is_too_small(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets", n=5)
        text = refusal("pets", image_size=17)
        assert text.startswith("image_size=17, but pets/cat/000.png has 16×16 pixels\nexpected: at most 16")

    def test_a_damaged_image(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets", n=5)
        for name in ("000.png", "003.png"):
            bad = tmp_path / "pets" / "dog" / name
            good = bad.read_bytes()
            bad.write_bytes(b"GIF89a?")
            assert refusal("pets").startswith(f"pets/dog/{name}: the image cannot be decoded (")
            bad.write_bytes(good)

    def test_too_many_samples(self, tmp_path: Path) -> None:
        class_tree(tmp_path / "pets", n=5)
        assert refusal("pets", train_size=9) == "train_size=9, but pets has 8 train samples\nexpected: at most 8"

"""Each layout of files, written small, read by us and by the library that the layout is from."""

from __future__ import annotations

import functools
import io
import os
import pickle
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from data.make_files import encode, idx_fashion, images, md5, parquet_cifar, pickled_cifar, write_parquet
from skipway.data import cache, open_data
from skipway.data.cifar_batches import restricted_loads
from skipway.data.locate import read_first
from skipway.data.parquet import ParquetLayout
from skipway.data.sources import cifar10, cifar100
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skipway.data import Dataset

PARQUET = ParquetLayout(name="cifar10", image="img", label="label", num_classes=10, classes=tuple("abcdefghij"))


def pixels_of(data: Dataset) -> np.ndarray:
    """The test images as they were in the file: (N, H, W, C) uint8, by undoing the normalisation."""
    x = torch.cat([x for x, _ in data.test(batch_size=1000)]).permute(0, 2, 3, 1).double()
    numbers = data.statistics  # type: ignore[attr-defined]
    values = x * numbers.std + numbers.mean
    assert (values - values.round()).abs().max() < 1e-3
    return values.round().to(torch.uint8).numpy()


def labels_of(data: Dataset) -> list[int]:
    return torch.cat([y for _, y in data.test(batch_size=1000)]).tolist()


class TestParquet:
    def test_pixels_and_labels(self, tmp_path: Path) -> None:
        _, test = parquet_cifar(tmp_path)
        data = open_data(DataSpec(name="cifar10", root=str(tmp_path)))
        np.testing.assert_array_equal(pixels_of(data), test)
        assert labels_of(data) == [k % 10 for k in range(20)]
        assert (data.info.train_size, data.info.test_size, data.info.num_classes) == (40, 20, 10)
        assert data.info.input_shape == (3, 32, 32)
        assert data.info.classes[3] == "cat"
        assert data.info.note == "parquet in the hub's columns, PNG images"

    def test_jpeg_as_pillow_decodes_it(self, tmp_path: Path) -> None:
        encoded = [encode(p, "JPEG") for p in images(12)]
        for split in ("train", "test"):
            write_parquet(tmp_path / f"{split}-0.parquet", encoded, [0] * 12)  # type: ignore[arg-type]
        expected = np.stack([np.asarray(Image.open(io.BytesIO(e)).convert("RGB")) for e in encoded])
        data = open_data(DataSpec(name="cifar10", root=str(tmp_path)))
        np.testing.assert_array_equal(pixels_of(data), expected)
        assert data.info.note == "parquet in the hub's columns, JPEG images"

    def test_several_files_in_a_folder_below_and_names_from_the_file(self, tmp_path: Path) -> None:
        parts = [images(3, seed=k) for k in range(3)]
        for k, part in enumerate(parts):
            for split in ("train", "test"):
                path = tmp_path / "cifar100" / "data" / f"{split}-{k:05}-of-00003.parquet"
                names = [f"n{i}" for i in range(100)]
                write_parquet(path, [encode(p) for p in part], [k, 50, 99], label="fine_label", names=names)
        data = open_data(DataSpec(name="cifar100", root=str(tmp_path)))
        np.testing.assert_array_equal(pixels_of(data), np.concatenate(parts))
        assert labels_of(data) == [0, 50, 99, 1, 50, 99, 2, 50, 99]
        assert data.info.classes == tuple(f"n{i}" for i in range(100))

    def test_grey(self, tmp_path: Path) -> None:
        pixels = images(10, 28, 28, 1)
        for split in ("train", "test"):
            write_parquet(tmp_path / f"{split}-0.parquet", [encode(p) for p in pixels], list(range(10)), image="image")
        data = open_data(DataSpec(name="fashion_mnist", root=str(tmp_path)))
        assert data.info.input_shape == (1, 28, 28)
        assert data.info.classes[9] == "Ankle boot"
        np.testing.assert_array_equal(pixels_of(data), pixels)

    @pytest.mark.parametrize(
        "place", ["given", "data", "data/cifar10", "cache/skipway/data", "cache/skipway/data/cifar10"]
    )
    def test_the_usual_places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        monkeypatch.setenv("SKIPWAY_DATA", str(tmp_path / "given"))
        parquet_cifar(tmp_path / place)
        assert open_data(DataSpec(name="cifar10")).info.test_size == 20


class TestCache:
    @pytest.fixture
    def spec(self, tmp_path: Path) -> DataSpec:
        parquet_cifar(tmp_path / "files")
        return DataSpec(name="cifar10", root=str(tmp_path / "files"))

    @pytest.fixture
    def decoded(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Grows by one whenever files are decoded."""
        calls: list[int] = []
        real = ParquetLayout._decode

        def decode(self: ParquetLayout, files: Any) -> Any:
            calls.append(1)
            return real(self, files)

        monkeypatch.setattr(ParquetLayout, "_decode", decode)
        return calls

    def entry(self) -> Path:
        (found,) = (cache.cache_folder() / "decoded").iterdir()
        return found

    def test_files_are_decoded_once(self, spec: DataSpec, decoded: list[int]) -> None:
        first, second = open_data(spec), open_data(spec)
        assert len(decoded) == 1
        assert first.info == second.info
        np.testing.assert_array_equal(pixels_of(first), pixels_of(second))

    def test_a_changed_file_is_decoded_again(self, spec: DataSpec, decoded: list[int], tmp_path: Path) -> None:
        before = open_data(spec).info.fingerprint
        pixels = images(20, seed=9)
        write_parquet(tmp_path / "files/test-00000-of-00001.parquet", [encode(p) for p in pixels], [1] * 20)
        after = open_data(spec)
        assert len(decoded) == 2
        assert after.info.fingerprint != before
        np.testing.assert_array_equal(pixels_of(after), pixels)

    def test_so_is_one_of_the_same_size(self, spec: DataSpec, decoded: list[int], tmp_path: Path) -> None:
        open_data(spec)
        os.utime(tmp_path / "files/test-00000-of-00001.parquet", ns=(1, 1))
        open_data(spec)
        assert len(decoded) == 2

    @pytest.mark.parametrize("keep", [0, 5, 300, -1])
    def test_a_damaged_cache_is_built_again(self, spec: DataSpec, decoded: list[int], keep: int) -> None:
        before = open_data(spec).info
        self.entry().write_bytes(self.entry().read_bytes()[:keep])
        assert open_data(spec).info == before
        assert open_data(spec).info == before
        assert len(decoded) == 2

    def test_a_cache_of_other_content_is_built_again(self, spec: DataSpec, decoded: list[int]) -> None:
        from safetensors.torch import save_file

        before = open_data(spec).info
        save_file({"x": torch.zeros(1)}, self.entry())
        assert open_data(spec).info == before
        assert len(decoded) == 2

    def test_without_a_cache_all_works(
        self, spec: DataSpec, decoded: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
        assert open_data(spec).info == open_data(spec).info
        assert len(decoded) == 2

    def test_a_full_disk_leaves_no_part_behind(self, spec: DataSpec, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(tensors: Any, path: str, metadata: Any) -> None:
            with open(path, "wb") as file:  # noqa: PTH123  # as a library would
                file.write(b"half")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache, "save_file", full)
        assert open_data(spec).info.test_size == 20
        assert not list((cache.cache_folder() / "decoded").iterdir())


class TestOriginals:
    @pytest.mark.parametrize("hundred", [False, True])
    def test_pickled_batches_as_torchvision_reads_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hundred: bool
    ) -> None:
        pickled_cifar(tmp_path, monkeypatch, hundred=hundred)
        source = torchvision.datasets.CIFAR100 if hundred else torchvision.datasets.CIFAR10
        theirs = source(str(tmp_path), train=False)
        data = open_data(DataSpec(name="cifar100" if hundred else "cifar10", root=str(tmp_path)))
        np.testing.assert_array_equal(pixels_of(data), theirs.data)
        assert labels_of(data) == theirs.targets
        assert list(data.info.classes) == theirs.classes
        assert data.info.train_size == len(source(str(tmp_path), train=True))
        assert data.info.note == "the original pickled batches, checksums compared"

    def test_folders_are_called_as_by_torchvision(self) -> None:
        for layout in (cifar10._BATCHES, cifar100._BATCHES):
            assert layout.folder == layout.source.base_folder

    def test_the_originals_come_before_parquet(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pickled_cifar(tmp_path, monkeypatch)
        parquet_cifar(tmp_path)
        assert "pickled" in open_data(DataSpec(name="cifar10", root=str(tmp_path))).info.note

    def test_the_unpickler_builds_arrays_and_nothing_else(self) -> None:
        array = np.arange(6, dtype=np.uint8).reshape(2, 3)
        for protocol in (3, 4):
            back = restricted_loads(pickle.dumps({"data": array, "labels": [1, 2]}, protocol=protocol))
            np.testing.assert_array_equal(back["data"], array)
            assert back["labels"] == [1, 2]
        for evil in (os.system, eval, np.load, pickle.loads, io.open):
            with pytest.raises(pickle.UnpicklingError, match="is not allowed"):
                restricted_loads(pickle.dumps(evil))

    def test_a_python_2_pickle(self) -> None:
        """What Python 2 wrote, opcode by opcode: byte strings, numpy under its old name."""
        written = (
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x04\x85"
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
            b"U\x04\x00\x01\xfe\xfftbs."
        )
        found = restricted_loads(written)["data"]
        assert found.tolist() == [0, 1, 254, 255]
        assert found.dtype == np.uint8

    @pytest.mark.parametrize("packed", [False, True])
    def test_idx_files_as_torchvision_reads_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
    ) -> None:
        idx_fashion(tmp_path / "ours", monkeypatch if packed else None)
        idx_fashion(tmp_path / "theirs")
        theirs = torchvision.datasets.FashionMNIST(str(tmp_path / "theirs"), train=False)
        data = open_data(DataSpec(name="fashion_mnist", root=str(tmp_path / "ours")))
        np.testing.assert_array_equal(pixels_of(data).squeeze(-1), theirs.data.numpy())
        assert labels_of(data) == theirs.targets.tolist()
        assert list(data.info.classes) == theirs.classes
        assert data.info.train_size == 20


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a server on this machine that offers the folder ``server``."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class' name
            pass

    (tmp_path / "server").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path / "server"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class TestDownload:
    def test_an_archive_is_fetched_checked_and_unpacked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
    ) -> None:
        base = pickled_cifar(tmp_path / "made", monkeypatch)
        archive = tmp_path / "server" / "cifar.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(base, base.name)
        source = torchvision.datasets.CIFAR10
        monkeypatch.setattr(source, "url", f"{address}/{archive.name}")
        monkeypatch.setattr(source, "tgz_md5", md5(archive))
        data = open_data(DataSpec(name="cifar10", download=True))
        assert data.info.test_size == 4
        assert (cache.cache_folder() / "data" / base.name / "test_batch").exists()
        assert open_data(DataSpec(name="cifar10")).info == data.info, "found again without a download"

    def test_files_that_are_there_are_not_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        parquet_cifar(tmp_path)
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", "file:///nowhere")
        assert open_data(DataSpec(name="cifar10", root=str(tmp_path), download=True)).info.test_size == 20

    def test_several_files_are_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
        raw = idx_fashion(tmp_path / "server", monkeypatch)
        where = raw.relative_to(tmp_path / "server").as_posix()
        monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", [f"{address}/{where}/"])
        data = open_data(DataSpec(name="fashion_mnist", root=str(tmp_path / "here"), download=True))
        assert data.info.train_size == 20


def test_a_layout_that_is_not_there_is_passed_over(tmp_path: Path) -> None:
    parquet_cifar(tmp_path / "b" / "cifar10")
    (tmp_path / "b" / "cifar10" / "train-1.parquet.part").write_text("")
    assert len(read_first(DataSpec(root=str(tmp_path / "b")), "cifar10", [PARQUET]).test.labels) == 20

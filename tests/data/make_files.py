"""Tiny files in the layouts that data sets come in."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torchvision
from PIL import Image
from pyarrow import parquet

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def images(n: int, height: int = 32, width: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, channels), dtype=np.uint8)


def encode(image: np.ndarray, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(buffer, form)
    return buffer.getvalue()


def write_parquet(
    path: Path,
    encoded: list[bytes | None],
    labels: list[Any],
    *,
    image: str = "img",
    label: str = "label",
    names: list[str] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.array(
        [{"bytes": e, "path": None} for e in encoded], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )
    table = pa.table({image: column, label: pa.array(labels)})
    if names is not None:
        features = {label: {"names": names, "_type": "ClassLabel"}, image: {"_type": "Image"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path)


def parquet_cifar(folder: Path, *, train: int = 40, test: int = 20, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10 in the hub's columns, labels 0 to 9 in turn; the training and test pixels."""
    found = []
    for k, (split, n) in enumerate((("train", train), ("test", test))):
        pixels = images(n, side, side, seed=k)
        write_parquet(
            folder / f"{split}-00000-of-00001.parquet", [encode(p) for p in pixels], [i % 10 for i in range(n)]
        )
        found.append(pixels)
    return found[0], found[1]


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def pickled_cifar(root: Path, monkeypatch: pytest.MonkeyPatch, *, hundred: bool = False, per_file: int = 4) -> Path:
    """CIFAR's original layout; torchvision's lists are made to hold the checksums of these files."""
    source = torchvision.datasets.CIFAR100 if hundred else torchvision.datasets.CIFAR10
    key, classes = ("fine_labels", 100) if hundred else ("labels", 10)
    base = root / source.base_folder
    base.mkdir(parents=True)
    for k, name in enumerate([name for name, _ in (*source.train_list, *source.test_list)]):
        data = np.random.default_rng(k).integers(0, 256, (per_file, 3072), dtype=np.uint8)
        batch = {"data": data, key: [(7 * k + i) % classes for i in range(per_file)], "batch_label": name}
        (base / name).write_bytes(pickle.dumps(batch, protocol=4))
    meta = {source.meta["key"]: [f"class {k}" for k in range(classes)]}
    (base / source.meta["filename"]).write_bytes(pickle.dumps(meta, protocol=4))
    for attribute in ("train_list", "test_list"):
        listed = [[name, md5(base / name)] for name, _ in getattr(source, attribute)]
        monkeypatch.setattr(source, attribute, listed)
    monkeypatch.setattr(source, "meta", {**source.meta, "md5": md5(base / source.meta["filename"])})
    return base


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def idx_fashion(root: Path, monkeypatch: pytest.MonkeyPatch | None = None, *, train: int = 20, test: int = 10) -> Path:
    """Fashion-MNIST's files, unpacked, or packed with their checksums in torchvision's list."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for k, (prefix, n) in enumerate((("train", train), ("t10k", test))):
        pixels = images(n, 28, 28, 1, seed=k).squeeze(-1)
        labels = np.arange(n, dtype=np.uint8) % 10
        for name, array in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", labels)):
            if monkeypatch is None:
                (raw / name).write_bytes(idx_bytes(array))
            else:
                (raw / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
    if monkeypatch is not None:
        source = torchvision.datasets.FashionMNIST
        monkeypatch.setattr(source, "resources", [(name, md5(raw / name)) for name, _ in source.resources])
    return raw


def class_tree(
    folder: Path, *, classes: tuple[str, ...] = ("cat", "dog"), n: int = 10, side: int = 16, channels: int = 3
) -> None:
    """`n` images in each class folder."""
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i, pixels in enumerate(images(n, side, side, channels, seed=k)):
            (folder / name / f"{i:03}.png").write_bytes(encode(pixels))

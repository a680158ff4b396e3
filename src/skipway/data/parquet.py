"""Image sets in the column layout of the Hugging Face hub: a struct of ``bytes`` and ``path``, and a label.

Shapes: N images, H and W pixels, C channels.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import Image

from skipway.data.cache import cached
from skipway.data.decode import Mode, decode_all, decode_bytes
from skipway.data.files import check_labels, readable
from skipway.data.images import Images, ImageSplits
from skipway.errors import SkipwayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["ParquetLayout"]

_BELOW: Final = ("data", "plain_text", "default")  # names of a set's only configuration on the hub


@dataclass(frozen=True, kw_only=True)
class ParquetLayout:
    """Files ``train-*.parquet`` and ``test-*.parquet`` in one folder, or in one below it that the hub calls so.

    Other folders below it may hold other sets with the same columns.

    Args:
        name: of the set, and of the folder of its files.
        image: column of the images.
        label: column of the labels.
        num_classes: labels are in [0, num_classes).
        classes: names of the classes, where the files carry none.
        mode: ``"RGB"``, or ``"L"`` for grey.
    """

    name: str
    image: str
    label: str
    num_classes: int
    classes: tuple[str, ...]
    mode: Mode = "RGB"

    @property
    def words(self) -> str:
        """The layout in words."""
        return f"train-*.parquet and test-*.parquet with the columns {self.image} and {self.label}"

    def find(self, folder: Path) -> dict[str, list[Path]] | None:
        """The files by split, if they are there."""
        for place in (folder, *(folder / below for below in (self.name, *_BELOW))):
            found = {split: sorted(place.glob(f"{split}-*.parquet")) for split in ("train", "test")}
            if all(found.values()):
                return found
        return None

    def read(self, folder: Path) -> ImageSplits | None:
        """All images, decoded; None if the layout is not there.

        Raises:
            SkipwayError: a file is damaged, has other columns, or a label outside the classes.
        """
        files = self.find(folder)
        if files is None:
            return None
        return cached([*files["train"], *files["test"]], repr(self), lambda: self._decode(files))

    def _decode(self, files: dict[str, list[Path]]) -> ImageSplits:
        read = {split: [self._table(path) for path in paths] for split, paths in files.items()}
        split_images = {}
        for split, tables in read.items():
            encoded = [row for table in tables for row in table.encoded]
            if not encoded:
                raise SkipwayError(f"{tables[0].path} has no rows", "at least one image", "fetch it again")
            places = [f"{table.path}, row {k}" for table in tables for k in range(len(table.encoded))]
            pixels = decode_all(len(encoded), _decoder(encoded, self.mode), places.__getitem__)
            labels = np.concatenate([table.labels for table in tables])
            split_images[split] = Images(pixels, torch.from_numpy(labels))
        classes = read["train"][0].classes or self.classes
        with Image.open(
            io.BytesIO(read["train"][0].encoded[0])
        ) as first:  # JPEG is not what the hub's originals are in
            note = f"parquet in the hub's columns, {first.format} images"
        return ImageSplits(**split_images, num_classes=self.num_classes, classes=classes, note=note)

    def _table(self, path: Path) -> _Table:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with readable(path), parquet.ParquetFile(path) as file:
                self._check_columns(path, file.schema_arrow)
                table = file.read(columns=[self.image, self.label])
        except (pa.ArrowException, OSError) as error:
            raise SkipwayError(
                f"{path} is damaged: {str(error).partition(chr(10))[0]}", "a whole parquet file", "fetch it again"
            ) from error
        images = table[self.image].combine_chunks()
        encoded = (images.field("bytes") if pa.types.is_struct(images.type) else images).to_pylist()
        for row, content in enumerate(encoded):
            if content is None:
                raise SkipwayError(f"{path}, row {row}: no image", f"an encoded image in {self.image}.bytes")
        labels = self._labels(path, table[self.label])
        return _Table(path, encoded, labels, _class_names(table.schema.metadata, self.label))

    def _check_columns(self, path: Path, schema: Any) -> None:
        import pyarrow as pa

        fits = self.image in schema.names and self.label in schema.names
        if fits:
            image, label = schema.field(self.image).type, schema.field(self.label).type
            held = [f.name for f in image] if pa.types.is_struct(image) else []
            fits = ("bytes" in held or pa.types.is_binary(image)) and pa.types.is_integer(label)
        if not fits:
            given = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise SkipwayError(
                f"{path} has the columns {given}",
                f"{self.image} (struct of bytes and path) and {self.label} (int64)",
            )

    def _labels(self, path: Path, column: Any) -> np.ndarray:
        labels: np.ndarray = column.to_numpy()
        check_labels(path, labels, self.num_classes)
        return labels.astype(np.int64)


def _decoder(encoded: list[bytes], mode: Mode) -> Callable[[int], np.ndarray]:
    return lambda k: decode_bytes(encoded[k], mode)


@dataclass(frozen=True)
class _Table:
    path: Path
    encoded: list[bytes]
    labels: np.ndarray
    classes: tuple[str, ...]


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    """Names that the hub's own metadata give to the classes; empty if there are none."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()

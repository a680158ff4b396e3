"""Images a second of data alone: ours against torchvision's DataLoader with two workers, the same augmentation.

    python benchmarks/data_pipeline.py [--repeats N] [--seconds S] [--threads N] [--cifar10 DIR] [--results FILE]

50,000 random uint8 images of CIFAR-10's shape, batches of 128, pad 4, random crop, flip, normalise. The peers, each a
DataLoader with ``num_workers=2`` and shuffling:

    PIL      Pillow images: RandomCrop(32, padding=4), RandomHorizontalFlip, ToTensor, Normalize, as most people do it
    tensors  uint8 tensors, transforms.v2: the same two, ToDtype(float32, scale=True), Normalize

A repeat measures ours and both peers one after the other, each for the same time after its first 20 batches, so that
the start of the workers does not count; a ratio is formed within a repeat. The table shows medians and, as spread, the
smallest and the largest.

With ``--cifar10 DIR`` also the seconds to open CIFAR-10 from parquet files, with an empty cache and with a full one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from PIL import Image
from results_file import machine, tell
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import v2

from skipway.data.image_tensors import open_images
from skipway.data.images import Images, ImageSplits
from skipway.data.open import open_data
from skipway.spec import DataSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH: Final = 128
WORKERS: Final = 2
LIMIT: Final = 5.0
WARM_UP: Final = 20  # batches
OURS: Final = "skipway"
TITLE: Final = "Data alone (`benchmarks/data_pipeline.py`)"


class Samples(Dataset[Any]):
    """Images one by one, as torchvision's CIFAR10 gives them."""

    def __init__(self, pixels: torch.Tensor, labels: torch.Tensor, transform: Callable[[Any], Any], pil: bool) -> None:
        self.images = pixels.numpy() if pil else pixels.permute(0, 3, 1, 2).contiguous()
        self.labels, self.transform, self.pil = labels.tolist(), transform, pil

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, k: int) -> tuple[Any, int]:
        image = Image.fromarray(self.images[k]) if self.pil else self.images[k]
        return self.transform(image), self.labels[k]


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch; the workers stay."""
    while True:
        yield from loader


def pipelines(pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[], Iterator[Any]]]:
    """What is measured, by name: a function that starts it."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
    crop, flip = transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()
    pil = transforms.Compose([crop, flip, transforms.ToTensor(), transforms.Normalize(mean, std)])
    first = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip()]
    tensors = v2.Compose([*first, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])

    def loader(transform: Callable[[Any], Any], as_pil: bool) -> Iterator[Any]:
        samples = Samples(pixels, labels, transform, as_pil)
        options: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "drop_last": True}
        return endless(DataLoader(samples, BATCH, shuffle=True, **options))

    splits = ImageSplits(
        train=Images(pixels, labels), test=Images(pixels[:1], labels[:1]), num_classes=10, classes=(), note=""
    )
    ours = open_images(splits, DataSpec(name="cifar10"), auto="crop-flip", device=torch.device("cpu"))
    return {
        OURS: lambda: ours.train(batch_size=BATCH, seed=0),
        "DataLoader, PIL": lambda: loader(pil, as_pil=True),
        "DataLoader, tensors": lambda: loader(tensors, as_pil=False),
    }


def images_per_second(start: Callable[[], Iterator[Any]], seconds: float) -> float:
    """Steady state of one pipeline."""
    batches = start()
    for _ in range(WARM_UP):
        x, _ = next(batches)
        assert x.shape == (BATCH, 3, 32, 32)  # a benchmark of something else would be worse than none
        assert x.dtype == torch.float32
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += 1
    return count * BATCH / (time.perf_counter() - begin)


def table(rates: dict[str, list[float]], options: argparse.Namespace) -> list[str]:
    """The results as lines of Markdown."""
    packages = ("torch", "torchvision", "pillow")
    threads = f"{options.threads} thread{'s' if options.threads > 1 else ''} of PyTorch in the main process"
    lines = [
        f"{machine(packages)}. {os.cpu_count()} cores, {threads}, the DataLoader with {WORKERS} workers;",
        f"batch {BATCH}; {options.repeats} repeats of {options.seconds:g} s each, paired in one run.",
        "",
        "| pipeline | images/s: median | spread | skipway / it: median | spread | at least |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates[OURS], found, strict=True)]
        compared = f"{statistics.median(ratios):.1f} | {min(ratios):.1f} – {max(ratios):.1f} | {LIMIT:g}"
        spread = f"{min(found):,.0f} – {max(found):,.0f}"
        lines.append(
            f"| {name} | {statistics.median(found):,.0f} | {spread} | {'– | – | –' if name == OURS else compared} |"
        )
    return lines


def opening(root: str, repeats: int) -> list[str]:
    """Seconds to open CIFAR-10, with an empty cache and with a full one."""
    spec = DataSpec(name="cifar10", root=root)
    cold, warm = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            for found in (cold, warm):
                begin = time.perf_counter()
                data = open_data(spec)
                found.append(time.perf_counter() - begin)
    told = [f"{statistics.median(t):.1f} s ({min(t):.1f} – {max(t):.1f})" for t in (cold, warm)]
    size = f"{data.info.train_size + data.info.test_size:,} images"
    return [
        "",
        f"Opening CIFAR-10 ({size}, {data.info.note}): {told[0]} with an empty cache, {told[1]} with a full one.",
    ]


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; exit code 1 if a ratio is below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured of each pipeline in each repeat")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch in the main process")
    parser.add_argument("--cifar10", metavar="DIR", help="folder of CIFAR-10's parquet files, to time the opening")
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    source = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50_000, 32, 32, 3), dtype=torch.uint8, generator=source)
    work = pipelines(pixels, torch.randint(0, 10, (50_000,), generator=source))
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(options.repeats):
        for name, start in work.items():
            rates[name].append(images_per_second(start, options.seconds))
    lines = table(rates, options)
    if options.cifar10:
        lines += opening(options.cifar10, options.repeats)
    tell(lines, TITLE, options.results)
    medians = [
        statistics.median(o / t for o, t in zip(rates[OURS], rates[name], strict=True))
        for name in rates
        if name != OURS
    ]
    return int(min(medians) < LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())

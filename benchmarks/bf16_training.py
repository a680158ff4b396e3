"""Whether a stream in float32 changes a training under bf16 autocast: the same trainings in three formats.

    python benchmarks/bf16_training.py [--models NAME …] [--steps N] [--batch N] [--seeds N] [--results FILE]

On scikit-learn's digits by the recipe ``quick``: float32; bf16 autocast with the stream in bf16, as ``--precision
bf16-mixed`` has it; and bf16 autocast with the stream in float32 (``--residual-in-fp32``). Weights, data and order are
those of the seed. Shown are the training loss (mean of the last fifth of the steps) and the test error, and how far the
two bf16 trainings of a seed are apart: float32 stream minus bf16 stream, mean and 95 % interval by Student's t.

bf16 is a matter of arithmetic here, not of speed: a processor without it computes the same slowly.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from results_file import machine, tell

import skipway
from skipway.spec import DataSpec, RunSpec
from skipway.study.effects import paired_effect
from skipway.train.recipes import find_recipe

TITLE: Final = "Trainings with a stream in bf16 and in float32 (`benchmarks/bf16_training.py`)"
MODELS: Final = ("resnet110@preact", "resnet434@preact")
STEP: Final = 100 / 360  # one of the test images, in percent
FORMATS: Final = {
    "float32": {"precision": "32-true"},
    "bf16 stream": {"precision": "bf16-mixed", "residual_in_fp32": False},
    "float32 stream": {"precision": "bf16-mixed", "residual_in_fp32": True},
}


def trained(name: str, how: str, seed: int, *, steps: int, batch: int) -> tuple[float, float]:
    """Training loss in nats and test error in percent."""
    spec = RunSpec(
        model=name,
        data=DataSpec(name="digits"),
        recipe=replace(find_recipe("quick"), steps=steps, batch_size=batch),
        seed=seed,
        threads=1,
        inspect=False,
        **FORMATS[how],
    )
    with tempfile.TemporaryDirectory() as folder:
        result = skipway.fit(spec, out=Path(folder) / "run").result
    return float(result["train_loss"]), float(result["test_error"])


def spread(values: list[float]) -> str:
    """Mean ± standard deviation."""
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def apart(wide: list[float], narrow: list[float], step: float = 0.0) -> str:
    """Mean difference by seed with its interval; `step` as `paired_effect` has it."""
    effect = paired_effect(dict(enumerate(narrow)), dict(enumerate(wide)), step=step)
    if effect is None or effect.low is None:
        return "–"
    return f"{effect.mean:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]"


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="Markdown file whose section is to be replaced")
    options = parser.parse_args(argv)
    lines = [
        f"{machine(('torch',))}. {options.steps} steps of {options.batch} on digits, {options.seeds} seeds.",
        "",
        "| net | format | training loss, nats | test error, % |",
        "| --- | --- | --- | --- |",
    ]
    for name in options.models:
        losses: dict[str, list[float]] = {}
        errors: dict[str, list[float]] = {}
        for seed in range(options.seeds):
            for how in FORMATS:
                loss, error = trained(name, how, seed, steps=options.steps, batch=options.batch)
                losses.setdefault(how, []).append(loss)
                errors.setdefault(how, []).append(error)
                print(f"{name}, {how}, seed {seed}: {loss:.4f}, {error:.2f} %", file=sys.stderr, flush=True)
        lines += [f"| {name} | {how} | {spread(losses[how])} | {spread(errors[how])} |" for how in FORMATS]
        wide, narrow = "float32 stream", "bf16 stream"
        differences = f"{apart(losses[wide], losses[narrow])} | {apart(errors[wide], errors[narrow], STEP)}"
        lines.append(f"| {name} | {wide} − {narrow} | {differences} |")
    tell(lines, TITLE, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

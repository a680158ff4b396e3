"""What skipway shows, in under two minutes on a laptop's processor: `make demo`.

Three nets of 56 layers, with the same weights to learn and the same budget, on scikit-learn's digits: `plain56` without
shortcuts, `resnet56` with them (He et al. 2015), `resnet56@preact` with nothing left standing on the stream (He et al.
2016). Three seeds each, as many at a time as there are cores, every net inspected before and after its training.

What ran is kept in `runs/demo`: a second call tells it again at once.
"""

from __future__ import annotations

import time
from pathlib import Path

import skipway
from skipway.cli.compare_display import CompareDisplay
from skipway.parts import Part, Text
from skipway.report import signal_map
from skipway.report.console import show
from skipway.study.comparison.answer import answer
from skipway.study.comparison.tables import cost_table, result_table

MODELS = ("plain56", "resnet56", "resnet56@preact")
OUT = Path("runs") / "demo"


def heading(text: str) -> Text:
    return Text(text=f"\n━━ {text} ━━", tone="title")


def roads(comparison: skipway.Comparison) -> list[Part]:
    """The stream of each net before its first step: what stands on it, and how signal and gradient pass.

    A net without shortcuts has a line for every layer; the report shows that better.
    """
    parts: list[Part] = []
    for model in comparison.models:
        seen = comparison.runs[model][comparison.plan.seeds[0]].inspection("start")
        if seen is not None and len(seen.units) > 1 and (road := signal_map(seen)) is not None:
            parts += [heading(f"the stream of {model}, before the first step"), road]
    return parts


def main(models: tuple[str, ...] = MODELS, *, out: Path = OUT, steps: int = 150, seeds: int = 3) -> int:
    start = time.perf_counter()
    show([heading(f"skipway compare {' '.join(models)}")])
    with CompareDisplay() as display:
        comparison = skipway.compare(models, out=out, steps=steps, batch_size=64, seeds=seeds, listener=display)
    if not comparison.complete:
        show(answer(comparison))
        return 1
    show([
        *roads(comparison),
        heading("what it comes to"),
        result_table(comparison),
        cost_table(comparison),
        heading("what was found"),
        *answer(comparison),
        Text(text=f"report: {comparison.path / 'report.html'} · {time.perf_counter() - start:.0f} s", tone="muted"),
    ])  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

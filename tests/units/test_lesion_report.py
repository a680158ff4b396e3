"""Lesions as text, as HTML and from the command line; numbers made by hand."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from skipway.cli import main
from skipway.parts import Lines
from skipway.report import lesion_report, to_html
from skipway.units.lesion.record import Lesion, LesionRun, LesionUnit

if TYPE_CHECKING:
    from pathlib import Path


def made(**other: object) -> Lesion:
    """Three units, one of which down-samples; drawn and reordered ones."""

    def run(*units: str, change: float, **rest: object) -> LesionRun:
        return LesionRun(
            **{"kind": "deleted", "units": units, "value": 10 + change, "change": change, "count": len(units), **rest}
        )

    values = {
        "model": "net", "mode": "eval", "batch": "float32[2,3,8,8]", "metric": "classification error", "unit": "%",
        "baseline": 10.0, "samples": 200, "forwards": 3.0, "seconds": 0.25, "reused": True,
        "units": (
            LesionUnit(path="a.0", changes_shape=False, influence=0.25),
            LesionUnit(path="a.<b>", changes_shape=True),
            LesionUnit(path="a.2", changes_shape=False, influence=0.01, kept="it is scripted"),
        ),
        "runs": (
            run("a.0", change=2.0), run("a.<b>", change=-8.0),
            run("a.0", change=2.0, draw=0), run("a.0", "a.<b>", change=30.0, draw=0),
            run("a.0", "a.2", change=1.0, kind="swapped", count=1, kendall=-1.0),
        ),
    }  # fmt: skip
    return Lesion(**{**values, **other})


def test_exact_text() -> None:
    assert repr(made()) == textwrap.dedent("""\
        skipway · net · lesions
        eval mode · batch float32[2,3,8,8] · 200 samples · work of 3.00 whole runs · 0.2 s
        classification error, whole model 10.0 % · 3 units · deleted: the branch × 0; shortcut and what
        follows the merge stay
        2 units deleted one by one: median change -3.00 points, from -8.00 points to +2.00 points; most by
        a.<b>.
        1 changes the shape: median -8.00 points; 1 keeps it: median +2.00 points.
        block influence from 0.010 (a.2) to 0.25 (a.0).
        Each unit by itself

         unit    value   change   │                           influence   shape
         ────────────────────────────────────────────────────────────────────────
         a.0      12.0    +2.00   │██████                          0.25
         a.<b>    2.00    -8.00   −████████████████████████           –   changes

        Random choices

         units deleted   draws   median   from     to   change   │
         ─────────────────────────────────────────────────────────────────────────────────
                     1       1     12.0   12.0   12.0    +2.00   │█▋
                     2       1     40.0   40.0   40.0    +30.0   │████████████████████████

        Chosen together

                   units      value   change   Kendall τ
         ───────────────────────────────────────────────
         swapped   a.0, a.2    11.0    +1.00       -1.00

        note: a.2 was not deleted (it is scripted)""")


def test_markup_in_paths_is_escaped() -> None:
    page = to_html(lesion_report(made()), title="t")
    assert "a.<b>" not in page.replace("a.\\u003cb", "")
    assert "a.&lt;b&gt;" in page


def test_charts() -> None:
    charts = {p.title: p for p in lesion_report(made()) if isinstance(p, Lines)}
    assert list(charts) == ["Classification error without each unit", "Classification error without random units",
                            "Block influence"]  # fmt: skip
    without, whole = charts["Classification error without each unit"].series
    assert (without.y, whole.y) == ((12.0, 2.0, None), (10.0, 10.0, 10.0))
    assert charts["Block influence"].series[0].y == (0.25, None, 0.01)


def test_long_nets_show_what_matters_most() -> None:
    units = tuple(LesionUnit(path=f"u.{i}", changes_shape=False, influence=0.1) for i in range(100))
    runs = tuple(
        LesionRun(kind="deleted", units=(u.path,), value=10 + i, change=float(i), count=1) for i, u in enumerate(units)
    )
    text = repr(made(units=units, runs=runs))
    assert "u.35 " not in text
    assert "u.36 " in text
    assert "the 64 that matter most; 36 others are in the JSON." in text


# ---- command line


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "lesion.html"
    options = ["--data", "digits", "--samples", "30", "--batch", "20", "--delete", "each,1-2", "--seeds", "2"]
    code = main(["lesion", "resnet8", *options, "--swap", "--html", str(page), "--json"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: swap=True: no two units have modules of the same classes and shapes\n")
    code = main(["lesion", "resnet8", *options, "--html", str(page), "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    found = Lesion.from_dict(json.loads(out))
    assert (found.samples, found.model, len(found.each)) == (30, "resnet8", 3)
    assert {k: len(v) for k, v in found.drawn.items()} == {1: 2, 2: 2}
    assert page.exists()


def test_a_run_folder_brings_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = ["--data", "digits", "--steps", "2", "--batch", "8", "--train-size", "40", "--test-size", "20"]
    assert main(["train", "plain14", *options, "--no-inspect", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["lesion", str(out)]) == 2
    assert capsys.readouterr().err.endswith(f"try: skipway lesion {out} --blocks auto\n")
    assert main(["lesion", str(out), "--blocks", "auto", "--json"]) == 0
    found = Lesion.from_dict(json.loads(capsys.readouterr().out))
    assert (found.samples, found.what, found.unit) == (20, "block", "%")
    error = json.loads((out / "result.json").read_text())["test_error"]
    assert found.baseline == pytest.approx(error)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lesion", "resnet8", "--delete", ","], "error: --delete: ','"),
        (["lesion", "resnet8", "--root", "x"], "error: --root x without data\n"),
    ],
)
def test_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 3
    assert capsys.readouterr().err.startswith(text)

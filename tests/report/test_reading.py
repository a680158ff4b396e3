"""Inspections come back from JSON as they were, strictly, and without torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from report import examples
from skipway.diagnostics.inspection import Inspection
from skipway.diagnostics.layer import Layer
from skipway.errors import SkipwayError
from skipway.report import dumps, inspection_report, to_html

if TYPE_CHECKING:
    from pathlib import Path


def by_way_of_json(inspection: Inspection) -> Inspection:
    return Inspection.from_dict(json.loads(dumps(inspection.to_dict())))


def with_layers() -> Inspection:
    return replace(examples.nothing(), layers=[Layer("a.0", 1.0, None), Layer("a.1", None, 2.0)])


@pytest.mark.parametrize("make", [examples.resnet50, examples.post_norm, examples.nothing, with_layers])
def test_read_back(make) -> None:
    assert by_way_of_json(make()) == make()


def test_what_is_not_finite_comes_back_as_a_number() -> None:
    whole = examples.resnet50()
    unit = replace(whole.units[0], numbers=replace(whole.units[0].numbers, stream_rms=math.nan, grad_stream=math.inf))
    finding = replace(whole.findings[0], evidence={"rms": -math.inf, "path": "information"})
    read = by_way_of_json(replace(whole, units=[unit], findings=[finding], slopes={"stream_rms": math.nan}))
    assert math.isnan(read.units[0].numbers.stream_rms)
    assert math.isnan(read.slopes["stream_rms"])
    assert read.units[0].numbers.grad_stream == math.inf
    assert read.findings[0].evidence == {"rms": -math.inf, "path": "information"}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d.pop("layers"), "inspection without layers\nexpected: exactly schema, model, mode, "),
        (lambda d: d.update(extra=1), "inspection with unknown extra\nexpected: exactly schema, model, "),
        (
            lambda d: d.update(schema="skipway.inspection/2.0"),
            "an inspection of schema 'skipway.inspection/2.0'\nexpected: 'skipway.inspection/1.0'\ntry: inspect",
        ),
        (
            lambda d: (d["units"][0].pop("flops"), d["units"][0].update(flop=1)),
            "unit without flops and with unknown flop\nexpected: exactly index, path, level, closed, dtype, ",
        ),
        (lambda d: d["units"][0].update(kind="block"), "kind of a unit 'block'\nexpected: one of unit, long_skip, "),
        (lambda d: d["units"][0].update(equation="y = x"), "not an equation: 'y = x'"),
        (
            lambda d: d["units"][0].update(cosine="small"),
            "cosine: 'small'\nexpected: a number, 'nan', 'inf' or '-inf'",
        ),
        (lambda d: d["units"][0].update(cosine=True), "cosine: True\nexpected: a number"),
        (lambda d: d["findings"][0].update(severity="fatal"), "unknown severity 'fatal'\nexpected: one of: err"),
        (lambda d: d["findings"].append(3), "finding: int\nexpected: an object with rule, severity"),
        (lambda d: d["unexplained"][0].pop("op"), "unexplained join without op\nexpected: exactly path, op, reason"),
        (lambda d: d["layers"].append({"path": "a", "grad": 1.0}), "layer without rms\nexpected: exactly path, rms"),
        (lambda d: d["slopes"].update(grad_stream=None), "grad_stream: None\nexpected: a number"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(damage, said: str) -> None:
    data = json.loads(dumps(examples.resnet50().to_dict()))
    damage(data)
    with pytest.raises(SkipwayError) as refused:
        Inspection.from_dict(data)
    assert str(refused.value).startswith(said)


def test_reports_are_rebuilt_without_torch(tmp_path: Path) -> None:
    (tmp_path / "inspection.json").write_text(dumps(examples.resnet50().to_dict()), encoding="utf-8")
    program = f"""
import json, sys
for name in ("torch", "torchvision", "numpy", "pandas"):
    sys.modules[name] = None  # an import of it raises
from skipway.diagnostics.inspection import Inspection
with open({str(tmp_path / "inspection.json")!r}, encoding="utf-8") as file:
    inspection = Inspection.from_dict(json.load(file))
inspection.to_html({str(tmp_path / "report.html")!r})
print(inspection)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603  # our own program
    assert done.stderr == ""
    assert done.stdout.rstrip("\n") == repr(examples.resnet50())
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert written == to_html(inspection_report(examples.resnet50()), title="skipway · tv:resnet50")

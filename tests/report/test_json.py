"""The JSON report follows its schema, strictly."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from skipway.diagnostics.inspection import SCHEMA_VERSION
from skipway.diagnostics.layer import Layer
from skipway.report import dumps, inspection_parts, parts_to_dicts, schema

sys.path.insert(0, str(Path(__file__).parent))
import examples


def with_layers():
    layers = [Layer("a.0", 1.0, None), Layer("a.1", math.inf, 2.0)]
    return replace(examples.nothing(), layers=layers)


EXAMPLES = [examples.resnet50, examples.post_norm, examples.nothing, with_layers]


@pytest.mark.parametrize("make", EXAMPLES)
def test_inspections_follow_the_schema(make) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(json.loads(dumps(make().to_dict())), schema(f"inspection-{SCHEMA_VERSION}"))


def test_what_is_not_finite_is_written_as_text() -> None:
    unit = examples.resnet50().units[0]
    broken = replace(unit, numbers=replace(unit.numbers, stream_rms=math.nan, grad_stream=math.inf))
    written = dumps(replace(examples.resnet50(), units=[broken]).to_dict())
    read = json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (read["units"][0]["stream_rms"], read["units"][0]["grad_stream"]) == ("nan", "inf")
    jsonschema.validate(read, schema())


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("units"),
        lambda d: d["units"][0].pop("equation"),
        lambda d: d.pop("layers"),
        lambda d: d["layers"].append({"path": "a", "rms": 1.0}),
        lambda d: d["layers"].append({"path": "a", "rms": "small", "grad": None}),
        lambda d: d["units"][0].update(kind="block"),
        lambda d: d["findings"][0].update(severity="fatal"),
        lambda d: d.update(schema="skipway.inspection/2.0"),
        lambda d: d.update(extra=1),
    ],
)
def test_the_schema_refuses_what_it_should(damage) -> None:
    report = json.loads(dumps(examples.resnet50().to_dict()))
    damage(report)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema())


def test_parts_as_plain_values() -> None:
    plain = parts_to_dicts(inspection_parts(examples.resnet50()))
    assert json.loads(dumps(plain)) == plain
    (road,) = [p for p in plain if p["part"] == "StreamMap"]
    assert [s["count"] for s in road["stretches"]] == [1, 2, 1, 3, 1, 5, 1, 2]
    assert len(road["units"]) == 16
    assert road["stretches"][1]["after"] == [{"part": "Obstacle", "kind": "activation", "name": "ReLU"}]

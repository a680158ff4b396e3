"""Folding loses nothing: unfolding gives the sequence back."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report import examples
from report.examples import unit
from skipway.diagnostics.layer import Layer
from skipway.form import Op, UnitForm
from skipway.report.folding import Run, fold, folded_label
from skipway.report.road import layer_map, stream_map
from skipway.units.passage import Passage


@given(st.text("ABC", max_size=40))
def test_unfolding_gives_the_sequence_back(keys: str) -> None:
    runs = fold(keys)
    unfolded = "".join(keys[r.start : r.start + r.period] * r.count for r in runs)
    assert unfolded == keys
    for run in runs:
        for offset in range(run.period):
            assert {keys[i] for i in run.members(offset)} == {keys[run.start + offset]}


def test_neighbours_alike_fold() -> None:
    assert fold("ABBBC") == [Run(0, 1, 1), Run(1, 1, 3), Run(4, 1, 1)]


def test_patterns_fold() -> None:
    assert fold("AB" * 60) == [Run(0, 2, 60)]
    assert fold("AAB" * 4) == [Run(0, 3, 4)]


def test_a_thousand_units_fold_quickly() -> None:
    start = time.perf_counter()
    assert len(fold("AB" * 5000)) == 1
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        (["layer1.1", "layer1.2"], "layer1.1…2"),
        (["blocks.0.attn", "blocks.1.attn", "blocks.11.attn"], "blocks.0…11.attn"),
        (["layers.0#1", "layers.59#1"], "layers.0…59#1"),
        (["shared", "shared"], "shared"),
        (["stage1.0", "stage2.1"], "stage1.0 … stage2.1"),
        (["a#1", "a#2"], "a#1 … a#2"),
    ],
)
def test_labels(paths: list[str], label: str) -> None:
    assert folded_label(paths) == label


def test_units_that_differ_in_their_drop_path_rate_fold() -> None:
    """Rates grow with depth; the folded line leaves the number out, a single unit shows it."""
    linear = Op("weight", "linear")
    forms = [UnitForm(branch=(linear, Op("drop_path", p))) for p in (0.1, 0.2, 0.3)]
    units = [unit(k, f"blocks.{k}", form, (2, 5, 8)) for k, form in enumerate(forms)]
    (stretch,) = stream_map(units).stretches
    assert (stretch.count, stretch.equation) == (3, "x + drop_path·A(x)")
    (alone,) = stream_map(units[:1]).stretches
    assert alone.equation == "x + drop_path[0.1]·A(x)"


@pytest.mark.parametrize(
    ("factor", "shown"),
    [
        (0.5**0.5, "0.7071"),
        (1 / 12345678, "8.1e-08"),
        (1 / 24, "0.04167"),
        (0.99999999, "0.99999999"),
        (0.125, "0.125"),
    ],
)
def test_factors_are_shown_to_four_digits(factor: float, shown: str) -> None:
    form = UnitForm(shortcut=(Op("scale", factor),), branch=(Op("weight", "linear"), Op("scale", factor)))
    (stretch,) = stream_map([unit(0, "blocks.0", form, (2, 5, 8))]).stretches
    assert stretch.equation == f"{shown}·x + {shown}·A(x)"
    assert [obstacle.name for obstacle in stretch.shortcut] == [shown]


def test_the_map_holds_the_road_unfolded_too() -> None:
    linear = Op("weight", "linear")
    units = [unit(k, f"blocks.{k}", UnitForm(branch=(linear,)), (2, 5, 8), stream_rms=1.0 + k) for k in range(3)]
    road = stream_map(units)
    assert [s.count for s in road.stretches] == [3]
    assert [(s.label, s.count, s.stream_rms, s.shape) for s in road.units] == [
        (f"blocks.{k}", 1, (1.0 + k, 1.0 + k), (2, 5, 8)) for k in range(3)
    ]


def test_layers_of_a_net_without_units_are_a_road_too() -> None:
    road = layer_map([Layer(f"body.{k}", 1.0, 10.0**-k) for k in range(4)] + [Layer("head", None, None)])
    assert [(s.label, s.count, s.grad) for s in road.stretches] == [("body.0…3", 4, (1.0, 1e-3)), ("head", 1, None)]
    assert [s.label for s in road.units] == ["body.0", "body.1", "body.2", "body.3", "head"]
    assert not any(s.clean for s in road.units)


def test_what_stands_between_units_is_a_stretch_of_its_own() -> None:
    road = stream_map(examples.transitions().units)
    assert [(s.kind, s.label, s.count, s.equation, s.clean) for s in road.stretches] == [
        ("unit", "stages.0.0…3", 4, "x + A(x)", True),
        ("between", "stages.1.<down>", 1, "Conv2x2/2·LN(x)", False),
        ("unit", "stages.1.0…3", 4, "x + A(x)", True),
        ("between", "stages.2.<down>", 1, "Conv2x2/2·LN(x, …)", False),
        ("unit", "stages.2.0…3", 4, "x + A(x)", True),
    ]
    assert [len(road.units), sum(s.kind == "between" for s in road.units)] == [14, 2]
    down = road.stretches[1]
    assert [(o.kind, o.name) for o in down.after] == [("norm", "LN"), ("weight", "Conv2x2/2")]


def test_a_block_on_the_road_has_one_sign_for_each_kind() -> None:
    bn, relu, conv = Op("norm", "batch"), Op("activation", "relu"), Op("weight", "conv3x3")
    block = Passage(path="1", ops=(conv, bn, relu, conv, bn))
    units = [unit(0, "0", UnitForm(branch=(conv,)), (2, 8)), unit(1, "2", UnitForm(branch=(conv,)), (2, 8))]
    road = stream_map([units[0], replace(units[1], before=block)])
    between = road.stretches[1]
    assert between.equation == "B(x)"
    assert dict(road.branches)["B"] == "BN·Conv3x3·ReLU·BN·Conv3x3"
    assert [(o.kind, o.name) for o in between.after] == [
        ("weight", "Conv3x3, Conv3x3"), ("norm", "BN, BN"), ("activation", "ReLU"),
    ]  # fmt: skip


def test_units_that_differ_in_what_stands_before_them_alone_fold_between_it() -> None:
    norm = Passage(path="b.n", ops=(Op("norm", "layer"),))
    units = [unit(k, f"b.{k}", UnitForm(branch=(Op("weight", "linear"),)), (2, 8)) for k in range(6)]
    units = [units[0], *[replace(u, before=replace(norm, path=f"b.{u.index}.n")) for u in units[1:]]]
    assert [(s.label, s.count, s.place) for s in stream_map(units).stretches] == [
        ("b.0…4", 5, (0, 2)), ("b.1…5.n", 5, (1, 2)), ("b.5", 1, (0, 1)),
    ]  # fmt: skip


def test_places_that_reach_over_several_modules_fold() -> None:
    passed = (Op("weight", "linear"),)
    units = [unit(k, f"b.{k}.0", UnitForm(branch=(Op("weight", "linear"),)), (2, 8)) for k in range(5)]
    units = [
        units[0],
        *[replace(u, before=Passage(path=f"b.{u.index - 1}.1 … b.{u.index - 1}.3", ops=passed)) for u in units[1:]],
    ]
    assert [s.label for s in stream_map(units).stretches] == ["b.0…3.0", "b.0…3.1…3", "b.4.0"]

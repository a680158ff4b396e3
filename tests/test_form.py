"""The vocabulary: what is printed is read back, and a canonical form is the same function."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skipway.errors import SkipwayError
from skipway.form import KINDS, MERGES, Op, UnitForm

WINDOWS = st.from_regex(r"[1-9]{1,2}(x[1-9]){0,2}(/[1-9])?", fullmatch=True)
NUMBERS = st.floats(min_value=-8, max_value=8, allow_nan=False)
PROBABILITIES = st.floats(min_value=0, max_value=1)
NAMES = {
    "norm": ("batch", "layer", "rms", "group", "instance", "weight", "local_response"),
    "activation": ("relu", "relu6", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "mish", "swiglu"),
    "gate": ("g", "1-g", ""),
    "pad": ("zero", "learned", "reflect"),
    "pool": ("avg", "max", "upsample"),
}


def side_ops(kind: str) -> st.SearchStrategy[Op]:
    """Operations that may stand beside weights of `kind` ("weight" on a branch, "projection" on a shortcut)."""
    named = [st.sampled_from(names).map(lambda d, k=k: Op(k, d)) for k, names in NAMES.items()]
    if kind == "weight":
        weights = [
            st.builds(lambda p, w: Op("weight", p + w), st.sampled_from(["conv", "convT", "dwconv", "gconv"]), WINDOWS),
            st.sampled_from(["linear", "attention", "conv", "embedding", "lstm"]).map(lambda d: Op("weight", d)),
        ]
    else:
        weights = [WINDOWS.map(lambda w: Op("projection", w)), st.just(Op("projection", "linear"))]
    return st.one_of(
        *named, *weights,
        NUMBERS.map(lambda v: Op("scale", v)),
        st.sampled_from(["learned scalar", "learned vector"]).map(lambda d: Op("scale", d)),
        st.builds(Op, st.sampled_from(["dropout", "drop_path"]), PROBABILITIES),
        st.just(Op("dropout", "")),
        st.builds(lambda p, w: Op("pool", p + w), st.sampled_from(["avg", "max"]), WINDOWS),
        st.sampled_from(["stride2", "stride4", "part"]).map(lambda d: Op("slice", d)),
    )  # fmt: skip


def chain(kind: str, least: int = 0) -> st.SearchStrategy[tuple[Op, ...]]:
    return st.lists(side_ops(kind), min_size=least, max_size=5).map(tuple)


@st.composite
def forms(draw: st.DrawFn) -> UnitForm:
    merge = draw(st.sampled_from(MERGES))
    return UnitForm(
        merge=merge,
        shortcut=() if merge == "none" else draw(chain("projection")),
        branch=draw(chain("weight")),
        after=draw(chain("weight")),
        stream=draw(st.sampled_from(["single", "pair", "history", "streams(4)"])),
        parallel=tuple(draw(st.lists(chain("weight"), max_size=2))) if merge == "add" else (),
    )


@given(forms())
def test_an_equation_is_read_back(form: UnitForm) -> None:
    assert UnitForm.parse(form.equation()) == form


@given(forms())
def test_an_equation_of_the_canonical_form_is_read_back(form: UnitForm) -> None:
    canonical = form.canonical()
    assert UnitForm.parse(canonical.equation()) == canonical


@given(forms())
def test_canonical_is_idempotent(form: UnitForm) -> None:
    assert form.canonical().canonical() == form.canonical()


def scalar(op: Op, x: float) -> float:
    """An oracle: every operation as some function of one number, two spellings of one operation alike."""
    match op.kind:
        case "scale":
            factor = op.detail if isinstance(op.detail, float) else 0.3 + len(op.detail) / 100
            return factor * x
        case "gate":
            gate = 0.25
            return (1 - gate if op.detail == "1-g" else gate) * x
        case "dropout" | "drop_path":
            keep = 1 - op.detail if isinstance(op.detail, float) else 0.9
            return keep * x
        case _:
            return math.tanh(x + (sum(map(ord, op.kind + str(op.detail))) % 17) / 10)


def value(form: UnitForm, x: float) -> float:
    """`form` as a function of one number, straight from its definition."""

    def run(ops: tuple[Op, ...], v: float) -> float:
        for op in ops:
            v = scalar(op, v)
        return v

    h, f = run(form.shortcut, x), [run(ops, x) for ops in (form.branch, *form.parallel)]
    gate = 0.25
    joined = {
        "add": h + sum(f),
        "mean": (h + f[0]) / 2,
        "lerp": (1 - gate) * h + gate * f[0],
        "multiply": h * f[0],
        "concat": 7 * h + f[0],
        "none": f[0],
    }[form.merge]
    return run(form.after, joined)


def complementary(form: UnitForm) -> bool:
    """Whether branch and shortcut end in one pair of gates; reversed pairs are lerps read from the other side."""
    ends = [ops[-1] for ops in (form.shortcut, form.branch) if ops]
    return len(ends) == 2 and {e.detail for e in ends} == {"g", "1-g"} and {e.kind for e in ends} == {"gate"}


@given(forms(), st.floats(min_value=-3, max_value=3))
def test_canonical_keeps_the_function(form: UnitForm, x: float) -> None:
    if complementary(form) and form.shortcut[-1].detail == "g":
        # Which side is called g is a name; the gate's complement is a gate, so the oracle's fixed gate does not apply.
        return
    assert value(form.canonical(), x) == pytest.approx(value(form, x), rel=1e-9, abs=1e-9)


def test_known_equations() -> None:
    bn, relu = Op("norm", "batch"), Op("activation", "relu")
    transition = UnitForm(
        shortcut=(Op("projection", "1x1/2"), bn),
        branch=(Op("weight", "conv3x3/2"), bn, relu, Op("weight", "conv3x3"), bn),
        after=(relu,),
    )
    assert transition.equation() == "x' = ReLU( BN·Conv1x1/2(x) + BN·Conv3x3·ReLU·BN·Conv3x3/2(x) )"
    scaled = UnitForm(shortcut=(Op("scale", 0.5),), branch=(Op("weight", "linear"), Op("scale", 0.5)))
    assert scaled.equation() == "x' = 0.5·x + 0.5·Linear(x)"
    assert scaled.scale == 0.5
    assert UnitForm(branch=(bn, relu, Op("weight", "linear"))).branch_start == (bn, relu)


def test_mean_is_half_and_half() -> None:
    linear, half = Op("weight", "linear"), Op("scale", 0.5)
    spelled = UnitForm(shortcut=(half,), branch=(linear, half))
    assert UnitForm(merge="mean", branch=(linear,)).canonical() == spelled.canonical()


def test_complementary_gates_are_a_lerp() -> None:
    linear = Op("weight", "linear")
    gated = UnitForm(shortcut=(Op("gate", "1-g"),), branch=(linear, Op("gate", "g")))
    assert gated.canonical() == UnitForm(merge="lerp", branch=(linear,))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Op("weigth", "conv"), "unknown kind of operation 'weigth'\nexpected: one of " + ", ".join(KINDS)),
        (
            lambda: Op("norm", "b[t]"),
            "operation detail 'b[t]' of 'norm'\nexpected: letters, digits and _ . / -, or a number",
        ),
        (
            lambda: UnitForm(merge="sum"),
            "unknown merge 'sum'\nexpected: one of add, lerp, concat, multiply, mean, none",
        ),
        (lambda: UnitForm(stream="double"), "unknown stream 'double'\nexpected: single, pair, history or streams(n)"),
        (
            lambda: UnitForm(shortcut=(Op("weight", "linear"),)),
            "a weight on the shortcut\nexpected: kind 'projection' for weights that stand on the shortcut",
        ),
        (
            lambda: UnitForm(branch=(Op("projection", "linear"),)),
            "a projection off the shortcut\nexpected: kind 'weight' for weights in branch and after",
        ),
        (
            lambda: UnitForm.parse("y = x"),
            "not an equation: 'y = x'\nexpected: for example \"x' = ReLU( x + BN·Conv3x3(x) )\"",
        ),
        (
            lambda: UnitForm.parse("x' = x + Convolution(x)"),
            "unknown operation 'Convolution' in an equation\nexpected: for example BN, ReLU, Conv3x3/2, 0.5, λ",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(make, text) -> None:
    with pytest.raises(SkipwayError) as caught:
        make()
    assert str(caught.value) == text

"""The terminal report as exact text, and as a person at 100 columns needs it."""

from __future__ import annotations

import io
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console

from skipway.errors import SkipwayError
from skipway.form import KINDS
from skipway.parts import OBSTACLES, Heatmap, Lines, Section, Series, Skipped, Table, Text
from skipway.report import inspection_parts, to_text
from skipway.report.road import stream_map
from skipway.report.terminal_road import SIGNS, _middle

sys.path.insert(0, str(Path(__file__).parent))
import examples


def text(expected: str) -> str:
    return textwrap.dedent(expected).strip("\n")


def test_resnet50() -> None:
    assert repr(examples.resnet50()) == text("""
        skipway · tv:resnet50
        16 residual units, each proved (worst proof error 4.25 eps)
        25.6 M parameters · 16.4 GFLOP forward · 350 MiB of activations · train mode
        batch float32[2,3,224,224] · loss: random projection of the output (seed 0) · profile default
        5 forward runs · 3.2 s
            unit          x' =                                 rms share   cos alike          grad
        │   input
        ▣◇▽ layer1.0      ReLU( BN·Conv1x1(x) + A(x) )        0.80   40%  0.00  0.20        2.0e-3
        ▽   layer1.1…2 ×2 ReLU( x + A(x) )               0.90→1.00   40% -0.01  0.20 1.0e-3→6.7e-4
        ▣◇▽ layer2.0      ReLU( BN·Conv1x1/2(x) + B(x) )      1.10   40% -0.03  0.20        5.0e-4
        ▽   layer2.1…3 ×3 ReLU( x + A(x) )               1.20→1.40   40% -0.05  0.20 4.0e-4→2.9e-4
        ▣◇▽ layer3.0      ReLU( BN·Conv1x1/2(x) + B(x) )      1.50   40% -0.07  0.20        2.5e-4
        ▽   layer3.1…5 ×5 ReLU( x + A(x) )               1.60→2.00   40% -0.10  0.20 2.2e-4→1.5e-4
        ▣◇▽ layer4.0      ReLU( BN·Conv1x1/2(x) + B(x) )      2.10   40% -0.13  0.20        1.4e-4
        ▽   layer4.1…2 ×2 ReLU( x + A(x) )               2.20→2.30   40% -0.15  0.20        1.3e-4
        │   output
        A = BN·Conv1x1·ReLU·BN·Conv3x3·ReLU·BN·Conv1x1
        B = BN·Conv1x1·ReLU·BN·Conv3x3/2·ReLU·BN·Conv1x1
        road: ▽ activation · ◇ norm · ▣ projection
        rms: stream · share: branch in branch + shortcut, rms · cos: between the two · grad: |∂loss/∂stream|
        alike: mean cosine between tokens (images: channels) behind the unit
        per unit: stream rms ×1.05, gradient ×0.93 (backwards, last unit to first), similarity +0.0010
        note: join not explained: add in avgpool (both sides come from the input of another branch)
        note: attention was not looked at: the model has none

        info stream-growth at layer4.2
            the stream grows with depth
            evidence: growth 1.62, units 16
            fix: none needed below 100 units
            source: arXiv 1603.05027
    """)


def test_alternating_units_fold_into_two_lines() -> None:
    assert repr(examples.post_norm()) == text("""
        skipway · post-norm
        120 residual units, each proved (worst proof error 30.2 eps)
        train mode · batch int64[2,16] · loss: mean · profile default · 0.0 s
          unit               x' =            rms share  cos alike         grad
        │ input
        ◇ layers.0…59#1 ×60┐ LN( x + A(x) ) 1.00   23% 0.00     – 7.5e-37→0.25
        ◇ layers.0…59#2 ×60┘ LN( x + B(x) ) 1.00   23% 0.00     – 1.5e-36→0.50
        │ output
        A = Linear·Attn
        B = Linear·GELU·Linear
        road: ◇ norm
        rms: stream · share: branch in branch + shortcut, rms · cos: between the two · grad: |∂loss/∂stream|
        alike: mean cosine between tokens (images: channels) behind the unit
        no findings
    """)


def test_no_units_is_said_loudly() -> None:
    assert repr(examples.nothing()) == text("""
        skipway · Sequential
        NO RESIDUAL UNITS FOUND: no place in this run joins a stream with a branch of its own.
        eval mode · batch float32[2,8] · loss: mean · profile default, structure only · 0.0 s
        note: no two tensors with a common ancestor are added
        no findings
    """)


@pytest.mark.parametrize("make", [examples.resnet50, examples.post_norm, examples.nothing])
def test_repr_fits(make) -> None:
    lines = repr(make()).split("\n")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_rich_shows_the_same_words() -> None:
    console = Console(file=io.StringIO(), width=100, color_system="truecolor", force_terminal=True)
    console.print(examples.resnet50())
    shown = Console(file=io.StringIO(), width=100, color_system=None)
    shown.print(examples.resnet50())
    assert "\x1b[" in console.file.getvalue()
    assert [line.rstrip() for line in shown.file.getvalue().rstrip().split("\n")] == repr(examples.resnet50()).split(
        "\n"
    )


def test_markup_in_names_is_only_text() -> None:
    assert to_text([Text(text="[bold]x[/bold]"), Table(columns=("a",), rows=(("[red]b",),))]).count("[") == 3


def test_markup_in_titles_is_only_text() -> None:
    # A bracket that closes nothing ends the program, where it is read as markup.
    shown = to_text([Table(columns=("a", "[b]"), rows=(("x", "y"),), title="Difference from x[b], closing [/b]")])
    assert shown.split("\n")[0] == "Difference from x[b], closing [/b]"
    assert "[b]" in shown.split("\n")[2]


COSTS = Table(
    columns=("design", "parameters", "images/s", "grad at the start"),
    rows=(("resnet56@preact", "650", "12,345", "1.0e-3"), ("plain", "1.2 M", "9", "0.50")),
    numeric=("parameters", "images/s", "grad at the start"), title="Cost",
)  # fmt: skip


def test_headings_of_numbers_are_broken_before_anything_else() -> None:
    assert "grad at the start" in to_text([COSTS], width=70)
    assert (
        to_text([COSTS], width=54)
        == text("""
        Cost

                                                     grad
                                                   at the
         design            parameters   images/s    start
         ────────────────────────────────────────────────
         resnet56@preact          650     12,345   1.0e-3
         plain                  1.2 M          9     0.50
    """)
        + "\n"
    )


def test_a_table_that_does_not_fit_is_told_row_by_row() -> None:
    """650 is never 65 over 0."""
    assert to_text([COSTS], width=40) == text("""
        Cost

        resnet56@preact
          parameters: 650
          images/s: 12,345
          grad at the start: 1.0e-3

        plain
          parameters: 1.2 M
          images/s: 9
          grad at the start: 0.50
    """)


def test_words_still_fold_in_a_table_that_fits() -> None:
    table = Table(columns=("row", "error"), rows=(("a row of many words that go on", "1.25"),), numeric=("error",))
    shown = to_text([table], width=30)
    assert "a row of many words" in shown
    assert shown.split("\n")[3].endswith("1.25")


def test_every_kind_of_operation_has_a_sign() -> None:
    assert set(OBSTACLES) == set(KINDS) == set(SIGNS)
    assert len(set(SIGNS.values())) == len(SIGNS)


def test_other_parts() -> None:
    parts = [
        Lines(
            series=(Series(name="rms", y=(1.0, 2.0, None, 8.0)), Series(name="gradient", y=(None,))),
            log=True,
            title="signal",
        ),
        Heatmap(values=((0.0, 1.0), (0.5, None)), rows=("head", "tail"), columns="unit"),
        Skipped(what="no backward", why="the output needs no gradient"),
    ]
    assert to_text(parts) == text("""
        signal
        rms       ▁▃·█  1.00 → 8.00
        gradient  ·  not measured
        head   █
        tail  ▒·
        unit · from 0 (blank) to 1.00 (full)
        note: no backward (the output needs no gradient)
    """)


def test_sections_and_notes() -> None:
    inner = Section(title="inner", parts=(Text(text="said"),))
    table = Table(columns=("net", "error"), rows=(("a", "1.5"),), numeric=("error",), note="the smallest error")
    assert to_text([Text(text="top"), Section(title="outer", note="why", parts=(table, inner))]) == text("""
        top

        outer
        why

         net   error
         ───────────
         a       1.5

        look for: the smallest error

        inner
        said
    """)


def test_parts_check_their_shape() -> None:
    with pytest.raises(SkipwayError, match="a row of 1 cells\nexpected: 2 cells: a, b"):
        Table(columns=("a", "b"), rows=(("1",),))
    for what, value in (("x", (1.0,)), ("low", (1.0,)), ("high", ()), ("labels", ("a",))):
        with pytest.raises(SkipwayError, match=f"^s: {len(value)} values of {what}\nexpected: 2, as of y$"):
            Series(name="s", y=(1.0, 2.0), **{what: value})
    with pytest.raises(SkipwayError, match="2 rows with 1 names"):
        Heatmap(values=((1.0,), (2.0,)), rows=("a",))
    with pytest.raises(SkipwayError, match="rows of different lengths"):
        Heatmap(values=((1.0,), (2.0, 3.0)), rows=("a", "b"))


def test_an_unmeasured_inspection_has_no_columns_of_numbers() -> None:
    from dataclasses import replace

    from skipway.units.unit import StreamNumbers

    measured = examples.resnet50()
    bare = replace(measured, units=[replace(u, numbers=StreamNumbers()) for u in measured.units], slopes={})
    assert "share" not in to_text(inspection_parts(bare))


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("encoder.layer.0…11.attention", "encoder.layer.0…11.attention"),
        ("model.encoder.layer.0…11.attention.output", "….layer.0…11.attention.output"),
        ("features.denseblock1.denselayer1.conv", "….denseblock1.denselayer1.conv"),
        ("features_of_the_net.denseblock123.denselayer1234", "….denseblock123.denselayer1234"),
        ("a" * 40, "…" + "a" * 29),
    ],
)
def test_long_paths_keep_their_ends(label: str, shown: str) -> None:
    assert _middle(label, 30) == shown


def test_concatenations_fold_though_their_width_grows() -> None:
    from skipway.form import Op, UnitForm

    form = UnitForm(merge="concat", branch=(Op("weight", "conv3x3"),))
    units = [examples.unit(i, f"layer{i}", form, (2, 16 + 4 * i, 8, 8)) for i in range(5)]
    (stretch,) = stream_map(units).stretches
    assert (stretch.label, stretch.count, stretch.equation) == ("layer0…layer4", 5, "concat(x, A(x))")


def test_a_branch_that_holds_a_network_shows_its_ends() -> None:
    from skipway.form import Op, UnitForm
    from skipway.report.terminal_road import _cut

    long = UnitForm(branch=(Op("weight", "linear"), Op("activation", "relu")) * 20)
    shown = _cut(long.equation().removeprefix("x' = x + ").removesuffix("(x)"))
    ends = "·".join(["ReLU", "Linear"] * 4)
    assert shown == f"{ends}·…(24 operations)…·{ends}"


def test_deep_levels_are_counted_not_drawn() -> None:
    from dataclasses import replace

    inside = replace(examples.resnet50().units[1], level=2)
    far_inside = replace(inside, level=21)
    shown = to_text([stream_map([inside, far_inside])]).split("\n")
    assert [line.split("layer")[0].rstrip() for line in shown[2:4]] == ["│ │ ▽", "│×21 ▽"]


def test_units_without_a_proof_are_marked_where_others_have_one() -> None:
    from dataclasses import replace

    whole = examples.resnet50()
    one = replace(whole, units=[replace(whole.units[0], proof_error=None), *whole.units[1:]])
    assert "16 residual units, 15 of 16 proved (worst proof error 4.25 eps)" in repr(one)
    assert repr(one).count("unproved") == 1
    none = replace(whole, units=[replace(u, proof_error=None) for u in whole.units])
    assert "16 residual units, none proved" in repr(none)
    assert "unproved" not in repr(none)

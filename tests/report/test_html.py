"""The HTML lowering as text: escaped, self-contained, of bounded size."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report import examples
from skipway.parts import FindingPart, Lines, Section, Series, Skipped, Stretch, Table, Text
from skipway.report import inspection_report, signal_map, stream_profiles, to_html
from skipway.report.escape import escaped, for_plotly, script_json
from skipway.report.html_parts import Page, lower_all
from skipway.report.road_signal import signal

MIB = 2**20


def lowered(*parts) -> str:
    return lower_all(parts, Page())


def test_parts_as_html() -> None:
    assert lowered(Text(text="a < b", tone="good")) == '<p class="text good">a &lt; b</p>'
    assert lowered(Skipped(what="no backward", why="frozen")) == (
        '<p class="skipped">no backward <span class="why">frozen</span></p>'
    )
    assert lowered(Section(title="A", note="n", parts=(Text(text="x"),))) == (
        '<section aria-labelledby="section-1"><h2 id="section-1">A</h2><p class="lead">n</p>'
        '<p class="text plain">x</p></section>'
    )
    assert lowered(Table(columns=("net", "error"), rows=(("a", "1"),), numeric=("error",), note="small")) == (
        '<div class="block"><div class="scroll" tabindex="0" role="region" aria-label="table"><table>'
        '<thead><tr><th scope="col">net</th><th scope="col" class="number">error</th></tr></thead>'
        '<tbody><tr><th scope="row">a</th><td class="number">1</td></tr></tbody></table></div>'
        '<aside class="note"><b>What to look for</b> small</aside></div>'
    )
    assert lowered(
        FindingPart(rule="r", severity="error", path="p.q", message="m", evidence={"a_b": 0.5}, fix="f")
    ) == (
        '<article class="finding error"><p class="rule"><b class="severity">error</b> <code>r</code>'
        ' <span class="where">at <code>p.q</code></span></p><p class="message">m</p>'
        '<dl class="evidence"><div><dt>a b</dt><dd>0.50</dd></div></dl><p class="fix"><b>Fix</b> f</p></article>'
    )


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.tags = "", []

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data) -> None:
        self.text += data


PRINTABLE = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(PRINTABLE)
def test_any_text_is_read_back_as_that_text(text: str) -> None:
    reader = _Reader()
    reader.feed(f'<p title="{escaped(text)}">{escaped(text)}</p>')
    reader.close()
    assert reader.tags == [("p", [("title", text)])]
    assert reader.text == text


@given(st.recursive(PRINTABLE | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_json_in_a_script_is_read_back_and_ends_nothing(value) -> None:
    text = script_json(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


def test_what_html_cannot_hold() -> None:
    assert escaped("a\x00b\x1f\ud800c\n\td") == "a�b��c\n\td"
    assert for_plotly("<b>&") == "&lt;b&gt;&amp;"


def test_the_file_is_bounded_and_holds_plotly_only_for_charts() -> None:
    with_charts = to_html(inspection_report(examples.resnet50()), title="t")
    without = to_html((signal_map(examples.resnet50()), Text(text="x")), title="t")
    assert with_charts.count("Plotly.react") == 1
    assert len(re.findall(r"plotly\.js v\d", with_charts)) == 1
    assert len(with_charts.encode()) < 6 * MIB
    assert "lotly.react" not in without
    assert len(without.encode()) < 0.1 * MIB


def test_nothing_of_ours_names_an_address() -> None:
    """plotly's own code holds addresses it asks only for maps; the policy in the page forbids them all the same."""
    page = to_html((signal_map(examples.post_norm()),), title="t")
    assert re.findall(r"(?:https?:)?//[\w.]+|url\(|@import|<link|src=", page) == ["http://www.w3.org"]  # SVG's name
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.split("; ")[0] == "default-src 'none'"
    assert policy.index("default-src") < page.index("<style>")


def test_the_heading_is_the_title_text_or_the_title() -> None:
    assert "<title>t</title>" in to_html((Text(text="big", tone="title"),), title="t")
    assert "<h1>big</h1>" in to_html((Text(text="big", tone="title"),), title="t")
    assert "<h1>t</h1>" in to_html((Text(text="x"), Text(text="big", tone="title")), title="t")


def test_contents_are_listed_from_three_sections_on() -> None:
    sections = [Section(title=f"<{k}>", parts=()) for k in range(3)]
    assert "<nav" not in to_html(sections[:2], title="t")
    assert '<a href="#section-2">&lt;1&gt;</a>' in to_html(sections, title="t")


@pytest.mark.parametrize(
    ("rms", "grad", "width", "level"),
    [
        (1.0, 1.0, 9.0, 0), (10.0, 1e-2, 13.0, -2), (0.1, 30.0, 5.0, 1), (1e9, 1e9, 20.0, 4), (0.0, 0.0, 2.0, -4),
        (float("nan"), float("nan"), None, None), (float("inf"), float("inf"), 20.0, 4), (None, None, None, None),
    ],
)  # fmt: skip
def test_width_and_shade(rms, grad, width, level) -> None:
    first, last = Stretch(label="a", stream_rms=(1.0, 1.0)), Stretch(label="c", grad=(1.0, 1.0))
    here = Stretch(
        label="b", stream_rms=None if rms is None else (rms, rms), grad=None if grad is None else (grad, grad)
    )
    seen = signal([first, here, last])
    assert (seen.width(here), seen.level(here)) == (width, level)


def test_the_signal_is_read_along_the_main_road() -> None:
    units = [replace(u, level=k % 2) for k, u in enumerate(signal_map(examples.resnet50()).units)]
    seen = signal(units)
    assert (seen.rms, seen.grad) == (units[0].stream_rms[0], units[14].grad[0])
    assert seen.rms_change == pytest.approx(2.2 / 0.8)
    assert seen.grad_change == pytest.approx(15)


def test_profiles() -> None:
    charts = stream_profiles({"a": examples.resnet50(), "b": examples.post_norm()})
    assert [c.log for c in charts] == [True, False, True]
    rms, share, grad = charts
    assert [len(s.y) for s in rms.series] == [16, 120]
    assert share.unit == "%"
    assert share.series[0].y[0] == pytest.approx(40)
    assert grad.series[0].y[:2] == (2e-3, 1e-3)
    assert rms.series[0].labels[0] == "layer1.0"
    assert rms.series[0].x[:2] == (1.0, 2.0)
    assert stream_profiles({"c": examples.nothing()}) == ()


def test_curves_that_cannot_be_drawn_say_so() -> None:
    part = Lines(series=(Series(name="s", y=(1.0, float("nan"), 0.0)),), log=True, title="t")
    assert "2 values are not drawn: zero, negative or not finite." in lowered(part)
    assert 'aria-label="Line chart of t by unit, logarithmic scale: s from 1.00 to 0."' in lowered(part)


def _colours(name: str) -> dict[str, str]:
    text = (resources.files("skipway.report") / "assets" / f"{name}.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6});", text))


def _contrast(a: str, b: str) -> float:
    """WCAG 2.1's contrast ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast(theme: str) -> None:
    """Text 4.5 to 1, what is drawn 3 to 1, on both grounds: WCAG AA."""
    colours = _colours(theme)
    assert colours.keys() == _colours("light").keys()
    for ground in ("--paper", "--card"):
        for ink in ("--ink", "--soft", "--link", "--good", "--warning", "--bad", "--info"):
            assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    drawn = [name for name in colours if re.fullmatch(r"--(g-?\d|c\d|arch)", name)]
    assert len(drawn) == 9 + 8 + 1
    for name in drawn:
        assert _contrast(colours[name], colours["--paper"]) >= 3, name
    assert _contrast(colours["--sign"], colours["--sign-ink"]) >= 4.5
    for shade in (name for name in drawn if name.startswith("--g")):
        # A sign stands out from every colour of the road, by its face or by its edge.
        face, edge = (_contrast(colours[c], colours[shade]) for c in ("--sign", "--sign-ink"))
        assert max(face, edge) >= 3, shade

"""The page in a browser: whole, silent, and readable by eye, by keyboard, on a phone and on paper."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from report import examples
from skipway.parts import Lines, Section, Series, Skipped, StreamMap
from skipway.report import inspection_report, signal_map

sys.path.insert(0, str(Path(__file__).parent))
import html_cases

SYNTHETIC = {
    "resnet50": examples.resnet50, "post_norm": examples.post_norm, "plain": html_cases.plain,
    "nested": html_cases.nested, "nothing": examples.nothing,
}  # fmt: skip
PLACES = "(e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] })"


def the_map(inspection):
    """The map alone: a page without plotly, which is read in a moment."""
    return (signal_map(inspection),)


@pytest.mark.parametrize("name", ["post_norm", "nested"])
def test_the_map_has_one_node_for_each_unit(opened, name: str) -> None:
    inspection = SYNTHETIC[name]()
    assert opened(the_map(inspection)).units().count() == len(inspection.units)


@pytest.mark.parametrize(("name", "charts", "lines"), [("resnet50", 4, 5), ("plain", 2, 2), ("nothing", 0, 0)])
def test_all_figures_are_drawn(opened, name: str, charts: int, lines: int) -> None:
    inspection = SYNTHETIC[name]()
    shown = opened(inspection_report(inspection))
    assert shown.units().count() == len(inspection.units or inspection.layers)
    if charts:  # one is the finding's evidence; a plain net has no branches and so no share of theirs
        shown.until_drawn()
    assert shown.page.locator(".chart").count() == charts
    assert shown.page.locator(".chart .main-svg .trace path.js-line").count() == lines


def test_parts_of_every_kind(opened) -> None:
    shown = opened(html_cases.all_parts("words"))
    shown.until_drawn()
    assert shown.page.locator("h1").inner_text() == "words"
    assert shown.page.locator(".chart .heatmaplayer image").count() == 1
    assert shown.page.locator(".chart path.js-fill").count() == 1  # the band of the seeds
    assert "1 value is not drawn: zero, negative or not finite." in shown.page.locator("main").inner_text()
    assert shown.page.locator("aside.note").count() == 2
    levels = [h.evaluate("e => e.tagName") for h in shown.page.locator("h1, h2, h3").all()]
    assert levels == ["H1", "H2", "H3"]


def test_what_stands_on_the_road_is_drawn_where_it_stands(opened) -> None:
    shown = opened(the_map(examples.resnet50()))
    kinds = "(e => [...e.querySelectorAll('use')].map(u => u.getAttribute('href').slice(6)))"
    drawn = shown.units().evaluate_all(f"all => all.map({kinds})")
    first, later = ["projection", "norm", "activation"], ["activation"]
    assert drawn == [first if k in (0, 3, 7, 13) else later for k in range(16)]
    assert shown.page.locator(".road .arch").count() == 16
    # Along the road: projection and norm before the join, the activation behind it.
    x = shown.units().first.evaluate(
        "e => [...e.querySelectorAll('use, .join')].map(u => u.getBoundingClientRect().left)"
    )
    assert x == sorted(x)
    assert shown.page.locator(".fact").first.inner_text().split("\n")[0] == "16 of 16"


def test_the_road_runs_without_a_gap(opened) -> None:
    shown = opened(the_map(examples.post_norm()))
    boxes = shown.units().evaluate_all(f"all => all.map({PLACES})")
    rows = sorted({round(box[1]) for box in boxes})
    assert len(rows) > 1
    for before, after in itertools.pairwise(boxes):
        same_row = round(before[1]) == round(after[1])
        assert after[0] == pytest.approx(before[2], abs=0.1) if same_row else round(after[1]) > round(before[1])


def test_width_and_colour_follow_the_signal(opened) -> None:
    units = [
        replace(u, numbers=replace(u.numbers, stream_rms=rms, grad_stream=grad))
        for u, rms, grad in zip(
            examples.resnet50().units, (1.0, 10.0, 0.1, None), (1e-3, 1.0, 1e9, 1.0), strict=False
        )
    ]  # fmt: skip
    shown = opened((signal_map(replace(examples.resnet50(), units=units)),))
    road = "(e => { const s = getComputedStyle(e, '::before'); return [s.height, s.backgroundColor] })"
    widths, colours = zip(*shown.units().evaluate_all(f"all => all.map({road})"), strict=True)
    assert widths == ("9px", "13px", "5px", "7px")
    assert colours[0] == "rgb(84, 74, 200)"  # --g-3
    assert colours[1] == colours[3] == "rgb(31, 133, 99)"  # --g0
    assert colours[2] == "rgb(168, 13, 26)"  # --g4, where the scale ends


def test_one_name_has_one_colour_and_axes_have_readable_marks(opened) -> None:
    first = Lines(series=(Series(name="a", y=(1.0, 1e-6)), Series(name="b", y=(1.0, 1e3))), log=True)
    second = Lines(series=(Series(name="b", y=(0.3, 3.0)),), log=True)
    shown = opened((first, second)).until_drawn()
    strokes = "all => all.map(e => getComputedStyle(e).stroke)"
    _, b, again = shown.page.locator(".scatterlayer path.js-line").evaluate_all(strokes)
    assert b == again
    marks = [shown.page.locator(".chart").nth(k).locator(".ytick text").all_text_contents() for k in (0, 1)]
    assert [m.replace("\u200b", "") for m in marks[0]] == ["10-6", "0.0001", "0.01", "1", "100"]
    assert marks[1] == ["0.5", "1", "2"]


def test_pointing_at_a_chart_shows_all_curves_there(opened) -> None:
    a = Series(name="<b>%{y}", x=(1.0, 2.0, 3.0), y=(1.0, 2.0, 4.0), labels=("p.0", "p.1", "p.2"))
    b = Series(name="b", x=(1.0, 2.0, 3.0), y=(30.0, 20.0, 10.0), low=(28.0, 19.0, 9.0), high=(32.0, 21.0, 11.0))
    shown = opened((Lines(series=(a, b), unit="%"),)).until_drawn()
    box = shown.page.locator(".chart .nsewdrag").bounding_box()
    for shift in range(10):  # the pointer comes from the side, as a hand does
        shown.page.mouse.move(box["x"] + box["width"] / 2 - 20 + 2 * shift, box["y"] + 40)
    words = shown.page.locator(".hoverlayer").evaluate("e => e.textContent")
    assert "<b>%{y}: 2.00 %  p.1" in words
    assert "b: 20.0 %" in words


def test_units_inside_branches_are_on_a_road_of_their_own(opened) -> None:
    shown = opened(the_map(html_cases.nested()))
    tops = shown.units().evaluate_all("all => all.map(e => e.querySelector('.join').getBoundingClientRect().top)")
    inner = [k % 4 != 3 for k in range(8)]
    assert len({round(t) for t, i in zip(tops, inner, strict=True) if i}) == 1
    assert min(t for t, i in zip(tops, inner, strict=True) if not i) > max(
        t for t, i in zip(tops, inner, strict=True) if i
    )
    assert "inside a branch, level 1" in shown.units().first.get_attribute("aria-label")
    assert "level" not in shown.units().nth(3).get_attribute("aria-label")
    assert shown.page.locator(".ramp").count() == 4  # up, down, up, down


def test_what_stands_between_units_is_on_the_road_and_counts_as_none(opened) -> None:
    shown = opened(the_map(examples.transitions()))
    assert shown.page.locator(".facts .fact").first.inner_text() == (
        "2 places\nbetween 12 clean units have something standing on the road"
    )
    assert shown.units().count() == 14
    assert shown.page.locator(".arch").count() == 12
    down = shown.units().nth(9)
    assert down.get_attribute("aria-label").startswith(
        "between units 8 and 9 of 12, stages.2.<down>; Conv2x2/2·LN(x, …); on the road: norm LN"
    )
    assert "not proved" not in down.get_attribute("aria-label")
    down.hover()
    for text in (
        "stages.2.<down>",
        "between units 8 and 9 of 12",
        "x' = Conv2x2/2·LN(x, …)",
        "norm LN",
        "weight Conv2x2/2",
    ):
        assert text in shown.glass()
    shown.units().nth(10).hover()
    assert "unit 9 of 12" in shown.glass()
    widths = shown.units().evaluate_all("all => all.map(e => e.style.getPropertyValue('--w'))")
    assert widths[9] == widths[10] != widths[8]  # what the next unit reads


def test_a_long_passage_is_written_out_under_its_letter(opened) -> None:
    whole = examples.transitions()
    passed = whole.units[8].before
    assert passed is not None
    long = replace(passed, ops=(*passed.ops, examples.BN, examples.RELU, examples.conv("3x3")))
    units = [replace(u, before=long) if u.index == 8 else u for u in whole.units]
    shown = opened(the_map(replace(whole, units=units)))
    shown.units().nth(9).hover()
    for text in ("x' = B(x, …)", "B = Conv3x3·ReLU·BN·Conv2x2/2·LN"):
        assert text in shown.glass()


def test_pointing_shows_the_numbers(opened) -> None:
    shown = opened(the_map(examples.resnet50()))
    assert shown.page.locator(".glass.open").count() == 0
    shown.units().nth(3).hover()
    for text in (
        "layer2.0", "unit 4 of 16", "2×512×28×28", "x' = ReLU( BN·Conv1x1/2(x) + B(x) )",
        "B = BN·Conv1x1·ReLU·BN·Conv3x3/2·ReLU·BN·Conv1x1", "projection Conv1x1/2", "norm BN", "activation ReLU",
        "stream rms\n1.10", "branch share\n40%", "gradient\n5.0e-4",
    ):  # fmt: skip
        assert text in shown.glass()
    shown.page.mouse.move(5, 5)
    assert shown.page.locator(".glass.open").count() == 0


def test_the_keyboard_reaches_everything(opened) -> None:
    shown = opened(the_map(examples.post_norm()))
    page = shown.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0  # it has come into view
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.k") == "0"  # 120 units are one stop
    here = "Number(document.activeElement.dataset.k)"
    label = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(label).startswith("unit 1 of 120, layers.0#1; LN( x + A(x) ); on the road: norm LN;")
    assert "unit 1 of 120" in shown.glass()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(here) == 1
    assert "unit 2 of 120" in shown.glass()
    left, top, *_ = page.locator(":focus").evaluate(PLACES)
    page.keyboard.press("ArrowDown")
    below = page.locator(":focus").evaluate(PLACES)
    assert below[1] > top
    assert abs(below[0] - left) < 60
    page.keyboard.press("ArrowUp")
    assert page.evaluate(here) == 1
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")  # there is no further
    assert page.evaluate(here) == 119
    page.keyboard.press("Home")
    assert page.evaluate(here) == 0
    page.keyboard.press("Escape")
    assert page.locator(".glass.open").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert page.locator(".road [tabindex='0']").count() == 1


def test_what_is_drawn_is_also_said(opened) -> None:
    shown = opened(inspection_report(examples.resnet50())).until_drawn()
    charts = shown.page.locator(".chart[role=img]")
    assert charts.nth(1).get_attribute("aria-label") == (
        "Line chart of Forward: rms of the stream by unit, from input to output, logarithmic scale: "
        "tv:resnet50 from 0.80 to 2.30."
    )
    assert shown.page.locator("[role=listbox]").get_attribute("aria-label") == (
        "Stream map, 16 units from input to output"
    )
    details = shown.page.locator("details")
    assert details.count() == 5  # the finding's chart, the road, three charts
    details.nth(1).locator("summary").click()
    rows = details.nth(1).locator("tbody tr")
    assert rows.count() == 8
    assert rows.nth(1).inner_text().split("\t")[:4] == ["ReLU", "layer1.1…2", "2", "ReLU( x + A(x) )"]


def test_light_and_dark(opened) -> None:
    parts = inspection_report(examples.resnet50())
    background, line = "getComputedStyle(document.body).backgroundColor", ".chart path.js-line"
    stroke = "e => getComputedStyle(e).stroke"
    dark = opened(parts, color_scheme="dark").until_drawn()
    light = opened(parts, color_scheme="light").until_drawn()
    assert dark.page.evaluate(background) == "rgb(15, 18, 22)"
    assert light.page.evaluate(background) == "rgb(255, 255, 255)"
    in_dark, in_light = (p.page.locator(line).first.evaluate(stroke) for p in (dark, light))
    assert in_dark != in_light
    for shown in (dark, light):
        button = shown.page.locator("#theme")
        said = button.get_attribute("aria-label")
        button.click()
        assert button.get_attribute("aria-label") != said
    assert dark.page.evaluate(background) == "rgb(255, 255, 255)"
    assert light.page.evaluate(background) == "rgb(15, 18, 22)"
    assert dark.page.locator(line).first.evaluate(stroke) == in_light
    assert light.page.locator(line).first.evaluate(stroke) == in_dark


@pytest.mark.parametrize("name", ["resnet50", "post_norm", "plain", "nested"])
def test_on_a_phone_nothing_is_cut_off(opened, name: str) -> None:
    parts = the_map(SYNTHETIC[name]())
    if name == "resnet50":
        parts = inspection_report(SYNTHETIC[name]()) + html_cases.all_parts("Wortungetüm" * 6)
    shown = opened(parts, width=390, height=844, has_touch=True, is_mobile=True)
    if name == "resnet50":
        shown.until_drawn()
    for details in shown.page.locator("summary").all():
        details.click()
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
    assert max(box[2] for box in shown.units().evaluate_all(f"all => all.map({PLACES})")) <= 390
    table = shown.page.locator(".map .scroll").first  # scrolls inside its own box
    assert table.evaluate("e => e.scrollWidth > e.clientWidth && e.getBoundingClientRect().right <= 390")
    shown.units().nth(5).tap()
    left, _, right, _ = shown.page.locator(".glass.open").evaluate(PLACES)
    assert left >= 0
    assert right <= 390


def test_names_at_the_end_of_a_row_make_no_page_wider(opened) -> None:
    shown = opened(the_map(html_cases.deep(333)))
    for width in range(360, 400, 3):
        shown.page.set_viewport_size({"width": width, "height": 844})
        assert shown.page.evaluate("document.documentElement.scrollWidth") == width
    names = shown.page.locator(".tag.stage")
    assert names.all_inner_texts() == [f"units.{k}" for k in (0, 111, 222)]
    shown.page.wait_for_timeout(50)  # the names have found their side
    assert max(box[2] for box in names.evaluate_all(f"all => all.map({PLACES})")) <= 399


def test_on_paper(opened) -> None:
    shown = opened(inspection_report(examples.post_norm()), width=703, color_scheme="dark").until_drawn()
    shown.units().nth(2).hover()
    shown.page.emulate_media(media="print")
    shown.page.wait_for_timeout(200)  # charts are drawn again
    assert shown.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')") == "#ffffff"
    for hidden in ("#theme", ".glass", ".keys", ".skip"):
        assert not shown.page.locator(hidden).first.is_visible()
    assert max(box[2] for box in shown.units().evaluate_all(f"all => all.map({PLACES})")) <= 703
    line = shown.page.locator(".chart path.js-line").first
    assert line.evaluate("e => getComputedStyle(e).stroke") == "rgb(11, 102, 194)"  # --c0 of the light colours
    assert line.evaluate("e => e.getBoundingClientRect().right") <= 703


def test_who_wants_no_motion_gets_none(opened) -> None:
    parts = (Skipped(what="nothing"),)
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    assert opened(parts, reduced_motion="reduce").page.evaluate(behaviour) == "auto"
    assert opened(parts, reduced_motion="no-preference").page.evaluate(behaviour) == "smooth"
    moving = "document.getAnimations().length"
    assert opened(the_map(examples.resnet50())).page.evaluate(moving) == 0


@pytest.mark.parametrize(
    "name", [html_cases.EVIL, "</script><script>alert(1)</script>", "</style>\u2028&lt;\x00\x1f'\""]
)
def test_names_are_only_text(opened, name: str) -> None:
    shown = opened((*inspection_report(html_cases.evil(name)), *html_cases.all_parts(name))).until_drawn()
    seen = name.replace("\x00", "�").replace("\x1f", "�")
    assert shown.page.locator("h1").evaluate("e => e.textContent") == f"skipway · {seen}"
    assert shown.page.locator("main img, main style, main script:not([type='application/json'])").count() == 0
    shown.units().nth(2).hover()
    assert shown.page.locator(".glass .who b").evaluate("e => e.textContent") == name
    assert seen in shown.page.locator(".finding .message").first.evaluate("e => e.textContent")
    legends = shown.page.locator(".chart .legendtext").evaluate_all("all => all.map(e => e.textContent)")
    assert any(text.startswith(name.split("\u2028", maxsplit=1)[0]) for text in legends)


def test_a_page_of_several_maps(opened) -> None:
    """Each map is a stop of its own, and reads its own units."""
    named = {"resnet50": examples.resnet50(), "post-norm": examples.post_norm(), "plain": html_cases.plain()}
    sections = tuple(Section(title=n, parts=(signal_map(i, title=n),)) for n, i in named.items())
    shown = opened(sections, reduced_motion="reduce")
    maps = shown.page.locator(".map")
    assert [maps.nth(k).locator("[role=option]").count() for k in range(3)] == [16, 120, 56]
    maps.nth(2).locator("[role=option]").nth(7).focus()
    assert "body.7.conv" in maps.nth(2).locator(".glass").inner_text()
    assert shown.page.locator("nav a").all_inner_texts() == list(named)
    shown.page.locator("nav a").nth(1).click()
    assert shown.page.locator("h2").nth(1).evaluate("e => Math.abs(e.getBoundingClientRect().top)") < 400


def test_an_empty_road_says_so(opened) -> None:
    shown = opened((StreamMap(stretches=()),))
    assert "There is nothing on this road" in shown.page.locator("main").inner_text()


@pytest.mark.parametrize("units", [333, 600])
def test_a_deep_net_is_at_hand_at_once(opened, units: int) -> None:
    shown = opened(inspection_report(html_cases.deep(units)), wait="commit")
    ready_ms = shown.until("roads")
    assert shown.units().count() == units
    shown.units().nth(units - 1).focus()
    assert f"unit {units} of {units}" in shown.glass()
    # Some 100 ms on an idle machine; the limit is for one that is busy with other tests.
    assert ready_ms < 5000, f"the road can be used after {ready_ms:.0f} ms"

"""Claims examined, kept and told; the claims themselves are tested by what they find."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from skipway.errors import SkipwayError, UnknownNameError
from skipway.parts import Lines, Section, Series
from skipway.report import dumps, schema, to_html, to_text
from skipway.study.claim import CLAIMS, Bench, Claim, Judgement
from skipway.study.claims_view import findings_parts, findings_report, number_rows
from skipway.study.examine import Findings, examine
from skipway.study.records.results import Results
from skipway.train.folder import read_json

sys.path.insert(0, str(Path(__file__).parent))
import fake

if TYPE_CHECKING:
    from collections.abc import Mapping

FIGURE = Lines(series=(Series(name="norm", y=(1.0, 2.0)),), title="The norm")


def no_data(_: Bench) -> Judgement:
    raise SkipwayError("cifar10 is not there", "its files", "--download")


def claims() -> dict[str, Claim]:
    found = [
        fake.claim(
            "sum", fake.judged("holds", "off by 1e-16", numbers={"worst": 1e-16, "by": {"unit_a": 3, "b": True}})
        ),
        fake.claim("big", fake.judged("holds"), least="standard", otherwise="its nets train for hours"),
        fake.claim("zero", fake.judged("holds only if", "0 for x ≥ 0", condition="x ≥ 0", words="A ReLU cuts.")),
        fake.claim("rule", fake.judged("does not hold", "off by 0.9", parts=(FIGURE,))),
        fake.claim("deep", fake.judged("documentary", "152 layers")),
        fake.claim("data", no_data),
    ]
    return {one.id: one for one in found}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Claim]:
    made = claims()
    monkeypatch.setattr("skipway.study.examine.CLAIMS", made)
    return made


@pytest.fixture
def findings(registered: Mapping[str, Claim], tmp_path: Path) -> Findings:
    return examine(results=Results(tmp_path), out=tmp_path / "runs")


def test_the_whole_text(findings: Findings) -> None:
    text = to_text(findings_parts(findings))
    assert text.startswith("skipway · 6 claims at budget quick\n1 holds · 1 holds only if … · 1 does not hold · ")
    assert text.split("\n")[1].endswith(" · 1 documentary · 2 not measured · 0 s")
    assert "\n".join(text.split("\n")[2:]) == (
        "\n"
        " claim   verdict         measured\n"
        f" {'─' * 67}\n"
        " sum     holds           off by 1e-16\n"
        " zero    holds only if   0 for x ≥ 0\n"
        " rule    does not hold   off by 0.9\n"
        " deep    documentary     152 layers\n"
        " big     not measured    its nets train for hours\n"
        " data    not measured    could not be measured: cifar10 is not there\n"
        "\n"
        "zero: only if x ≥ 0. A ReLU cuts.\n"
        "data: cifar10 is not there\n"
        "expected: its files\n"
        "try: --download"
    )


def test_the_report_has_a_section_for_each(findings: Findings) -> None:
    parts = findings_report(findings)
    by_verdict = {part.title: part for part in parts if isinstance(part, Section)}
    assert list(by_verdict) == ["Verdicts", "Holds", "Holds only if …", "Does not hold", "Documentary", "Not measured"]
    (rule,) = by_verdict["Does not hold"].parts
    assert isinstance(rule, Section)
    assert FIGURE in rule.parts
    text = to_text(rule.parts)
    assert text.startswith("does not hold: off by 0.9\n")
    assert "measurement: It is looked at.\ncriterion: Holds if seen." in text
    assert rule.note == "Of rule it is said. (000, section 1)"
    assert "holds only if x ≥ 0: 0 for x ≥ 0" in to_text(by_verdict["Holds only if …"].parts)
    page = to_html(parts, title="t")
    assert '<p class="text bad">does not hold: off by 0.9</p>' in page
    assert '<p class="text good">holds: off by 1e-16</p>' in page


def test_json_follows_its_schema(findings: Findings) -> None:
    kind = schema("claims-1.0")
    jsonschema.Draft202012Validator.check_schema(kind)
    values = json.loads(dumps(findings.to_dict()))
    jsonschema.validate(values, kind)
    assert values["counts"] == {
        "holds": 1, "holds only if": 1, "does not hold": 1, "documentary": 1, "not measured": 2,
    }  # fmt: skip


def test_each_verdict_is_kept_with_what_it_rests_on(findings: Findings, tmp_path: Path) -> None:
    results = Results(tmp_path)
    kept = read_json(results.claim_path("quick", "zero"))
    assert (kept["schema"], kept["budget"], kept["verdict"], kept["condition"]) == (
        "skipway.claim/1.0", "quick", "holds only if", "x ≥ 0",
    )  # fmt: skip
    assert kept["criterion"] == "Holds if seen."
    assert {"criterion_commit", "code_commit", "torch", "python", "processor", "cores", "device"} <= set(kept)
    undecided = read_json(results.claim_path("quick", "big"))
    assert (undecided["verdict"], undecided["figure"]) == ("not measured", "its nets train for hours")


def test_a_failed_measurement_leaves_what_is_on_record(registered: Mapping[str, Claim], tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_claim("quick", "data", {"verdict": "holds"})
    found = examine(["data"], results=results)
    assert found.examined[0].trouble == "cifar10 is not there\nexpected: its files\ntry: --download"
    assert read_json(results.claim_path("quick", "data")) == {"verdict": "holds"}


def test_what_was_found_is_kept_when_somebody_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Bench) -> Judgement:
        raise KeyboardInterrupt

    first, then = fake.claim("sum", fake.judged("holds")), fake.claim("stopped", stopped)
    monkeypatch.setattr("skipway.study.examine.CLAIMS", {"sum": first, "stopped": then})
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        examine(results=Results(tmp_path), told=lambda examined: told.append(examined.claim.id))
    assert told == ["sum"]
    assert [path.name for path in tmp_path.rglob("*.json")] == ["sum.json"]


@pytest.mark.parametrize(("interrupted", "error"), [(True, KeyboardInterrupt), (False, SkipwayError)])
def test_nothing_is_judged_by_a_part_of_the_runs(
    interrupted: bool, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = replace(fake.outcome([fake.row("a", "plain8", None, [(9.0, 0.5)], planned=2)]), places={"results": "kept"})
    part = replace(part, interrupted=interrupted, troubles=() if interrupted else ("plain8 seed 1 died: killed",))
    monkeypatch.setattr("skipway.study.claim.conduct", lambda *_, **__: part)
    with pytest.raises(error) as caught:
        Bench(budget="quick", results=Results(tmp_path), out=tmp_path).study("tablet")
    if not interrupted:
        assert str(caught.value) == (
            "study tablet is not complete: plain8 seed 1 died: killed\nexpected: all of its runs\n"
            "try: skipway study tablet --budget quick --results kept"
        )


def test_an_unknown_claim_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown claim 'grad-sun'"):
        examine(["grad-sum", "grad-sun"], results=Results(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_numbers_in_rows() -> None:
    numbers = {
        "a_b": 0.5, "c": {"d": {"net@pre_norm unit 0": None}}, "f": [1.0] * 13, "g": "x", "h": False, "i": [1, 2],
    }  # fmt: skip
    assert number_rows(numbers) == (
        ("a b", "0.50"), ("c · d · net@pre_norm unit 0", "–"),
        ("f", "1.00, 1.00, 1.00, 1.00, 1.00, …, 1.00, 1.00, 1.00, 1.00, 1.00, (13)"),
        ("g", "x"), ("h", "no"), ("i", "1, 2"),
    )  # fmt: skip


def test_every_claim_says_all_of_itself() -> None:
    assert len(CLAIMS) > 10
    for name, claim in CLAIMS.items():
        assert claim.id == name
        for text in (claim.source, claim.statement, claim.measurement, claim.criterion):
            assert text.strip(), name
        assert claim.least == "quick" or claim.otherwise, f"{name} says not why it is not decided at quick"
        assert claim.file.parent.name == "claims"

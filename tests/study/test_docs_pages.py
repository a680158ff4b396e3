"""The pages that are made from what is on record: they say what the files say, and the repository holds the pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skipway.errors import SkipwayError
from skipway.parts import Lines, Section, Series, Table, Text
from skipway.study.claim import CLAIMS
from skipway.study.docs import claims_page, tables_page, write_docs
from skipway.study.markdown import escaped, to_markdown
from skipway.study.published import Row
from skipway.study.records.results import Results

sys.path.insert(0, str(Path(__file__).parent))
import fake

if TYPE_CHECKING:
    from skipway.study.published import Study

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results"


def test_the_pages_are_current() -> None:
    """They fail when a file under results/ changes; then: make docs."""
    results = Results(RECORD)
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == claims_page(results), "make docs"
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8") == tables_page(results), "make docs"


def test_every_claim_is_on_record() -> None:
    """As soon as one is: a claim without a file would be missing from the page."""
    kept = {path.stem for path in (RECORD / "claims").glob("*/*.json")}
    assert not kept or kept == set(CLAIMS)


def verdict(results: Results, budget: Any, name: str, found: str, figure: str, **more: Any) -> None:
    results.write_claim(
        budget, name,
        {
            "id": name, "source": "000", "statement": "It is so.", "measurement": "Looked at.", "criterion": "If seen.",
            "verdict": found, "figure": figure, "condition": "", "words": "", "seconds": 3.0, "budget": budget,
            "criterion_commit": "aaa", "code_commit": "bbb+", "torch": "2.9", "python": "3.12",
            "processor": "A Processor", "cores": 2, "device": "cpu", **more,
        },
    )  # fmt: skip


def test_claims_of_the_largest_budget_that_decided(tmp_path: Path) -> None:
    results = Results(tmp_path)
    verdict(results, "quick", "b-two", "holds", "1 of 2")
    verdict(results, "standard", "b-two", "does not hold", "0 of 2")
    verdict(results, "quick", "a-one", "holds only if", "x = 1", condition="x ≥ 0", words="A | and *stars*.")
    verdict(results, "standard", "a-one", "not measured", "hours")
    verdict(results, "quick", "c-three", "not measured", "its nets train for hours")
    page = claims_page(results)
    head, _, rest = page.partition("## a-one")
    assert "3 claims. holds only if: 1 · does not hold: 1 · not measured: 1." in head
    assert [line for line in head.split("\n") if line.startswith("| ")] == [
        "| claim | verdict | measured | budget |", "| --- | --- | --- | --- |",
        "| a-one | holds only if | x = 1 | quick |", "| b-two | does not hold | 0 of 2 | standard |",
        "| c-three | not measured | its nets train for hours | quick |",
    ]  # fmt: skip
    assert rest.startswith("\n\nIt is so.\n\n|  |  |\n| --- | --- |\n| source | 000 |\n| measurement | Looked at. |\n")
    assert "| criterion | If seen. (commit aaa) |\n| verdict | holds only if x ≥ 0 |\n| measured | x = 1 |" in rest
    assert r"| note | A \| and \*stars\*. |" in rest
    assert "| run | budget quick, 3 s (commit bbb+); A Processor, 2 cores; torch 2.9, python 3.12 |" in rest
    assert rest.endswith("| verdict | not measured |\n| why | its nets train for hours |\n")
    # A file that changes changes the page.
    verdict(results, "standard", "b-two", "does not hold", "0 of 3")
    assert claims_page(results) != page
    assert claims_page(results) == page.replace("0 of 2", "0 of 3")


def test_a_claim_whose_file_was_edited(tmp_path: Path) -> None:
    verdict(Results(tmp_path), "quick", "a", "holds", "1")
    path = tmp_path / "claims" / "quick" / "a.json"
    values = json.loads(path.read_text())
    del values["criterion_commit"]
    path.write_text(json.dumps(values))
    with pytest.raises(SkipwayError, match=r"a\.json: no criterion_commit"):
        claims_page(Results(tmp_path))


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    rows = (Row(label="a|b", model="plain8", published=12.0), Row(label="c", model="resnet8", published=8.0))
    made_study = fake.study(rows)
    monkeypatch.setattr("skipway.study.docs.STUDIES", {"tablet": made_study})
    return made_study


def test_tables_of_what_is_on_record(study: Study, tmp_path: Path) -> None:
    results = Results(tmp_path)
    assert tables_page(results).endswith("\n\nNothing is on record yet.\n")
    for seed in range(3):  # the study asks for two: a third that is there counts too
        results.write_record(fake.record("plain8", seed, 20.0 + seed, 0.5))
        results.write_record(fake.record("resnet8", seed, 10.0 + seed, 0.25))
    page = tables_page(results)
    assert "## tablet: Of stone\n\nWhich row is best?\\\nPublished: median of 5 runs; He et al., table 0.\n" in page
    assert "### Budget quick\n\nScaled down: digits for CIFAR-10\n" in page
    assert (
        "| row | net | published % | ours % | train loss | failed | s |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| a\\|b | plain8 | 12.00 | 21.00 ± 1.00 | 0.500 | 0/3 | 2.00 |\n"
        "| c | resnet8 | 8.00 | 11.00 ± 1.00 | 0.250 | 0/3 | 2.00 |\n"
    ) in page
    assert "Kendall's τ-b with the published order 1.00 \\[1.00, 1.00\\], 2 rows\n" in page
    assert "| c | -10.0 \\[-10.3, -9.7\\] | -0.250 \\[-0.250, -0.250\\] not shown |" in page
    assert "3 seeds each\\\ntraining took 12 s in all, 2.00 s a run, beside other runs\\\n" in page
    assert "hardware: A Processor, 2 cores" in page
    results.write_record(fake.record("resnet8", 1, 17.0, 0.25))
    assert tables_page(results) != page


def test_what_is_not_over_is_said(study: Study, tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_record(fake.record("plain8", 0, 20.0, 0.5))
    page = tables_page(results)
    assert "3 of 4 runs are not over; what follows is of those that are.\\\nTo go on: skipway study tablet" in page


def test_pages_are_written_without_torch(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    verdict(results, "quick", "a", "holds", "1")
    code = (
        "import sys; from skipway.study.docs import write_docs\n"
        f"write_docs({str(tmp_path / 'docs')!r}, {str(tmp_path / 'results')!r})\n"
        "print([m for m in ('torch', 'torchvision') if m in sys.modules])\n"
    )
    (tmp_path / "docs").mkdir()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # our own line
    assert done.stdout == "[]\n"
    assert (tmp_path / "docs" / "claims.md").read_text(encoding="utf-8") == claims_page(results)
    before = (tmp_path / "docs" / "tables.md").read_text(encoding="utf-8")
    write_docs(tmp_path / "docs", results.path)
    assert (tmp_path / "docs" / "tables.md").read_text(encoding="utf-8") == before


def test_markdown() -> None:
    parts = (
        Text(text="A <b> of *all*", tone="title"),
        Section(title="In", note="x_l, _not_ em", parts=(Text(text="one\ntwo [3] & `4`"),)),
        Table(columns=("a", "b"), rows=(("|x|", "1"),), numeric=("b",), title="T", note="N"),
    )
    assert to_markdown(parts, level=2) == (
        "## A \\<b> of \\*all\\*\n\n## In\n\nx_l, \\_not\\_ em\n\none\\\ntwo \\[3\\] &amp; \\`4\\`\n\n"
        "**T**\n\n| a | b |\n| --- | ---: |\n| \\|x\\| | 1 |\n\nN"
    )
    assert escaped("a_b_c") == "a_b_c"
    with pytest.raises(TypeError, match="no Markdown form for Lines"):
        to_markdown([Lines(series=(Series(name="", y=(1.0,)),))])

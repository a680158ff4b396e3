"""`skipway study` and `skipway claims` on the command line; nothing here trains."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from skipway.cli import main
from skipway.cli.compare_display import CompareDisplay
from skipway.cli.complete import complete_claim, complete_list, complete_study
from skipway.report import schema
from skipway.study.claim import CLAIMS
from skipway.study.jobs.listen import RunState
from skipway.study.published import STUDIES, Row

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
import fake

if TYPE_CHECKING:
    from skipway.study.claim import Bench, Judgement
    from skipway.study.outcome import StudyOutcome

ROWS = (Row(label="plain", model="plain8", published=12.0), Row(label="residual", model="resnet8", published=8.0))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `conduct` was asked for; it answers with what stands under ``outcome``."""
    known: dict[str, Any] = {"outcome": whole()}
    list(STUDIES)  # the registry fills itself at first look
    monkeypatch.setitem(STUDIES._items, "tablet", fake.study(ROWS))

    def conduct(study: object, budget: str, **options: Any) -> StudyOutcome:
        known.update(options, study=study, budget=budget)
        found: StudyOutcome = known["outcome"]
        return found

    monkeypatch.setattr("skipway.study.conduct.conduct", conduct)
    return known


def whole() -> StudyOutcome:
    return fake.outcome(
        [fake.row("plain", "plain8", 12.0, [(20.0, 0.5)]), fake.row("residual", "resnet8", 8.0, [(10.0, 0.25)])]
    )


def test_a_study_is_reported(asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "tablet", "--budget", "standard", "--seeds", "2", "--row", "plain", "--row", "residual"]
    words += ["--workers", "1", "--results", "kept", "--out", "folders", "--root", "data", "--html", "page.html"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("skipway · tablet: which row is best?\n")
    assert out.endswith("report: page.html\n")
    assert max(map(len, out.split("\n"))) <= 100
    assert "Which row is best?" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (asked["budget"], asked["seeds"], asked["only"], asked["workers"], asked["launcher"]) == (
        "standard", 2, ("plain", "residual"), 1, "local",
    )  # fmt: skip
    assert (asked["results"].path, asked["out"]) == (Path("kept"), Path("folders"))
    assert asked["root"] == str(tmp_path / "data")


def test_a_study_as_json_alone(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "tablet", "--json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), schema("study-1.0"))


@pytest.mark.parametrize(
    ("interrupted", "troubles", "code"), [(True, (), 130), (False, ("it failed",), 1), (True, ("it failed",), 1)]
)
def test_a_study_that_is_not_complete(
    interrupted: bool, troubles: tuple[str, ...], code: int, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (replace(whole().rows[0], planned=2), whole().rows[1])
    asked["outcome"] = replace(whole(), rows=rows, interrupted=interrupted, troubles=troubles)
    assert main(["study", "tablet"]) == code
    assert "To go on: skipway study tablet --budget quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["study"], "error: Missing argument 'ID'."),
        (["study", "tabel1"], "error: study: unknown study 'tabel1'\nexpected: did you mean 'table1'"),
        (["study", "table1", "--budget", "papers"], "error: --budget: unknown budget 'papers'"),
        (["study", "tablet", "--row", "plane"], "error: --row: unknown row of tablet 'plane'"),
        (["study", "table1", "--launcher", "rey"], "error: --launcher: unknown launcher 'rey'"),
        (["study", "table1", "--seeds", "0"], "error: Invalid value for '--seeds'"),
        (["study", "table1", "--html", "no/such/page.html"], "error: --html: "),
        (["claims", "grad-sun"], "error: claims: unknown claim 'grad-sun'\nexpected: did you mean 'grad-sum'"),
        (["claims", "--budget", "big"], "error: --budget: unknown budget 'big'"),
        (["list", "studies", "nothing*"], "error: no study matches 'nothing*'"),
        (["list", "claims", "nothing*"], "error: no claim matches 'nothing*'"),
    ],
)
def test_what_is_refused(
    arguments: list[str], text: str, asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 3
    assert capsys.readouterr().err.startswith(text)
    assert "study" not in asked
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> None:
    list(CLAIMS)

    def stopped(_: Bench) -> Judgement:
        raise KeyboardInterrupt

    def broken(_: Bench) -> Judgement:
        from skipway.errors import SkipwayError

        raise SkipwayError("cifar10 is not there")

    for one in (
        fake.claim("aa-good", fake.judged("holds")), fake.claim("aa-wrong", fake.judged("does not hold")),
        fake.claim("aa-stopped", stopped), fake.claim("aa-broken", broken),
    ):  # fmt: skip
        monkeypatch.setitem(CLAIMS._items, one.id, one)


@pytest.mark.usefixtures("claims")
def test_claims_are_examined_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A claim that does not hold is a result, not an error; one named twice is examined once.
    words = ["claims", "aa-good", "aa-wrong", "aa-good", "--results", "kept"]
    assert main([*words, "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "1 of 2 · aa-good: holds\n2 of 2 · aa-wrong: does not hold\nskipway · 2 claims at budget quick\n"
    )
    assert out.endswith("report: page.html\n")
    kept = json.loads((tmp_path / "kept" / "claims" / "quick" / "aa-wrong.json").read_text())
    assert kept["verdict"] == "does not hold"
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    jsonschema.validate(json.loads(out), schema("claims-1.0"))
    assert "1 of 2 · aa-good: holds" in err


@pytest.mark.usefixtures("claims")
def test_claims_that_could_not_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "aa-broken", "aa-good"]) == 1
    assert "aa-broken: cifar10 is not there" in capsys.readouterr().out


@pytest.mark.usefixtures("claims")
def test_stopping_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "aa-good", "aa-stopped", "aa-wrong"]) == 130
    out, err = capsys.readouterr()
    assert out == "1 of 3 · aa-good: holds\n"
    assert err == "stopped; verdicts so far are in results, and the same command goes on\n"
    assert [path.name for path in (tmp_path / "results").rglob("*.json")] == ["aa-good.json"]


def test_lists_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "studies", "table1"]) == 0
    assert "He et al. 2016" in capsys.readouterr().out
    assert main(["list", "claims", "grad-sum"]) == 0
    assert "quick" in capsys.readouterr().out
    assert complete_list("s") == ["studies"]
    assert complete_list("c") == ["claims"]
    assert "table1" in complete_study("tab")
    assert "grad-sum" in complete_claim("grad")


def states(name: str, status: str) -> list[RunState]:
    return [RunState(name=name, status=status, step=5, steps=10, loss=1.0, test_error=2.0)]


def test_one_study_after_the_other_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The next one may train nets of the same names; what was over before it began is not said again."""
    with CompareDisplay() as display:
        for now in (
            states("a seed 0", "running"), states("a seed 0", "finished"),
            states("a seed 0", "waiting"), states("a seed 0", "finished"),
            states("b seed 0", "running"), states("b seed 0", "diverged"),
        ):  # fmt: skip
            display.moved(now)
    said = "test error 2.00 %, training loss 1.000\n"
    assert capsys.readouterr().out == f"a seed 0: {said}a seed 0: {said}b seed 0: {said}"


@pytest.mark.parametrize("command", ["study", "claims"])
def test_help_imports_no_torch(command: str) -> None:
    import subprocess

    code = (
        "import sys\nfrom skipway.cli import main\n"
        f"code = main([{command!r}, '--help'])\n"
        "assert not {'torch', 'numpy', 'torchvision'} & set(sys.modules), 'slow start'\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603  # our own line
    assert (done.returncode, done.stderr) == (0, "")
    assert "--budget" in done.stdout

"""`skipway report` and `skipway compare` on the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from skipway.cli import main
from skipway.report import schema

sys.path.insert(0, str(Path(__file__).parent))
import made


def test_a_comparison_told_again_without_torch(compared: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code = (
        "import sys; from skipway.cli import main\n"
        f"code = main(['report', {str(compared)!r}, '--html', {str(page)!r}])\n"
        "print('loaded:', [m for m in ('torch', 'torchvision', 'lightning_fabric') if m in sys.modules], code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # our own line
    assert "loaded: [] 0" in done.stdout
    assert "skipway · plain8 against resnet8 on digits: 8 steps of 16, 2 seeds each\n" in done.stdout
    assert f"report: {page}\n" in done.stdout
    text = page.read_text(encoding="utf-8")
    for heading in (
        "The answer", "The comparison", "Learning curves", "The signal by depth, before the first step",
        "The signal by depth, after the last step", "The stream", "Findings", "How it was done",
    ):  # fmt: skip
        assert re.search(rf"<h2[^>]*>{heading}</h2>", text), heading
    assert "<figcaption>plain8</figcaption>" in text
    assert "<figcaption>resnet8</figcaption>" in text
    assert "skipway compare plain8 resnet8 --data digits --recipe quick --steps 8 --batch 16 --seeds 2" in text
    assert "360 test samples of 1×8×8" in text
    # "What to look for" stands beside every figure and table.
    assert text.count("<figure") == text.count("<figcaption")
    assert text.count("What to look for") >= text.count("<figure")
    assert len(text) < 6e6


def test_the_report_goes_beside_the_runs(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    (out / "report.html").unlink()
    assert main(["report", str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {out / 'report.html'}\n")
    assert (out / "report.html").exists()
    assert main(["report", str(out / "plain8" / "seed-0")]) == 0
    assert "plain8 on digits, seed 0: test error" in capsys.readouterr().out
    assert (out / "plain8" / "seed-0" / "report.html").exists()


def test_json_alone(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (compared / "report.html").stat().st_mtime_ns
    assert main(["report", str(compared), "--json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), schema("comparison-1.0"))
    assert (compared / "report.html").stat().st_mtime_ns == before
    assert main(["report", str(compared / "plain8" / "seed-0"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "skipway.runs/1.0"
    assert found["runs"][0]["result"]["parameters"] > 0


def test_several_runs(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(compared / model / "seed-0") for model in ("plain8", "resnet8")]
    page = tmp_path / "page.html"
    assert main(["report", *runs, "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("skipway · 2 runs\nplain8 on digits, seed 0: test error")
    assert "look for: Runs of one seed each: a difference may be chance." in out
    assert max(map(len, out.split("\n")[:-2])) <= 100
    assert "Learning curves" in page.read_text(encoding="utf-8")


def test_a_run_that_diverged_and_one_that_is_not_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made.comparison(
        tmp_path, {"plain56": {0: made.result(None, "nan", status="diverged")}, "resnet56": {0: None}}
    )
    folders = [str(found.runs[model][0].path) for model in ("plain56", "resnet56")]
    assert main(["report", *folders]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "plain56 on digits, seed 0: diverged, the loss is nan at step 20; aten.mul is the first not finite in layer1.0."
    ) in words
    assert "resnet56 on digits, seed 0: not over, at step 20 of 20. To go on: skipway train --resume" in words


def test_names_from_elsewhere_are_shown_as_text(tmp_path: Path) -> None:
    evil = "x.py:<img src=x onerror=alert(1)>"
    found = made.comparison(tmp_path / "c", {evil: {0: made.result(1.0, 1.0)}})
    page = found.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in page.split("<script")[0]
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["report", "nowhere"], 2, "error: no run in nowhere\nexpected: a folder with spec.json"),
        (["report"], 3, "error: Missing argument 'DIR…'."),
        (["compare"], 3, "error: no models\nexpected: names\ntry: skipway compare plain56 resnet56"),
        (["compare", "plain8", "--seeds", "0"], 3, "error: Invalid value for '--seeds'"),
        (["compare", "--resume", "nowhere", "--steps", "3"], 3, "error: --resume with steps\nexpected: --resume DIR"),
        (["compare", "--resume", "nowhere"], 2, "error: no comparison in nowhere"),
        (["compare", "plain8", "plain8"], 2, "error: plain8 is named twice"),
        (["compare", "plain8", "plain8x"], 2, "error: nothing was started, because of plain8x: unknown"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    assert capsys.readouterr().err.startswith(text)
    assert list(tmp_path.iterdir()) == []


WRITTEN = "\nexpected: the file as it was written"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("result.json", {}, "{file}: no status" + WRITTEN),
        ("result.json", {"status": "won"}, "{file}: status 'won'\nexpected: finished or diverged"),
        ("result.json", {"test_error": None}, "{file}: test_error None" + WRITTEN),
        ("result.json", {"test_error": "few"}, "{file}: test_error 'few'" + WRITTEN),
        ("environment.json", {}, "{file}: no skipway" + WRITTEN),
        ("environment.json", {"data": {"name": "digits"}}, "{file}: no note" + WRITTEN),
        ("metrics.jsonl", b"3\n", "{file} holds a line without a step: 3" + WRITTEN),
        ("metrics.jsonl", b'{"loss": 1}\n', "{file} holds a line without a step: {'loss': 1}" + WRITTEN),
        ("metrics.jsonl", b"\xff\n", "{file} holds a line that is no JSON: 'utf-8' codec can't decode byte 0xff in "
         "position 0: invalid start byte" + WRITTEN),
    ],
)  # fmt: skip
def test_a_run_whose_files_were_edited(
    file: str, content: object, said: str, compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(compared / "plain8" / "seed-0", out)
    if isinstance(content, dict) and content:
        content = json.loads((out / file).read_text()) | content
    (out / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert main(["report", str(out)]) == 2
    assert capsys.readouterr().err == f"error: {said.replace('{file}', str(out / file))}\n"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("models", [], "a comparison with models []\nexpected: comparison.json as it was written"),
        ("models", "ab", "a comparison with models 'ab'\nexpected: comparison.json as it was written"),
        ("seeds", 3, "a comparison with seeds 3\nexpected: comparison.json as it was written"),
        ("settings", [], "a comparison with settings []\nexpected: keys and values"),
    ],
)
def test_a_comparison_whose_plan_was_edited(
    key: str, value: object, said: str, compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads((compared / "comparison.json").read_text())
    (tmp_path / "comparison.json").write_text(json.dumps(plan | {key: value}))
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_speeds_that_were_edited(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(compared / "comparison.json", tmp_path)
    (tmp_path / "speed.json").write_text('{"plain8": 3}')
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'speed.json'}: plain8 3{WRITTEN}\n"


@pytest.mark.parametrize("command", [["report"], ["train", "plain8", "--out"], ["compare", "plain8", "--out"]])
def test_a_name_that_is_too_long(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "x" * 300]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: cannot ")
    assert "File name too long" in said


def test_a_comparison_with_other_things(compared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(compared), str(compared / "plain8" / "seed-0")]) == 3
    assert capsys.readouterr().err == (
        f"error: 2 folders, of which {compared} holds a comparison\nexpected: one comparison, or runs only\n"
    )


def test_compare_from_the_command_line(
    compared: Path, tmp_path: Path, in_process: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    words = ["compare", "plain8", "resnet8", "--steps", "8", "--batch", "16", "--threads", "1", "--out", str(out)]
    assert main([*words, "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert in_process == []  # the options mean the very spec that the Python call meant
    assert printed.startswith("2 models × 2 seeds on digits · recipe quick, 8 steps of 16 · 0 runs to do")
    assert printed.endswith(f"report: {out / 'report.html'}\n")
    (out / "plain8" / "seed-1" / "result.json").unlink()
    assert main(["report", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == [{"model": "plain8", "seed": 1}]
    assert main(["compare", "--resume", str(out)]) == 0
    assert in_process == ["plain8 seed 1"]

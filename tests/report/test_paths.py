"""The gradient by path length in words, as a table with bars, as JSON and in the report; numbers made by hand."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

import jsonschema
import pytest

from report import examples
from skipway.cli import main
from skipway.diagnostics.inspection import Inspection
from skipway.diagnostics.path_spectrum.result import PathSpectrum, SampledLength
from skipway.errors import SkipwayError
from skipway.parts import Lines, Section, Table
from skipway.report import dumps, inspection_parts, inspection_report, schema, to_html, to_text
from skipway.report.paths import paths_parts, paths_report

if TYPE_CHECKING:
    from pathlib import Path


def made(**other: object) -> PathSpectrum:
    """Four units; short paths carry the gradient and length 3 works against it."""
    values = {
        "model": "net", "mode": "train", "batch": "float32[2,8]", "loss": "mean = 0.5", "of": "stream",
        "units": ("a.0", "a.1", "a.2", "a.3"), "chain": True, "share": (0.55, 0.4, 0.07, -0.02, 0.0),
        "norm": (2.0, 1.5, 0.3, 0.1, 0.01), "total_norm": 3.0, "road": "unchanged", "road_factor": 1.0,
        "sum_error": 2e-7, "degree0_error": 0.0, "allowed": 4e-4, "carried": "together", "seconds": 0.25,
        "sampled": tuple(
            SampledLength(length=k, paths=p, norm=n, norm_error=e, share=0.1, share_error=e)
            for k, p, n, e in (
                (0, 1, 2.0, 0.0), (1, 3, 0.5, 0.1), (2, 3, 0.2, 0.1), (3, 3, 0.05, None), (4, 1, 0.01, 0.0)
            )
        ),
    }  # fmt: skip
    return PathSpectrum(**{**values, **other})


def text(expected: str) -> str:
    return textwrap.dedent(expected).strip("\n")


def test_exact_text() -> None:
    assert repr(made()) == text("""
        skipway · net · gradient by path length
        train mode · batch float32[2,8] · loss: mean = 0.5
        gradient with respect to the stream that a.0 reads, through 4 units · 0.2 s
        checks hold: the parts add up to the gradient (relative error 2e-7), and the part that passes no
        branch is the gradient with all branches cut off (0).
        90 % of the gradient comes by paths through 0 or 1 of 4 branches (mean 0.6); these are 31.2 % of the
        2^4 paths.
        clean road: past all branches the gradient arrives unchanged.

         branches   share %   │ share ┊ paths   paths %    norm   norm / path     sampled   sampled %
         ────────────────────────────────────────────────────────────────────────────────────────────
         0             55.0   │██████████████       6.2    2.00          2.00        2.00        37.0
         1             40.0   │██████████▏         25.0    1.50          0.38   0.50 ±20%        37.0
         2              7.0   │█▊        ┊         37.5    0.30         0.050   0.20 ±50%        22.2
         3             -2.0   −▌     ┊             25.0    0.10         0.025       0.050         3.7
         4                0   │  ┊                  6.2   0.010         0.010       0.010         0.2

        sampled: the mean norm by a single path with its standard error, and the share which that norm times
        the number of paths has, as if no two paths cancelled each other (arXiv 1605.06431).
    """)


def words(**other: object) -> str:
    return " ".join(to_text(paths_parts(made(**other))).split())


def test_words_for_the_road() -> None:
    assert "clean road: past all branches the gradient arrives unchanged." in words()
    scaled = words(road="scaled", road_factor=0.9**4)
    assert "scaled road: past all branches the gradient arrives × 0.6561, 0.9 at each of 4 units." in scaled
    assert "past all branches the gradient arrives × -0.5." in words(road="scaled", road_factor=-0.5)
    changed = words(road="changed", road_factor=0.042)
    assert "changed by what stands on the road; its norm arrives × 0.042." in changed
    assert "no road: without passing a branch no gradient arrives." in words(road="none", road_factor=None)
    assert "on the road was not seen." in words(road="unknown", road_factor=None)


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ({"sum_error": 0.8}, "the parts do not add up to the gradient (relative error 0.80); allowed is 4e-4. Nothing"),
        (
            {"degree0_error": 0.02},
            "TRUSTED: the part that passes no branch is not the gradient with all branches cut off (0.020); allowed",
        ),
        ({"sum_error": math.nan, "degree0_error": 1.0}, "up to the gradient (relative error nan) and the part that"),
    ],
)  # fmt: skip
def test_what_fails_a_check_is_not_to_be_trusted(errors: dict[str, float], said: str) -> None:
    assert not made(**errors).trusted
    assert "NOT TO BE TRUSTED: " in words(**errors)
    assert said in words(**errors)
    assert "checks hold" not in words(**errors)


def test_what_is_longer_is_said() -> None:
    cut = {"share": (0.2, 0.3), "norm": (1.0, 1.0), "longer_share": 0.5, "longer_norm": 2.0, "sampled": ()}
    said = words(**cut)
    assert "through 0 or more of 4 branches (mean at least 1.3); to tell longer ones apart, carry more than 1." in said
    assert "2 or more 50.0" in said


def test_paths_are_not_counted_where_there_are_ways_around() -> None:
    assert "these are 31.2 % of the 2^4 paths." in words()
    assert "of the 2^4 paths" not in words(chain=False)


def test_long_idle_stretches_share_a_line() -> None:
    units = tuple(f"u.{k}" for k in range(30))
    shares = (0.6, 0.4, *[0.0] * 29)
    table = next(
        p for p in paths_parts(made(units=units, share=shares, norm=(1.0,) * 31, sampled=())) if isinstance(p, Table)
    )
    rows = [row[0] for row in table.rows]
    assert rows[:3] == ["0", "1", "2…5"]
    assert rows[-1] == "25…30"


def test_charts() -> None:
    charts = [p for p in paths_report(made()) if isinstance(p, Lines)]
    assert [[s.name for s in c.series] for c in charts] == [
        ["gradient, exact", "2^4 paths", "gradient, from single paths"],
        ["all paths of the length together", "single paths, mean ± standard error"],
    ]
    assert charts[0].series[0].y == pytest.approx((55.0, 40.0, 7.0, -2.0, 0.0))
    assert charts[0].series[1].y == pytest.approx((6.25, 25.0, 37.5, 25.0, 6.25))
    counts = [math.comb(4, s.length) * s.norm for s in made().sampled]
    assert charts[0].series[2].y == pytest.approx([100 * c / sum(counts) for c in counts])
    assert charts[1].series[0].y == pytest.approx((2.0, 1.5 / 4, 0.3 / 6, 0.1 / 4, 0.01))
    assert charts[1].series[1].low[1] == pytest.approx(0.4)


def test_every_string_is_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>"
    page = to_html(paths_report(made(model=evil, batch=evil, loss=evil, units=(evil,) * 4, notes=(evil,))), title="t")
    assert "<img" not in page
    assert page.count("&lt;img") >= 5


def test_by_way_of_json() -> None:
    whole = replace(examples.resnet50(), paths=made(notes=("a note",), uncounted=("b",)))
    data = json.loads(dumps(whole.to_dict()))
    jsonschema.validate(data, schema())
    assert Inspection.from_dict(data) == whole
    assert data["paths"]["carrying_90_percent"] == [0, 1]
    assert "paths" not in examples.resnet50().to_dict()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: d.pop("share"), "path spectrum without share\nexpected: exactly model, mode, "),
        (lambda d: d.update(road="wide"), "road: 'wide'\nexpected: one of unchanged, scaled, changed, none, unknown"),
        (lambda d: d.update(share=["all"]), "share: 'all'\nexpected: a number"),
        (lambda d: d["sampled"][0].pop("paths"), "sampled paths without paths\nexpected: exactly length, paths, "),
    ],
)
def test_what_does_not_fit_is_refused(damage, said: str) -> None:
    data = json.loads(dumps(made().to_dict()))
    damage(data)
    with pytest.raises(SkipwayError) as refused:
        PathSpectrum.from_dict(data)
    assert str(refused.value).startswith(said)


def test_in_the_report_of_a_model() -> None:
    whole = replace(examples.resnet50(), paths=made())
    assert any("│ share ┊ paths" in p.parts[3].columns for p in inspection_parts(whole) if isinstance(p, Section))
    titles = [p.title for p in inspection_report(whole) if isinstance(p, Section)]
    assert titles.index("The gradient by path length") == titles.index("The signal by depth") + 1
    assert max(map(len, repr(whole).split("\n"))) <= 100


def test_rebuilt_without_torch(tmp_path: Path) -> None:
    (tmp_path / "paths.json").write_text(dumps(made().to_dict()), encoding="utf-8")
    program = f"""
import json, sys
for name in ("torch", "torchvision", "numpy", "pandas"):
    sys.modules[name] = None  # an import of it raises
from skipway.diagnostics.path_spectrum.result import PathSpectrum
with open({str(tmp_path / "paths.json")!r}, encoding="utf-8") as file:
    print(PathSpectrum.from_dict(json.load(file)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603  # our own program
    assert done.stderr == ""
    assert done.stdout.rstrip("\n") == repr(made())


# -- the command line


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, err = run(capsys, "inspect", "gpt_nano", "--paths", "--max-length", "3", "--html", str(page))
    assert (code, err) == (0, "")
    assert "The gradient by path length\nchecks hold: the parts add up to the gradient (relative error " in out
    assert "clean road: past all branches the gradient arrives unchanged." in out
    assert "\n 4 or more " in out
    assert "Share of the gradient by path length" in page.read_text(encoding="utf-8")


def test_command_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", "gpt_nano", "--paths", "--json")
    report = json.loads(out)
    jsonschema.validate(report, schema())
    assert code == 0
    assert report["paths"]["trusted"]
    assert len(report["paths"]["share"]) == 1 + len(report["units"])


def test_a_model_without_units_has_a_note_instead(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", "mlp40@plain", "--paths")
    assert code == 0
    said = " ".join(out.split())
    assert "note: the gradient by path length was not measured: the model has no residual unit on its main" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-length", "3"], "error: --max-length: given without --paths\nexpected: the two together\n"),
        (["--paths", "--structure-only"], "error: --paths: given together with --structure-only\nexpected: one of "),
        (["--paths", "--max-length", "-1"], "error: Invalid value for '--max-length': "),
    ],
)  # fmt: skip
def test_usage(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    code, _, err = run(capsys, "inspect", "gpt_nano", *options)
    assert code == 3
    assert err.startswith(said)

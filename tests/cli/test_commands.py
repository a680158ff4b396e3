"""The other commands, start-up, and completion."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skipway.cli import main, train_options
from skipway.spec import COMPILE_MODES, MEMORY_MODES


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--help"], ["--version"]])
def test_help_imports_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom skipway.cli import main\n"
        f"code = main({arguments!r})\n"
        "assert not {'torch', 'numpy', 'torchvision'} & set(sys.modules), 'slow start'\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    assert "skipway" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "models"], ["--help"], ["list", "recipes"],
        pytest.param(["list", "rules"], marks=pytest.mark.exhaustive),  # loads torch, as the models do
    ],
)  # fmt: skip
def test_a_reader_that_has_gone(arguments: list[str]) -> None:
    """As for ``skipway … | head -1``; 1 would stand for findings."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "skipway", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_training_that_nobody_listens_to_goes_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = tmp_path / "run"
    options = ["--steps", "2", "--batch", "8", "--train-size", "40", "--test-size", "20", "--no-inspect"]
    command = [sys.executable, "-m", "skipway", "train", "plain8", *options, "--out", str(out)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert (out / "result.json").exists()


def test_a_model_that_fails_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own lines alone, and not the code of a fault of skipway."""
    file = tmp_path / "nets.py"
    file.write_text(
        "from torch import nn\n\n\nclass Net(nn.Linear):\n    def forward(self, x):\n"
        "        if self.training:\n            raise RuntimeError('mine')\n"
        "        return super().forward(x.flatten(1))\n"
        "\n\ndef build():\n    return Net(64, 10)\n"
    )
    options = ["--steps", "2", "--batch", "8", "--no-inspect", "--out", str(tmp_path / "run")]
    code, _, err = run(capsys, "train", f"{file}:build", *options)
    assert code == 2
    assert err.startswith(f'Traceback (most recent call last):\n  File "{file}", line 7, in forward\n')
    assert err.endswith(
        "RuntimeError: mine\nerror: the model failed in step 1, trained on (8, 1, 8, 8): RuntimeError: mine\n"
        "expected: a model that trains on such batches\n"
    )


def test_a_typo_in_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "inspekt", "tv:resnet18")
    assert (code, out) == (3, "")
    assert "inspect" in err


def test_list_models(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "models")
    assert code == 0
    assert {"resnet20", "resnet110", "densenet121", "gpt_nano", "mlp40"} <= set(out.split())
    assert run(capsys, "list", "models", "densenet")[1].split() == ["densenet40_12", "densenet121"]
    assert "tv:resnet18" in run(capsys, "list", "models", "tv:resnet*")[1].split()


def test_a_pattern_that_matches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "list", "models", "resnett20")
    assert (code, out) == (3, "")
    assert err.startswith("error: no model matches 'resnett20'\nexpected: did you mean 'resnet20'")


def test_list_designs_reads_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    from skipway.designs import DESIGNS

    code, out, _ = run(capsys, "list", "designs")
    assert code == 0
    assert len(DESIGNS) >= 16
    assert set(DESIGNS) <= {line.split()[0] for line in out.splitlines() if line.strip()}


def test_rules(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "rules")
    assert code == 0
    for rule in ("gradient-vanishing", "gradient-exploding", "missing-shortcut", "non-finite"):
        assert rule in out
        assert run(capsys, "rules", rule)[0] == 0
    code, _, err = run(capsys, "rules", "gradient-vanish")
    assert code == 3
    assert "did you mean 'gradient-vanishing'" in err


def test_recipes_and_data_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list", "recipes", "he2016-cifar")
    assert code == 0
    assert "64,000 × 128" in out
    assert "quick" not in out
    assert run(capsys, "list", "data", "cifar")[1].split() == ["cifar10", "cifar100"]
    assert "skipway list recipes" in run(capsys, "list", "recipes", "nothing")[2]


def test_an_unknown_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "list", "model")
    assert code == 3
    assert "did you mean 'models'?" in err


def test_show_a_design(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "highway")
    assert code == 0
    assert "1505.00387" in out
    assert "bias" in out


def test_every_design_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from skipway.designs import DESIGNS

    for name in DESIGNS:
        code, out, _ = run(capsys, "show", name)
        assert code == 0
        assert out.startswith(f"design {name}\n")
        assert "source: " in out


def test_show_a_model_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "resnet20", "--batch", "1")
    assert code == 0
    assert "269.7 k parameters" in out  # 269,722, He et al. 2015
    assert "9 residual units" in out
    assert "arXiv 1512.03385" in out


def test_show_says_what_each_memory_mode_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "resnet20@preact", "--batch", "64")
    assert code == 0
    assert "kept for the backward pass" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip().endswith("×")}
    assert list(rows) == ["keep", "recompute", "checkpoint"]
    # Two activations of 16×32² numbers for each convolution, those of the later stages a half and a quarter, but what
    # the first of a stage reads is as large as before it; the image; two more of the last stage behind the units.
    one = 64 * 16 * 32 * 32 * 4 / 2**20
    whole = one * (2 * (6 * (1 + 1 / 2 + 1 / 4) + 1 / 2 + 1 / 4) + 3 / 16 + 2 / 4)
    assert float(rows["keep"][1]) == pytest.approx(whole, rel=0.01)
    assert rows["keep"][2:] == ["MiB", "1.00×"]
    assert float(rows["recompute"][1]) < 0.6 * whole
    # Units are the same for any batch: those of a thousand layers are not looked for in a whole one.
    assert "batch float32[2,3,32,32]" in out
    assert "In training, float32, 64 samples." in out


def test_show_a_library_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "tv:resnet18", "--batch", "1")
    assert code == 0
    assert "11.7 M parameters" in out
    assert "8 residual units" in out


def test_concatenations_are_counted_apart(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "inspect", "tv:densenet121", "--input", "2,3,32,32", "--structure-only")
    assert "58 merges, each proved" in out  # 6 + 12 + 24 + 16 layers, Huang et al. 2016
    assert "residual unit" not in out


def test_show_needs_an_input(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", f"{Path(__file__).parent / 'zoo_of_cli.py'}:Plain")
    assert (code, out) == (2, "")
    assert "does not say what it is called with" in err


def test_a_terminal_without_unicode_still_gets_its_report() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "skipway", "inspect", "mlp40", "--structure-only"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "40 residual units" in done.stdout


def test_an_output_without_unicode_still_gets_json(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["inspect", "mlp40", "--structure-only", "--json"]) == 0
    sys.stdout.flush()
    assert json.loads(written.getvalue())["units"][0]["equation"] == "x' = x + Tanh·Linear(x)"


def test_completion_in_the_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "skipway"],
        env={**os.environ, "_SKIPWAY_COMPLETE": "complete_bash", "COMP_WORDS": "skipway list mod", "COMP_CWORD": "2"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["models"]


def test_models_are_completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"_SKIPWAY_COMPLETE": "complete_bash", "COMP_WORDS": "skipway inspect tv:resnet1", "COMP_CWORD": "2"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "tv:resnet18" in capsys.readouterr().out.split()


def test_a_fault_of_our_own_is_not_taken_for_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import skipway.cli.catalog

    def fault(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(skipway.cli.catalog, "list_names", fault)
    code, _, err = run(capsys, "list", "models")
    assert code == 70
    assert "ZeroDivisionError" in err
    assert err.endswith("error: this is a fault of skipway itself, not of the model\n")


def test_the_modes_on_the_command_line_are_those_of_the_spec() -> None:
    assert (*MEMORY_MODES, "auto") == train_options.MEMORY
    assert train_options.COMPILE == COMPILE_MODES

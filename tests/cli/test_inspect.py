"""`skipway inspect` from the outside: what is printed and which exit code is given."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import torch
from torch import nn

from skipway.cli import main
from skipway.report import schema

ZOO = Path(__file__).parent / "zoo_of_cli.py"
INPUT = ["--input", "4,8"]


@pytest.fixture
def skipway(capsys: pytest.CaptureFixture[str]):
    """Run a command line in this process; give exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def zoo(name: str) -> str:
    return f"{ZOO}:{name}"


# -- what works


def test_a_healthy_model(skipway) -> None:
    code, out, err = skipway("inspect", zoo("Healthy"), *INPUT)
    assert (code, err) == (0, "")
    assert "3 residual units, each proved" in out
    assert "blocks.0…2" in out
    assert "x + A(x)" in out
    assert "A = Linear·ReLU·Linear·LN" in out
    assert "no findings" in out
    assert max(map(len, out.split("\n"))) <= 100


def test_json_is_the_schema_and_nothing_else(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("Healthy"), *INPUT, "--json")
    report = json.loads(out)
    jsonschema.validate(report, schema())
    assert code == 0
    assert [unit["equation"] for unit in report["units"]] == ["x' = x + Linear·ReLU·Linear·LN(x)"] * 3
    assert [unit["parameters"] for unit in report["units"]] == [16 + 2 * 72] * 3
    assert report["model"] == zoo("Healthy")


@pytest.mark.parametrize("model", ["mlp40@plain", "resnet20@highway", "tv:densenet121", "bert_nano@post_norm"])
def test_other_reports_follow_the_schema(skipway, model: str) -> None:
    shape = ["--input", "2,3,32,32"] if model.startswith("tv:") else []
    _, out, _ = skipway("inspect", model, *shape, "--json")
    report = json.loads(out)
    jsonschema.validate(report, schema())
    assert report["model"] == model


def test_a_model_that_prints_does_not_spoil_the_json(skipway) -> None:
    code, out, err = skipway("inspect", zoo("Talks"), *INPUT, "--json")
    assert code == 0
    assert len(json.loads(out)["units"]) == 3
    assert "here I am" in err


def test_structure_only_measures_nothing(skipway) -> None:
    _, out, _ = skipway("inspect", zoo("Healthy"), *INPUT, "--structure-only", "--json")
    report = json.loads(out)
    jsonschema.validate(report, schema())
    assert len(report["units"]) == 3
    assert {unit["grad_stream"] for unit in report["units"]} == {None}


def test_integers(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("Tokens"), "--input", "ids:2,16")
    assert code == 0
    assert "int64[2,16]" in out


def test_keywords_reach_forward(skipway) -> None:
    grads = []
    for scale in ("1.0", "3.0"):
        _, out, _ = skipway(
            "inspect", zoo("Healthy"), *INPUT, "--kwargs", f'{{"scale": {scale}}}', "--loss", "mean", "--json"
        )
        grads.append(json.loads(out)["units"][1]["grad_stream"])
    assert grads[1] == pytest.approx(3 * grads[0], rel=1e-4)


def test_a_batch_from_a_file(skipway, tmp_path: Path) -> None:
    torch.save(torch.ones(5, 8), tmp_path / "batch.pt")
    code, out, _ = skipway("inspect", zoo("Healthy"), "--batch", str(tmp_path / "batch.pt"))
    assert code == 0
    assert "float32[5,8]" in out


@pytest.mark.parametrize("loss", ["mean", "cross_entropy", "mse", f"{ZOO}:loss"])
def test_losses(skipway, loss: str) -> None:
    code, out, _ = skipway("inspect", zoo("Healthy"), *INPUT, "--loss", loss, "--json")
    assert code == 0
    assert loss.rpartition(":")[2] in json.loads(out)["loss"]


def test_modes(skipway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ZOO.parent))

    def mode(*options: str) -> str:
        return json.loads(skipway("inspect", zoo("Healthy"), *INPUT, "--json", *options)[1])["mode"]

    import zoo_of_cli

    torch.save(zoo_of_cli.Healthy().state_dict(), tmp_path / "w.pt")
    assert mode() == "train"
    assert mode("--eval") == "eval"
    assert mode("--weights", str(tmp_path / "w.pt")) == "eval"
    assert mode("--weights", str(tmp_path / "w.pt"), "--train") == "train"


@pytest.mark.parametrize(("option", "dtype"), [("--dtype", "float64"), ("--amp", "bfloat16")])
def test_dtypes(skipway, option: str, dtype: str) -> None:
    code, out, _ = skipway("inspect", zoo("Healthy"), *INPUT, option, dtype, "--json")
    report = json.loads(out)
    assert code == 0
    assert ("float64" in report["batch"]) == (dtype == "float64")
    assert len(report["units"]) == 3


def test_the_same_command_gives_the_same_report(skipway) -> None:
    reports = [json.loads(skipway("inspect", zoo("Healthy"), *INPUT, "--json")[1]) for _ in range(2)]
    for report in reports:
        del report["seconds"]
    assert reports[0] == reports[1]


# -- exit code 1


def test_findings_give_exit_code_one(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("MakesNaN"), *INPUT)
    assert code == 1
    assert "error non-finite" in out
    assert "fix: " in out


def test_findings_below_the_threshold_do_not(skipway) -> None:
    assert skipway("inspect", zoo("MakesNaN"), *INPUT, "--fail-on", "never")[0] == 0
    code, out, _ = skipway("inspect", zoo("MakesNaN"), *INPUT, "--ignore", "non-finite")
    assert code == 0
    assert "error non-finite" not in out


def test_what_is_not_finite_is_json_all_the_same(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("MakesNaN"), *INPUT, "--json")
    report = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    jsonschema.validate(report, schema())
    assert code == 1


# -- exit code 2


def test_a_wrong_shape_shows_the_models_error_and_the_input(skipway) -> None:
    code, out, err = skipway("inspect", zoo("Healthy"), "--input", "4,9")
    assert (code, out) == (2, "")
    assert "float32[4,9]" in err
    assert "normalized_shape" in err  # LayerNorm's own words
    assert 'zoo_of_cli.py", line' in err


def test_floats_where_integers_are_wanted(skipway) -> None:
    code, _, err = skipway("inspect", zoo("Tokens"), "--input", "2,16")
    assert code == 2
    assert "float32[2,16]" in err
    assert "ids:" in err


def test_integers_where_floats_are_wanted(skipway) -> None:
    code, _, err = skipway("inspect", zoo("Healthy"), "--input", "ids9:4,8")
    assert code == 2
    assert "int64[4,8]" in err


def test_a_loss_that_fails_is_named(skipway) -> None:
    code, _, err = skipway("inspect", zoo("Healthy"), *INPUT, "--loss", f"{ZOO}:wrong_loss")
    assert code == 2
    assert "in wrong_loss" in err
    assert "no_such_method" in err
    assert err.endswith("try: --loss projection, which takes any output\n")


def test_an_error_of_the_model_keeps_its_traceback(skipway) -> None:
    code, _, err = skipway("inspect", zoo("Crashes"), *INPUT)
    assert code == 2
    assert "helper_that_crashes" in err
    assert "RuntimeError: the user's own words" in err
    assert "site-packages/torch/nn/modules" not in err
    assert "skipway/trace" not in err


def test_a_file_that_fails_to_import_keeps_its_traceback(skipway, tmp_path: Path) -> None:
    path = tmp_path / "fails_of_cli.py"
    path.write_text("def inner():\n    raise KeyError('their own')\n\ninner()\n")
    code, out, err = skipway("inspect", f"{path}:build")
    assert (code, out) == (2, "")
    assert f'File "{path}", line 2, in inner' in err
    assert "KeyError: 'their own'" in err
    assert "importlib" not in err
    assert f"error: {path} fails to import: KeyError" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([zoo("NUMBER")], "is not callable: it is of type int"),
        ([zoo("loss")], "needs arguments: output"),
        ([zoo("Healthi")], "unknown name 'Healthi'\nexpected: did you mean 'Healthy'?"),
        (["tv:resnt18"], "unknown torchvision model 'resnt18'\nexpected: did you mean 'resnet18'"),
        (["tmm:resnet50"], "unknown prefix 'tmm:', and no module of that name\nexpected: did you mean 'timm:'?"),
        (["resnet2O"], "unknown model 'resnet2O'\nexpected: did you mean 'resnet"),
        (["resnet20@preactt"], "unknown design 'preactt'\nexpected: did you mean 'preact'"),
        (["resnet20@highway(bais=-2)"], "did you mean 'bias'?"),
        ([zoo("Healthy")], "does not say what it is called with\nexpected: --input SHAPE or --batch FILE"),
        ([zoo("Healthy"), *INPUT, "--weights", "nothing.pt"], "there is no file 'nothing.pt'"),
    ],
)
def test_models_that_cannot_be_loaded(skipway, arguments: list[str], text: str) -> None:
    code, out, err = skipway("inspect", *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert "Traceback" not in err


@pytest.mark.parametrize("place", ["import", "factory", "forward"])
def test_a_model_that_exits_is_a_failure_and_not_clean(skipway, tmp_path: Path, place: str) -> None:
    """`sys.exit(0)` in the user's code must not read as exit code 0, no findings."""
    leave = "raise SystemExit(0)"
    (tmp_path / "leaves.py").write_text(
        f"from torch import nn\n{leave if place == 'import' else ''}\n"
        f"class Leaving(nn.Linear):\n    def forward(self, x):\n        {leave}\n"
        f"def build():\n    {leave if place == 'factory' else 'return Leaving(8, 8)'}\n"
    )
    code, out, err = skipway("inspect", f"{tmp_path / 'leaves.py'}:build", "--input", "4,8")
    assert (code, out) == (2, "")
    assert "SystemExit" in err


def test_an_input_too_large_to_be_meant_is_refused(skipway) -> None:
    code, out, err = skipway("inspect", zoo("Healthy"), "--input", "1000000,1000000")
    assert (code, out) == (3, "")
    assert "an input of 1e+12 values" in err


def test_a_missing_package_is_said(skipway, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without_timm(wanted: str, *rest: object) -> object:
        if wanted == "timm":
            raise ModuleNotFoundError("No module named 'timm'", name="timm")
        return real(wanted, *rest)

    monkeypatch.setattr(builtins, "__import__", without_timm)
    code, out, err = skipway("inspect", "timm:resnet18")
    assert (code, out) == (2, "")
    assert err == (
        "error: a model named timm:… needs the package 'timm', which is not installed\n"
        "try: pip install 'skipway[timm]'\n"
    )


def test_partly_loaded_weights(skipway, tmp_path: Path) -> None:
    torch.save(nn.Linear(8, 4).state_dict(), tmp_path / "w.pt")
    code, _, err = skipway("inspect", zoo("Plain"), *INPUT, "--weights", str(tmp_path / "w.pt"))
    assert code == 2
    assert "fits the model only partly, so nothing was loaded\n  fit: 0 of the model's 4 tensors\n" in err
    assert "unexpected in the file (2): weight, bias" in err


def test_nan_in_the_input_is_refused(skipway, tmp_path: Path) -> None:
    batch = torch.zeros(4, 8)
    batch[0, :3] = torch.nan
    torch.save(batch, tmp_path / "nan.pt")
    code, out, err = skipway("inspect", zoo("Healthy"), "--batch", str(tmp_path / "nan.pt"))
    assert (code, out) == (2, "")
    assert "tensor 0 of the batch holds 3 NaN of 32 values" in err


# -- exit code 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--fail-on", "warn"], "--fail-on: unknown value 'warn'\nexpected: did you mean 'warning'?"),
        (["--profile", "slow"], "--profile: unknown value 'slow'"),
        (["--dtype", "float3"], "--dtype: unknown value 'float3'\nexpected: did you mean 'float32'"),
        (["--amp", "float32"], "--amp: unknown value 'float32'"),
        (["--ignore", "non-finit"], "--ignore: unknown rule 'non-finit'\nexpected: did you mean 'non-finite'"),
        (["--loss", "cross_entropi"], "--loss: unknown loss 'cross_entropi'\nexpected: did you mean 'cross_entropy'?"),
        (["--input", "4;x"], "--input: no input: 'x'"),
        (["--input", "4,8", "--batch", "f.pt"], "--input: given together with --batch\nexpected: one of the two"),
        (["--batch", "nothing.pt"], "--batch: there is no file 'nothing.pt'"),
        (["--input", "4,8", "--kwargs", "{"], "--kwargs: '{' is no JSON"),
        (["--input", "4,8", "--kwargs", "[1]"], "--kwargs: '[1]' is no JSON object"),
        (["--input", "4,8", "--device", "gpu"], "--device: device 'gpu' cannot be used"),
    ],
)
def test_usage(skipway, options: list[str], text: str) -> None:
    code, out, err = skipway("inspect", zoo("Healthy"), *options)
    assert (code, out) == (3, "")
    assert text in err
    assert "Traceback" not in err


def test_an_option_that_is_none(skipway) -> None:
    code, out, err = skipway("inspect", zoo("Healthy"), "--jsn")
    assert (code, out) == (3, "")
    assert "No such option" in err  # followed by the option in words that differ between versions of click
    assert "--jsn" in err
    assert "Traceback" not in err


# -- said, not failed


def test_zero_units_says_why_that_may_be(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("Plain"), *INPUT)
    assert code == 0
    assert "NO RESIDUAL UNITS FOUND" in out
    assert "note: no units: no tensor was seen added to something computed from it (a plain network?)" in out


def test_no_floating_output(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("ArgMax"), *INPUT)
    assert code == 0
    assert "note: the model has no floating output" in out
    assert "only the forward half was" in out


def test_an_output_without_gradient_says_that_only_forward_was_measured(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("Detached"), *INPUT)
    assert code == 0
    assert "note: the output needs no gradient" in out
    assert "only the forward half was measured" in out


def test_a_model_that_writes_to_itself_is_said(skipway) -> None:
    code, out, _ = skipway("inspect", zoo("WritesItself"), *INPUT)
    assert code == 0
    assert "the model writes to its own parameters in forward; they were put back" in out


def test_a_model_that_grows_in_forward_is_put_back(monkeypatch: pytest.MonkeyPatch, skipway) -> None:
    monkeypatch.syspath_prepend(str(ZOO.parent))
    import zoo_of_cli

    model = zoo_of_cli.Grows()
    monkeypatch.setattr(zoo_of_cli, "READY", model)
    code, out, _ = skipway("inspect", "zoo_of_cli:READY", *INPUT)
    assert code == 0
    assert "4 residual units" in out  # the block that this run added is one of them
    assert len(model.blocks) == 3


def test_ctrl_c(skipway) -> None:
    code, out, err = skipway("inspect", zoo("Interrupted"), *INPUT)
    assert (code, out) == (130, "")
    assert err == "interrupted; the model is as it was before\n"


def test_ctrl_c_restores_the_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ZOO.parent))
    import zoo_of_cli

    model = zoo_of_cli.Interrupted()
    model.blocks[1].eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    monkeypatch.setattr(zoo_of_cli, "READY", model)
    monkeypatch.syspath_prepend(str(ZOO.parent))
    assert main(["inspect", "zoo_of_cli:READY", *INPUT, "--eval"]) == 130
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())

"""What onnxruntime computes from our files is what the model computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import skipway
from designs.cases import batch_for, build
from models.test_fold import SMALL, randomise_, state_hash
from skipway.cli import main
from skipway.errors import MissingPackageError, ModelRunError, SkipwayError
from skipway.integrations import onnx as ours
from skipway.integrations.onnx import export_onnx, onnx_difference

if TYPE_CHECKING:
    from skipway.models import Net

needs_onnx = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs onnx, onnxscript and onnxruntime: pip install 'skipway[onnx]'",
)
TOLERANCE = 1e-4
NETS = {
    "resnet8@preact": {"width": 4, "image_size": 8},
    "gpt_nano": {"depth": 1, "width": 16},
}


def net(name: str, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    model = skipway.create_model(name, **NETS[name])  # type: ignore[call-overload]
    randomise_(model)
    return model.train()


@pytest.fixture(scope="module", params=NETS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    model = net(request.param)
    before = state_hash(model)
    path = export_onnx(model, tmp_path_factory.mktemp("onnx") / "net.onnx")
    assert state_hash(model) == before
    assert all(module.training for module in model.modules())
    return model, path


@needs_onnx
@pytest.mark.parametrize("samples", [1, 2, 5])
def test_the_same_function_at_any_batch_size(exported: tuple[Net, Path], samples: int) -> None:
    model, path = exported
    assert onnx_difference(model, path, model.dummy_input(samples)) <= TOLERANCE
    assert all(module.training for module in model.modules())


@needs_onnx
def test_other_weights_are_told_apart(exported: tuple[Net, Path]) -> None:
    model, path = exported
    assert onnx_difference(net(model.name, seed=1), path, model.dummy_input(2)) > 100 * TOLERANCE


@needs_onnx
def test_the_file_is_alone_and_knows_no_place_on_this_machine(exported: tuple[Net, Path]) -> None:
    path = exported[1]
    assert [file.name for file in path.parent.iterdir()] == ["net.onnx"]
    assert str(Path(skipway.__file__).parent).encode() not in path.read_bytes()


@needs_onnx
def test_other_image_sizes_are_refused(exported: tuple[Net, Path]) -> None:
    model, path = exported
    x = model.dummy_input(2)
    with pytest.raises(Exception, match="invalid dimensions"):  # onnxruntime's own
        onnx_difference(nn.Flatten(), path, torch.cat((x, x), -1))


@needs_onnx
def test_an_output_of_another_shape_is_said(exported: tuple[Net, Path]) -> None:
    model, path = exported
    other = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
    if model.name == "gpt_nano":
        other = nn.Embedding(256, 3)
    with pytest.raises(SkipwayError, match="as the model does"):
        onnx_difference(other, path, model.dummy_input(2))


@needs_onnx
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SMALL)
def test_every_design(name: str, tmp_path: Path) -> None:
    model = build(name)
    randomise_(model)
    path = export_onnx(model, tmp_path / "net.onnx", batch=batch_for(model, 2))
    for samples in (1, 3):
        assert onnx_difference(model, path, batch_for(model, samples)) <= TOLERANCE


@needs_onnx
@pytest.mark.exhaustive
def test_as_it_is_at_one_batch_size_and_feature_maps(tmp_path: Path) -> None:
    model = net("resnet8@preact")
    x = model.dummy_input(3)
    path = export_onnx(model, tmp_path / "fixed.onnx", batch=x, dynamic_batch=False, folded=False)
    assert onnx_difference(model, path, x) <= TOLERANCE
    with pytest.raises(Exception, match="invalid dimensions"):  # onnxruntime's own
        onnx_difference(model, path, x[:2])
    features = skipway.create_model("resnet20", depth=8, width=4, features_only=True, memory="recompute")
    randomise_(features)
    path = export_onnx(features, tmp_path / "features.onnx")
    assert onnx_difference(features, path, torch.randn(1, 3, 32, 32)) <= TOLERANCE
    with pytest.raises(SkipwayError, match=r"fixes the number of samples at 2\n.*\ntry: dynamic_batch=False"):
        export_onnx(Fixes(), tmp_path / "fixes.onnx", batch=torch.randn(2, 3), folded=False)
    own = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).double()
    path = export_onnx(own, tmp_path / "own.onnx", batch=torch.randn(1, 3), folded=False)
    assert onnx_difference(own, path, torch.randn(4, 3).double()) <= TOLERANCE


class Fixes(nn.Module):
    """Counts its samples by a Python number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.arange(len(x) + 0)[:, None]


class Breaks(nn.Module):
    """Goes two ways by what its input holds."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@needs_onnx
@pytest.mark.exhaustive
def test_a_model_that_cannot_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")
    with pytest.raises(ModelRunError, match="could not be exported to ONNX"):
        export_onnx(Breaks(), path, batch=torch.randn(2, 3), folded=False)
    assert path.read_bytes() == b"before"


class Proto:
    """What the exporter returns, as far as writing it goes."""

    def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
        return b"new"


@needs_onnx
def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_exported", lambda *_: Proto())
    model = net("gpt_nano")
    path = export_onnx(model, tmp_path / "net.onnx")
    assert path.read_bytes() == b"new"
    path.write_bytes(b"before")
    write = Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        write(self, data[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(SkipwayError, match=r"onnx: no space left; what was there before is whole\n"):
        export_onnx(model, path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("net.onnx", b"before")]


@needs_onnx
def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, linear = net("gpt_nano"), nn.Linear(3, 3)
    cases: list[tuple[nn.Module, Path, dict[str, Any], str]] = [
        (model, tmp_path, {}, "is a folder\nexpected: the name of a file\ntry: .*model.onnx"),
        (model, tmp_path / "net.pt", {}, "no name of an ONNX file\nexpected: one that ends in .onnx"),
        (linear, tmp_path / "a.onnx", {}, "fold on a Linear, whose order of layers is not known"),
        (linear, tmp_path / "a.onnx", {"folded": False}, "a Linear that does not say what it is called with"),
        (model, tmp_path / "a.onnx", {"batch": [1]}, "a batch of type list\nexpected: one tensor"),
    ]
    for given, path, options, text in cases:
        with pytest.raises(SkipwayError, match=text):
            export_onnx(given, path, **options)
    monkeypatch.setattr(ours, "_LARGEST", 1000)
    with pytest.raises(SkipwayError, match="less than 2 GiB, the most that an ONNX file holds"):
        export_onnx(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_missing_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == package else find("json") if "onnx" in name else find(name),
    )
    path, x = tmp_path / "a.onnx", torch.ones(1)
    with pytest.raises(MissingPackageError) as missing:
        _ = onnx_difference(nn.Identity(), path, x) if package == "onnxruntime" else export_onnx(nn.Identity(), path)
    assert str(missing.value) == (
        f"ONNX needs the package '{package}', which is not installed\ntry: pip install 'skipway[onnx]'"
    )


@needs_onnx
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    assert main(["export", "mlp1", "--onnx", str(path), "--batch", "3"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{path}: 0.0 MiB, input (3, 64)"
    assert second.startswith("largest difference in onnxruntime: ")
    assert float(second.split()[4]) <= TOLERANCE


@needs_onnx
@pytest.mark.exhaustive
def test_the_command_on_a_run_and_on_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = tmp_path / "run", tmp_path / "net.onnx"
    assert main(["train", "resnet8", "--data", "digits", "--steps", "3", "--out", str(run)]) == 0
    assert main(["export", str(run), "--onnx", str(file)]) == 0
    trained = skipway.load_run(run).model()
    images = torch.randn(5, *trained.default_cfg["input_size"])
    assert onnx_difference(trained, file, images) <= TOLERANCE
    fresh = skipway.load_run(run).model()
    fresh.reset_classifier(10)
    assert onnx_difference(fresh, file, images) > 100 * TOLERANCE
    small = ["export", "resnet8", "--onnx", str(file), "--image-size", "16", "--no-fold"]
    assert main(small) == 0
    assert "input (N, 3, 16, 16)" in capsys.readouterr().out
    assert main([*small[:2], "--weights", str(run / "metrics.jsonl"), *small[2:]]) != 0


@needs_onnx
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["resnet20", "--onnx", "net.pt"], 3, "--onnx: net.pt is no name of an ONNX file"),
        (["tv:resnet18", "--onnx", "net.onnx"], 2, "tv:resnet18 is not one of our own models"),
        (["resnet21", "--onnx", "net.onnx"], 2, "resnet20 or resnet26"),
        (["gpt_nano", "--onnx", "net.onnx", "--image-size", "32"], 2, "image_size for gpt_nano"),
        ([".", "--onnx", "net.onnx", "--image-size", "32"], 3, "--image-size 32 for the run in ."),
        (["nets.py:build", "--onnx", "net.onnx", "--image-size", "32"], 3, "--image-size 32 for nets.py:build"),
        (["resnet20"], 3, "Missing option '--onnx'"),
    ],
)
def test_refusals_of_the_command(
    arguments: list[str], code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == code
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@needs_onnx
def test_a_model_that_returns_zeros(tmp_path: Path) -> None:
    model = skipway.create_model("mlp4", width=8, in_channels=8)
    path = export_onnx(model, tmp_path / "net.onnx")
    x = model.dummy_input()
    nn.init.zeros_(model.head.fc.weight)  # type: ignore[arg-type]  # a linear layer
    nn.init.zeros_(model.head.fc.bias)  # type: ignore[arg-type]
    assert onnx_difference(model, path, x) == float("inf")
    assert onnx_difference(model, export_onnx(model, tmp_path / "zeros.onnx"), x) == 0.0

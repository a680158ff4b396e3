"""A trained net outside its training: what makes its inputs lies in the run folder, and the command uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from skipway.cli import main
from skipway.data import open_data
from skipway.errors import SkipwayError
from skipway.spec import DataSpec
from skipway.train.fit import resume, run_spec
from skipway.train.run import Run, load_run
from train.runs import tiny

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_spec(tiny(steps=30), tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The test images of the digits as files, and their labels in the names."""
    data = open_data(DataSpec())
    assert data.preparation is not None
    folder, (x, y) = tmp_path_factory.mktemp("images"), next(data.test(batch_size=360))
    pixels = (x / data.preparation.scale + data.preparation.shift).round().to(torch.uint8)[:, 0].numpy()
    paths = [folder / f"{k}-{label}.png" for k, label in enumerate(y.tolist())]
    for image, path in zip(pixels, paths, strict=True):
        Image.fromarray(image).save(path)
    return paths


def labels(files: list[Path]) -> torch.Tensor:
    return torch.tensor([int(path.stem.split("-")[1]) for path in files])


def test_the_test_error_comes_out_of_files(run: Run, files: list[Path]) -> None:
    again = load_run(run.path)
    with torch.no_grad():
        wrong = (again.model()(again.transform()(files)).argmax(1) != labels(files)).double().mean()
    assert 100 * wrong.item() == pytest.approx(again.result["test_error"], abs=1e-9)
    assert again.classes == tuple("0123456789")


def test_the_command(run: Run, files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    shown = files[:5]
    assert main(["predict", str(run.path), *map(str, shown), "--json", "--top", "10"]) == 0
    found = json.loads(capsys.readouterr().out)
    with torch.no_grad():
        odds = run.model()(run.transform()(shown)).double().softmax(1)
    assert [image["image"] for image in found["images"]] == [str(path) for path in shown]
    for image, row in zip(found["images"], odds, strict=True):
        assert sum(image["probabilities"]) == pytest.approx(1)
        assert image["classes"] == [str(k) for k in row.argsort(descending=True).tolist()]
        np.testing.assert_allclose(image["probabilities"], row.sort(descending=True).values, rtol=1e-5)
    assert main(["predict", str(run.path), str(shown[0])]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if shown[0].name in line]
    best = found["images"][0]
    assert f"{best['classes'][0]} {100 * best['probabilities'][0]:.1f} %" in line


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere.png"], 2, "there is no file nowhere.png"),
        (["--top", "11"], 3, "the run has 10 classes"),
    ],
)
def test_refusals_of_the_command(
    run: Run, files: list[Path], arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run.path), str(files[0]), *arguments]) == code
    said = capsys.readouterr()
    assert words in said.err
    assert not said.out


def test_a_run_that_was_begun_without_the_file_gets_it_when_it_goes_on(tmp_path: Path) -> None:
    spec = tiny(steps=6, checkpoint_every=3)
    run_spec(spec, tmp_path / "whole")
    path = tmp_path / "whole" / "inputs.safetensors"
    path.unlink()
    with pytest.raises(SkipwayError, match="has no inputs"):
        load_run(tmp_path / "whole").transform()
    (tmp_path / "whole" / "result.json").unlink()
    resume(tmp_path / "whole")
    assert load_run(tmp_path / "whole").transform().height == 8
    save_file({"shift": torch.zeros(1)}, path)
    with pytest.raises(SkipwayError, match="as the run wrote it"):
        load_run(tmp_path / "whole").transform()


def test_a_run_on_something_else(tmp_path: Path) -> None:
    run_spec(tiny("gpt_nano", data=DataSpec(name="reverse", test_size=8), steps=1), tmp_path / "run")
    assert not (tmp_path / "run" / "inputs.safetensors").exists()
    with pytest.raises(SkipwayError, match="trained on data of the kind 'sequence'"):
        load_run(tmp_path / "run").transform()

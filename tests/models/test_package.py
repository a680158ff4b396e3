"""The package as a whole: lazy import, stub, saved models."""

from __future__ import annotations

import ast
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import skipway
from skipway.spec import OptimizerSpec


def test_import_loads_no_torch() -> None:
    code = "import sys, skipway; dir(skipway); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


def test_every_name_resolves_and_the_stub_names_the_same() -> None:
    stub = ast.parse(Path(skipway.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert names == set(skipway.__all__) == set(dir(skipway))
    assert set(skipway._WHERE) | {"__version__"} == set(skipway.__all__)
    for name in skipway.__all__:
        assert getattr(skipway, name) is not None
    with pytest.raises(AttributeError, match="module 'skipway' has no attribute 'creat_model'"):
        _ = skipway.creat_model
    assert (Path(skipway.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize(
    "name", ["resnet20@dropout_shortcut(inverted=true)", "resnet20@preact", "gpt_nano", "mlp40@dense"]
)
def test_whole_models_can_be_pickled(name: str) -> None:
    model = skipway.create_model(name).eval()
    x = model.dummy_input()
    twin = pickle.loads(pickle.dumps(model))  # noqa: S301  # our own bytes
    assert torch.equal(twin(x), model(x))
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    model.load_state_dict(torch.load(saved, weights_only=True))


def test_tied_embeddings_stay_tied_through_a_state_dict() -> None:
    model = skipway.create_model("gpt_nano", depth=1)
    assert model.head.fc.weight is model.stem.tokens.weight
    other = skipway.create_model("gpt_nano", depth=1)
    other.load_state_dict(model.state_dict())
    assert other.head.fc.weight is other.stem.tokens.weight
    assert skipway.create_model("gpt_nano", depth=1, num_classes=10).head.fc.weight.shape == (10, 128)


def test_optimizer_specs() -> None:
    with pytest.raises(skipway.SkipwayError, match="none of them negative"):
        OptimizerSpec(lr=-1.0)
    assert OptimizerSpec(lr=0.5).to_dict()["lr"] == 0.5

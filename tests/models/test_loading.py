"""Somebody's files: code under a name of its own, weights older than what they are loaded into."""

from __future__ import annotations

import dataclasses
import pickle
import random
import sys
from typing import TYPE_CHECKING

import torch
from torch import nn

from skipway.models.load import load_model, load_weights

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
from __future__ import annotations

import dataclasses
from torch import nn

@dataclasses.dataclass
class Settings:
    width: int = 3
    kind: dataclasses.InitVar[str] = "x"

class Net(nn.Linear):
    pass

def build():
    settings = Settings()
    net = Net(settings.width, settings.width)
    net.settings = settings
    return net
"""


def test_a_file_does_not_stand_in_for_a_module_of_its_name(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "random.py").write_text(CODE)
    before = set(sys.modules)
    models = [load_model(f"{tmp_path / folder / 'random.py'}:build").model for folder in ("one", "other")]
    assert sys.modules["random"] is random
    added = set(sys.modules) - before
    assert {type(model).__module__ for model in models} == added
    assert len(added) == 2
    try:
        again = pickle.loads(pickle.dumps(models[0]))  # noqa: S301  # of this very test
        assert type(again) is type(models[0])
        assert dataclasses.asdict(again.settings) == {"width": 3}
    finally:
        for name in added:
            sys.modules.pop(name)


def test_files_that_count_no_batches(tmp_path: Path) -> None:
    model, other = (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)) for _ in range(2))
    model.train()(torch.randn(2, 3, 4, 4))
    state = {key: value for key, value in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "older.pt")
    assert load_weights(other, tmp_path / "older.pt") == 6
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(other.eval()(x), model.eval()(x), rtol=0, atol=0)

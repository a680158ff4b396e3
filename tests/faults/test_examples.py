"""The rebuilt reports: each is convicted by its one command, and its mended twin is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import skipway
from skipway.diagnostics.finding import at_least
from skipway.diagnostics.rules import RULES
from skipway.models._load_code import load_code

if TYPE_CHECKING:
    from skipway.models._load_types import LoadedModel

EXAMPLES = Path(__file__).parents[2] / "examples"
REPORTS = [
    ("vqvae_inplace_relu", "shortcut-overwritten", "error", "coder."),
    ("wide_resnet_dead_conv", "dead-op", "warning", "conv1"),
    ("deep_post_norm", "post-norm-deep", "error", ""),
]


def loaded(name: str, factory: str) -> LoadedModel:
    """What ``skipway inspect examples/NAME.py:FACTORY`` inspects."""
    model = load_code(f"{EXAMPLES / name}.py:{factory}", ())
    assert model.batch is not None, "the command needs no options: the model names its input"
    return model


def findings(name: str, factory: str) -> list[skipway.Finding]:
    model = loaded(name, factory)
    return list(skipway.inspect(model.model, model.batch).findings)


@pytest.mark.parametrize(("name", "rule", "severity", "where"), REPORTS, ids=[r[0] for r in REPORTS])
def test_report_is_convicted(name: str, rule: str, severity: str, where: str) -> None:
    assert f"skipway inspect examples/{name}.py:build\n" in (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    if rule not in RULES:
        pytest.skip(f"no rule {rule} yet")
    found = findings(name, "build")
    assert any(f.rule == rule and at_least(f.severity, severity) and where in f.path for f in found), found
    fixed = findings(name, "build_fixed")
    assert not [f for f in fixed if f.rule == rule or f.severity == "error"], fixed


@pytest.mark.parametrize("name", [r[0] for r in REPORTS])
def test_report_runs_and_its_fault_is_there(name: str) -> None:
    faulty, fixed = loaded(name, "build"), loaded(name, "build_fixed")
    with torch.no_grad():
        one, other = faulty.model(faulty.batch), fixed.model(fixed.batch)
    assert one.shape == other.shape
    assert one.isfinite().all()
    assert (one - other).abs().max() > 1e-3


def test_inplace_relu_rewrites_the_input() -> None:
    model = loaded("vqvae_inplace_relu", "build").model
    x = torch.randn(1, 64, 8, 8)
    kept = x.clone()
    with torch.no_grad():
        out = model.encoder[5](x)
        assert torch.equal(x, kept.relu())
        assert torch.equal(out, model.encoder[5].branch(kept.clone()) + kept.relu())


def test_dead_convolutions_get_no_gradient() -> None:
    for factory, dead in (("build", 9), ("build_fixed", 0)):
        report = loaded("wide_resnet_dead_conv", factory)
        report.model(report.batch).square().sum().backward()
        assert sum(b.conv1.weight.grad is None for b in report.model.blocks) == dead


def test_deep_post_norm_makes_all_tokens_one() -> None:
    for factory, alike in (("build", True), ("build_fixed", False)):
        report = loaded("deep_post_norm", factory)
        tokens = []
        report.model.head.register_forward_pre_hook(lambda _m, a, tokens=tokens: tokens.append(a[0].detach()))
        report.model(report.batch)
        x = torch.nn.functional.normalize(tokens[0], dim=-1)
        cosine = float((x @ x.transpose(1, 2)).mean())
        assert (cosine > 0.99) is alike
        assert alike or cosine < 0.5

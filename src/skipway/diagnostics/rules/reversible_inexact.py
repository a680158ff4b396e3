"""Rule ``reversible-inexact``: a block that is to be inverted, and whose inverse misses."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace.batch import tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from skipway.diagnostics.finding import Finding

__all__ = ["reversible_inexact"]

# In eps of the dtype: a sum and a difference lose a few, a branch in between some hundred; dropout misses by all.
_MISS_EPS: Final = 1e4
_PROGRAM: Final = """
import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(RATE), nn.Linear(8, 8))

    def forward(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([b, a + self.f(b)], -1)

    def inverse(self, y):
        b, c = y.chunk(2, -1)
        return torch.cat([c - self.f(b), b], -1)


model = nn.Sequential(nn.Linear(16, 16), *[Coupling() for _ in range(4)])
batch = torch.randn(4, 16)
"""


@rule(
    "reversible-inexact",
    severity="error",
    summary="inverse(forward(x)) is not x: gradients that rest on the inverse are wrong.",
    explanation="A module with a method `inverse` is run on the values that it meets in the model, in the model's mode,"
    " and inverted at once. Dropout draws another mask the second time, a norm whose statistics moved normalises"
    " otherwise, and what is rounded away does not come back.",
    fix="take dropout and BatchNorm out of the block, or save and restore the random state around the second run",
    source="silvandeleemput/memcnn #12; Gomez et al. 2017, arXiv 1707.04585",
    faulty=_PROGRAM.replace("RATE", "0.2"),
    healthy=_PROGRAM.replace("RATE", "0.0"),
    needs=("runs",),
)
def reversible_inexact(evidence: Evidence) -> Iterator[Finding]:
    """Fire for blocks whose inverse misses by more than rounding."""
    called = {call.path for call in evidence.graph.calls}
    modules = {p: m for p, m in evidence.model.named_modules() if p in called and callable(getattr(m, "inverse", None))}
    if not modules or evidence.lab is None:
        return
    missed: dict[str, tuple[float, float]] = {}
    try:
        evidence.lab.outputs("reversible-inexact", around=_inverted(modules, missed))
    except Exception:  # noqa: BLE001  # an inverse that raises is another fault than one that misses
        return
    if not missed:
        return
    path, (difference, eps) = next(iter(missed.items()))
    more = f" \N{MULTIPLICATION SIGN}{len(missed)}" if len(missed) > 1 else ""
    yield RULES["reversible-inexact"].finding(
        path,
        f"inverse(forward(x)) differs from x by up to {difference:.3g}{more}",
        {"largest_difference": difference, "difference_eps": eps, "modules": len(missed)},
    )


@contextmanager
def _inverted(modules: dict[str, nn.Module], missed: dict[str, tuple[float, float]]) -> Iterator[None]:
    """Inverts each module's output as soon as it is there."""
    handles = [module.register_forward_hook(_hook(path, missed)) for path, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _back(module: nn.Module, output: Any) -> Any:
    """What the inverse makes of an output: of all its parts if it takes as many, else of the first.

    The blocks of a flow give the logarithm of their volume beside their output.
    """
    inverse: Any = module.inverse
    parts = output if isinstance(output, tuple) else (output,)
    try:
        inspect.signature(inverse).bind(*parts)
    except TypeError:
        parts = parts[:1]
    return inverse(*parts)


def _hook(path: str, missed: dict[str, tuple[float, float]]) -> Any:
    def compare(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        back = _back(module, output)
        for x, again in zip(tensors_of(inputs), tensors_of(back), strict=False):
            if x.shape != again.shape or not x.is_floating_point() or not x.numel():
                continue
            difference = float((x.double() - again.double()).abs().max())
            eps = difference / (float(x.abs().max()) or 1.0) / torch.finfo(x.dtype).eps
            if eps > _MISS_EPS and difference > missed.get(path, (0.0, 0.0))[0]:
                missed[path] = (difference, eps)

    return compare

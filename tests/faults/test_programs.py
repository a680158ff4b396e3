"""The programs themselves: they build, run or raise as stated, repeat; and each fault is there for all to measure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import faults.programs  # noqa: F401  # fills the list
from faults.case import CASES, FaultCase
from faults.evidence import SHOWN
from faults.shown import (
    backward,
    called,
    differ,
    made,
)

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")

RULES = [
    "shortcut-overwritten", "inplace-add", "self-add", "double-add", "wrong-ancestor", "nested-unit", "dead-op",
    "dead-unit", "broadcast-add", "missing-projection", "odd-size", "missing-shortcut", "post-norm-deep",
    "shortcut-after-norm", "missing-final-norm", "double-norm", "missing-final-activation", "relu-after-add-deep",
    "nonnegative-branch", "norm-after-add", "scaled-shortcut", "projected-shortcut", "dropout-on-shortcut",
    "gate-unbounded", "gate-shut", "branch-scale", "init-scale-missing", "identical-init", "zero-twice", "zero-init",
    "decay-on-gates", "stream-growth", "rank-collapse", "gradient-vanishing", "gradient-exploding", "scale-buffer",
    "fp16-headroom", "bf16-swamping", "stream-dtype", "non-finite", "train-eval-mismatch", "ddp-unsafe-skip",
    "compile-unsafe-skip", "checkpoint-side-effects", "reversible-inexact",
    "unregistered-weights", "idle-block", "not-optimized",
]  # fmt: skip
BY_NAME = {(c.rule, c.name): c for c in CASES}
FAULTY = [pytest.param(c, id=c.id) for c in CASES if not c.healthy]


def test_every_rule_has_programs() -> None:
    assert sorted({c.rule for c in CASES}) == sorted(RULES)
    assert len(BY_NAME) == len(CASES)
    faulty, healthy = (Counter(c.rule for c in CASES if c.healthy is h) for h in (False, True))
    assert all(faulty[r] >= 2 and healthy[r] >= 2 for r in RULES)
    assert all(c.reason for c in CASES)


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in CASES])
def test_program_runs_as_stated(case: FaultCase) -> None:
    raises = case.options.get("raises")
    model, again = made(case), made(case)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    if case.where and case.options.get("raises") != "forward":
        assert any(case.where in name for name, _ in model.named_modules())
    if raises == "forward":
        with pytest.raises(RuntimeError, match="must match the size"):
            called(case, model)
        return
    output = called(case, model)
    torch.testing.assert_close(called(case, again), output, rtol=0, atol=0, equal_nan=True)
    if raises == "backward":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            backward(output)
    elif output.requires_grad:
        backward(output)
    if case.healthy:
        assert output.isfinite().all()


@pytest.mark.parametrize("case", FAULTY)
def test_fault_is_there(case: FaultCase) -> None:
    twin = BY_NAME[case.rule, case.twin]
    if case.options.get("raises"):
        return  # test_program_runs_as_stated has seen it raise, and the twin run
    SHOWN.get(case.rule, differ)(case, twin)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # said by dynamo of itself
@pytest.mark.parametrize("case", [p for p in FAULTY if p.values[0].rule == "compile-unsafe-skip"])
def test_compiler_sees_the_skip(case: FaultCase) -> None:
    """The faulty program is no one graph, the twin is: neither broken off nor compiled anew for other numbers."""
    for one, whole in ((case, False), (BY_NAME[case.rule, case.twin], True)):
        torch._dynamo.reset()
        seen: list[int] = []

        def count(graph: torch.fx.GraphModule, _inputs: Any, seen: list[int] = seen) -> Any:
            seen.append(len(graph.graph.nodes))
            return graph.forward

        compiled = torch.compile(made(one), backend=count, fullgraph=True)
        try:
            for seed in range(4):
                called(one, compiled, seed)
        except torch._dynamo.exc.TorchDynamoException:  # it breaks off, or asks for a value that only a run has
            seen.clear()
        assert (len(seen) == 1) is whole

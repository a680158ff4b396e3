"""The inspector's answers on hand-made models against the right ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch

from skipway.diagnostics.inspect import inspect
from units.adversary import ADVERSARY
from units.hard_cases import HARD
from zoo.compare import after_of, agrees, histogram, shortcut_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.inspection import Inspection
    from units.case import Case

# Scripting, tracing and reentrant checkpoints warn, each in its own words, whatever runs them.
pytestmark = pytest.mark.filterwarnings("ignore")

EPS = 32  # the bound on a proof, in eps of the compute dtype
NEEDED = 50  # of the 54 first cases, one of which has no agreed answer


@pytest.fixture(scope="module", autouse=True)
def _process_group() -> Iterator[None]:
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def answer(case: Case) -> Inspection:
    torch.manual_seed(0)
    model = case.build().train(case.train)
    return inspect(model, case.batch(), structure_only=True)


def wrong(case: Case, found: Inspection) -> list[str]:
    """What is wrong with an answer, in words; empty if it is right."""
    said = []
    kinds = Counter(u.kind for u in found.units)
    units = [u for u in found.units if u.kind == "unit"]
    if case.units is not None and len(units) != case.units:
        said.append(f"{case.units} units expected, found {dict(kinds)}")
    for label, of, expected in (("h", shortcut_of, case.shortcut), ("f", after_of, case.after)):
        names = [of(u.form) for u in units]
        if expected is not None and not agrees(names, expected):
            said.append(f"{label} expected {expected}, found {histogram(names)}")
    said += [f"{n} of kind {kind} expected, found {kinds[kind]}" for kind, n in case.also.items() if kinds[kind] < n]
    if len(found.unexplained) + kinds["merge"] + len(units) < case.listed:  # better than listed: understood
        said.append(f"{case.listed} joins to be listed, found {len(found.unexplained)} and {kinds['merge']} merges")
    if case.proved:
        said += [f"{u.path}: proof error {u.proof_error}" for u in units if not (u.proof_error or 0) <= EPS]
        said += [f"{u.path}: not proved" for u in units if u.proof_error is None]
    return said


@pytest.mark.parametrize("name", [n for n, c in HARD.items()])
def test_hard_case(name: str) -> None:
    case = HARD[name]
    assert wrong(case, answer(case)) == []


@pytest.mark.parametrize("name", list(ADVERSARY))
def test_adversary(name: str) -> None:
    case = ADVERSARY[name]
    assert wrong(case, answer(case)) == []


# In a fused product-and-sum the branch's output is never a tensor of its own; on the meta device nothing has a value.
UNMEASURED = ("fused addmm", "fused baddbmm", "meta device")


@pytest.mark.parametrize("name", [n for n in [*HARD, *ADVERSARY] if n not in UNMEASURED])
def test_the_signal_is_measured(name: str) -> None:
    """The default profile runs on every case, and gives forward figures for every unit unless a note says why not."""
    case = {**HARD, **ADVERSARY}[name]
    torch.manual_seed(0)
    found = inspect(case.build().train(case.train), case.batch())
    for unit in found.units:
        assert found.notes or None not in (unit.numbers.stream_rms, unit.numbers.branch_rms), unit.path


@pytest.mark.parametrize("name", ["x + F", "post-norm", "float64", "float16", "complex"])
def test_gradients_arrive_at_every_unit(name: str) -> None:
    """Also at the first one, whose x is the batch itself."""
    case = {**HARD, **ADVERSARY}[name]
    torch.manual_seed(0)
    found = inspect(case.build(), case.batch())
    assert len(found.units) == 3
    for unit in found.units:
        assert unit.numbers.grad_stream is not None, unit.path
        assert unit.numbers.grad_branch is not None, unit.path


def test_what_a_reentrant_checkpoint_hides_is_said() -> None:
    """Its blocks run without gradients in forward and refuse `torch.autograd.grad` in backward."""
    case = HARD["checkpoint, reentrant"]
    found = inspect(case.build(), case.batch())
    assert all(unit.numbers.stream_rms is not None for unit in found.units)
    assert any("only the forward half was measured" in n or "gradient not measured" in n for n in found.notes)


def test_u_net_merges_are_counted_either_way() -> None:
    found = answer(HARD["additive U-Net: three merges, units or long skips"])
    assert sum(u.kind in ("unit", "long_skip") for u in found.units) == 3


def test_there_are_as_many_cases_as_announced() -> None:
    assert len(HARD) == 54
    assert len(ADVERSARY) >= 60

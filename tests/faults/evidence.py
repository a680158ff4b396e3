"""For each rule the plain measurement that tells a faulty program from its healthy twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from faults.shown import (
    backward,
    branch_off,
    called,
    differ,
    gradient_ratio,
    growth,
    likeness,
    made,
    no_gradient,
    ran,
    rms,
    stream_units,
    through,
)
from faults.verdict import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.case import FaultCase


def overwritten(case: FaultCase, twin: FaultCase) -> None:
    differ(case, twin)
    model = made(case)
    changed = []
    for unit in stream_units(model):
        unit.register_forward_pre_hook(lambda m, a: setattr(m, "was", a[0].detach().clone()))
        unit.register_forward_hook(lambda m, a, _o: changed.append(not torch.equal(m.was, a[0])))
    called(case, model)
    assert any(changed)


def doubles(case: FaultCase, twin: FaultCase) -> None:
    differ(case, twin)
    assert growth(case) > growth(twin)


def dead(case: FaultCase, twin: FaultCase) -> None:
    differ(case, twin)
    if case.name != "dropout":  # has no parameters
        assert no_gradient(case, lambda n: case.where in n)
        assert not no_gradient(twin, lambda n: case.where in n)


def idle(case: FaultCase, twin: FaultCase) -> None:
    def shares(one: FaultCase) -> dict[str, float]:
        return {str(k): rms(o - x) / rms(x) for k, (_, x, o) in enumerate(through(one))}

    where = case.where.rpartition(".")[2]
    without = no_gradient(case, lambda n: n.startswith((f"{case.where}.branch.0", f"{case.where}.branch.1")))
    assert without or shares(case)[where] < 1e-6
    assert all(share > 1e-3 for name, share in shares(case).items() if name != where)
    assert all(share > 1e-3 for share in shares(twin).values())


def broadcast(case: FaultCase, twin: FaultCase) -> None:
    a, b = called(case, made(case)), called(twin, made(twin))
    if case.severity == "error":
        assert a.shape != b.shape
    else:
        differ(case, twin)


def odd(case: FaultCase, twin: FaultCase) -> None:
    called(twin, made(twin), batch=case.options["odd"]())
    with pytest.raises(RuntimeError, match="must match the size"):
        called(case, made(case), batch=case.options["odd"]())


def collapses(case: FaultCase, twin: FaultCase) -> None:
    assert likeness(case) > 0.99
    assert likeness(twin) < 0.95


def grown_at_head(case: FaultCase, twin: FaultCase) -> None:
    def at_head(one: FaultCase) -> float:
        model = made(one)
        seen: list[float] = []
        model.head.register_forward_pre_hook(lambda _m, a: seen.append(rms(a[0])))
        called(one, model)
        return seen[0]

    assert at_head(case) > 1.5
    assert 0.5 < at_head(twin) < 1.1


def idempotent(case: FaultCase, twin: FaultCase) -> None:
    """The second norm has nothing left to do."""
    a, b = called(case, made(case)), called(twin, made(twin))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-3)
    norms = [sum(isinstance(m, nn.LayerNorm) for m in made(c).modules()) for c in (case, twin)]
    assert norms[0] == norms[1] + 1


def truncates(case: FaultCase, twin: FaultCase) -> None:
    seen = through(case)
    assert len(seen) >= 100
    assert sum(float((o == 0).float().mean()) for _, _, o in seen) / len(seen) > 0.03
    assert all(float((o == 0).float().mean()) < 0.01 for _, _, o in through(twin))


def only_grows(case: FaultCase, twin: FaultCase) -> None:
    assert all(bool((o - x >= -1e-5).all()) for _, x, o in through(case))
    assert all(bool((o - x < -1e-3).any()) for _, x, o in through(twin))


def scales(case: FaultCase, twin: FaultCase) -> None:
    assert all(float((o / x).median()) not in (0.0, 1.0) for x, o in branch_off(case))
    assert all(torch.equal(x, o) for x, o in branch_off(twin))


def drops_stream(case: FaultCase, twin: FaultCase) -> None:
    assert any((o == 0).any() for _, o in branch_off(case))
    assert all(torch.equal(x, o) for x, o in branch_off(twin))


def unbounded(case: FaultCase, twin: FaultCase) -> None:
    assert growth(case) > 1e3
    assert growth(twin) < 10


def shut(case: FaultCase, twin: FaultCase) -> None:
    def gates(one: FaultCase) -> torch.Tensor:
        model = made(one)
        seen: list[torch.Tensor] = []
        for unit in stream_units(model):
            unit.gate.register_forward_hook(lambda _m, _i, o: seen.append(o.detach().sigmoid().flatten()))
        called(one, model)
        return torch.cat(seen)

    gate = gates(case)
    assert gate.max() < 1e-6 or gate.min() > 1 - 1e-6
    assert 0.05 < gates(twin).mean() < 0.95


def branch_grows(case: FaultCase, twin: FaultCase) -> None:
    assert growth(case) > 20
    assert growth(twin) < 5


def ends_differ(case: FaultCase, twin: FaultCase) -> None:
    mine, theirs = (dict(made(c).named_parameters()) for c in (case, twin))
    ratios = {n: float(mine[n].detach().std() / theirs[n].detach().std()) for n in mine if mine[n].ndim > 1}
    assert max(ratios.values()) > 2
    assert min(ratios.values()) < 1.01


def copies(case: FaultCase, twin: FaultCase) -> None:
    def equal_pairs(one: FaultCase) -> int:
        matrices = [p for p in made(one).parameters() if p.ndim > 1 and p.unique().numel() > 1]
        return sum(a.shape == b.shape and torch.equal(a, b) for k, a in enumerate(matrices) for b in matrices[:k])

    assert equal_pairs(case) > 3
    assert equal_pairs(twin) == 0


def no_gradient_at_all(case: FaultCase, twin: FaultCase) -> None:
    prefix = case.where if case.where[-1].isdigit() else f"{case.where}.{1 if case.name == 'non_local' else 0}"
    assert no_gradient(case, lambda n: n.startswith(f"{prefix}.") and not n.endswith("norm.bias"))
    assert not no_gradient(twin, lambda n: n.startswith(f"{prefix}."))


def starts_as_identity(case: FaultCase, twin: FaultCase) -> None:
    def identities(one: FaultCase) -> set[bool]:
        seen = through(one)
        return {torch.equal(x if isinstance(u, nn.Module) and not isinstance(u, nn.Sequential) else x.relu(), o)
                for u, x, o in seen}  # fmt: skip

    assert identities(case) == {True}
    assert identities(twin) == {False}


def decays(case: FaultCase, twin: FaultCase) -> None:
    def decayed(one: FaultCase) -> bool:
        assert one.optimizer is not None
        groups = one.optimizer(made(one)).param_groups
        return any(p.ndim < 2 and g["weight_decay"] > 0 for g in groups for p in g["params"])

    assert decayed(case)
    assert not decayed(twin)


def stream_grows(case: FaultCase, twin: FaultCase) -> None:
    assert growth(case) > 2
    assert growth(twin) < 1.5


def vanishes(case: FaultCase, twin: FaultCase) -> None:
    assert gradient_ratio(case) < 1e-3
    assert gradient_ratio(twin) > 1e-2


def explodes(case: FaultCase, twin: FaultCase) -> None:
    assert gradient_ratio(case) > 1e4
    assert gradient_ratio(twin) < 1e2


def garbage(case: FaultCase, twin: FaultCase) -> None:
    def held(one: FaultCase) -> set[float]:
        return {
            abs(float(v)) for n, b in made(one).named_buffers() if n.endswith(("scale", "gain")) for v in b.flatten()
        }

    assert all(v > 1e6 or v < 1e-30 for v in held(case))
    assert all(0.1 < v < 1 for v in held(twin))


def near_the_limit(case: FaultCase, twin: FaultCase) -> None:
    tops = [max(float(o.detach().abs().max()) for _, _, o in through(c)) for c in (case, twin)]
    assert all(o.dtype == torch.float16 for _, _, o in through(case))
    assert 30_000 < tops[0] < 65_504
    assert tops[1] < 1_000


def loses_updates(case: FaultCase, twin: FaultCase) -> None:
    def lost(one: FaultCase) -> float:
        return max(float((o == x).float().mean()) for _, x, o in through(one)[1:])

    assert lost(case) > 0.5
    assert lost(twin) < 0.1


def not_finite(case: FaultCase, twin: FaultCase) -> None:
    assert not called(case, made(case)).isfinite().all()
    assert called(twin, made(twin)).isfinite().all()


def modes_differ(case: FaultCase, twin: FaultCase) -> None:
    """The mean branch over many seeds against the branch in eval mode, unit by unit; BatchNorm stays in train mode."""

    def mismatch(one: FaultCase) -> float:
        worst = 0.0
        for unit, given, _ in through(one)[:2]:
            x = given.detach()
            unit.branch.register_forward_hook(lambda m, _i, o: m.__dict__.setdefault("kept", o.detach()))
            unit(x)
            kept = unit.branch.kept
            unit.branch.register_forward_hook(lambda _m, _i, _o, kept=kept: kept.clone())
            unit.training = False
            with seeded(1), torch.no_grad():
                evaluated, again = unit(x) - x, unit(x) - x
                unit.training = True
                mean = sum(unit(x) - x for _ in range(300)) / 300
            if not torch.equal(evaluated, again):
                return float("inf")
            worst = max(worst, float((mean - evaluated).norm() / evaluated.norm()))
        return worst

    assert mismatch(case) > 0.3
    assert mismatch(twin) < 0.15


def skips(case: FaultCase, twin: FaultCase) -> None:
    assert len(ran(case)) > 1
    assert len(ran(twin)) == 1


def counts_twice(case: FaultCase, twin: FaultCase) -> None:
    if case.name == "frozen_input":
        assert no_gradient(case, lambda n: n.startswith("units.0."))
        assert not no_gradient(twin, lambda n: n.startswith("units.0."))
        return

    def counted(one: FaultCase) -> set[int]:
        model = made(one)
        backward(called(one, model))
        return {int(m.num_batches_tracked) for m in model.modules() if isinstance(m, nn.BatchNorm2d)}

    assert 2 in counted(case)
    assert counted(twin) == {1}


def inverts(case: FaultCase, twin: FaultCase) -> None:
    def error(one: FaultCase) -> float:
        worst = 0.0
        for unit, x, _ in through(one):
            with seeded(3), torch.no_grad():
                worst = max(worst, rms(unit.inverse(unit(x)) - x) / rms(x))
        return worst

    assert error(case) > 1e-3
    assert error(twin) < 1e-5


def not_saved(case: FaultCase, twin: FaultCase) -> None:
    """Another model with the same state_dict gives another output."""

    def differs(one: FaultCase) -> bool:
        with torch.random.fork_rng(devices=[]):
            model, other = made(one), made(one)
            held = [v for m in other.modules() for v in vars(m).values() if isinstance(v, torch.Tensor)]
            for tensor in [*_trained(called(one, other)), *held]:
                tensor.data.add_(torch.randn(tensor.shape))
        other.load_state_dict(model.state_dict())
        return not torch.equal(called(one, model), called(one, other))

    if case.name != "anew":  # what is made at each call has no values to be saved
        assert differs(case)
    assert not differs(twin)
    counts = [len({id(t) for t in _trained(called(c, made(c)))}) for c in (case, twin)]
    assert counts[0] == counts[1]  # the same weights get a gradient


def _trained(output: torch.Tensor) -> list[torch.Tensor]:
    found, seen, pending = [], set(), [output.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [node.variable] if hasattr(node, "variable") else []
        pending += [earlier for earlier, _ in node.next_functions]
    return found


def without_effect(case: FaultCase, twin: FaultCase) -> None:
    def matters(one: FaultCase) -> bool:
        model = made(one)
        before = called(one, model)
        with torch.no_grad():
            for parameter in model.get_submodule(case.where).parameters():
                parameter.add_(1.0)
        return not torch.equal(before, called(one, model))

    assert not matters(case)
    assert matters(twin)


def stays(case: FaultCase, twin: FaultCase) -> None:
    """A step of the optimizer leaves parameters alone that have a gradient."""

    def left_alone(one: FaultCase) -> int:
        model = made(one)
        optimizer = one.optimizer(model)
        backward(called(one, model))
        before = {n: p.detach().clone() for n, p in model.named_parameters() if p.grad.abs().max() > 0}
        optimizer.step()
        return sum(torch.equal(before[n], p) for n, p in model.named_parameters() if n in before)

    assert left_alone(case)
    assert not left_alone(twin)


SHOWN: dict[str, Callable[[FaultCase, FaultCase], Any]] = {
    "shortcut-overwritten": overwritten,
    "self-add": differ,
    "double-add": doubles,
    "dead-op": dead,
    "dead-unit": idle,
    "broadcast-add": broadcast,
    "odd-size": odd,
    "post-norm-deep": collapses,
    "missing-final-norm": grown_at_head,
    "double-norm": idempotent,
    "relu-after-add-deep": truncates,
    "nonnegative-branch": only_grows,
    "scaled-shortcut": scales,
    "dropout-on-shortcut": drops_stream,
    "gate-unbounded": unbounded,
    "gate-shut": shut,
    "branch-scale": branch_grows,
    "init-scale-missing": ends_differ,
    "identical-init": copies,
    "zero-twice": no_gradient_at_all,
    "zero-init": starts_as_identity,
    "decay-on-gates": decays,
    "stream-growth": stream_grows,
    "rank-collapse": collapses,
    "gradient-vanishing": vanishes,
    "gradient-exploding": explodes,
    "scale-buffer": garbage,
    "fp16-headroom": near_the_limit,
    "bf16-swamping": loses_updates,
    "non-finite": not_finite,
    "train-eval-mismatch": modes_differ,
    "ddp-unsafe-skip": skips,
    "compile-unsafe-skip": skips,
    "checkpoint-side-effects": counts_twice,
    "reversible-inexact": inverts,
    "unregistered-weights": not_saved,
    "idle-block": without_effect,
    "not-optimized": stays,
}

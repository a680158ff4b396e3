"""From alterations of units to a plan of what to do at which torch function call."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError
from skipway.trace import ops
from skipway.units.find import join_factor
from skipway.units.intercept import Plan
from skipway.units.into_branch import NormReads
from skipway.units.operands import Change, GradientScaled, OperandEdit, Scaled, in_place, slot_of
from skipway.units.stages import Stage, stages
from skipway.units.streams import Held, made_x

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from skipway.trace.batch import Batch
    from skipway.trace.graph import Address
    from skipway.units.alteration import Alteration
    from skipway.units.describe import Described
    from skipway.units.find import Term
    from skipway.units.intercept import Edit, Look, Run
    from skipway.units.locate import Located

__all__ = ["Absent", "Planner"]

_HINT: Final = "skipway.inspect(model, batch), which shows the formula of each unit"


class Absent(SkipwayError):  # noqa: N818  # no fault where a pattern matched the unit
    """A unit has nothing of what is to be altered."""


class _ByX:
    """h(x) → x, divided by what the join itself multiplies its shortcut by."""

    def __init__(self, held: Held, factor: float) -> None:
        self.held, self.factor = held, factor

    def __call__(self, run: Run, value: torch.Tensor) -> torch.Tensor:
        x = self.held.get(run)
        self.held.drop(run)
        if x.shape != value.shape:
            raise SkipwayError(
                f"the shortcut of unit {self.held.unit!r} cannot be made identity: x is {tuple(x.shape)}, "
                f"h(x) is {tuple(value.shape)}",
                "a unit whose x has the shape of h(x)",
            )
        return x if self.factor == 1 else x / self.factor


class _Skip:
    """A call is left out: what its operations are applied to is its result."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def __call__(
        self,
        run: Run,
        _go_on: Callable[..., Any],
        func: Callable[..., Any],
        args: tuple[Any, ...],
        _kwargs: dict[str, Any],
    ) -> Any:
        value = self.held.get(run)
        self.held.drop(run)
        if not in_place(func):
            return value
        if args[0] is not value:
            with run.aside():
                args[0].copy_(value)
        return args[0]


class _Through:
    """A call is left out: one of its arguments is its result."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __call__(
        self,
        _run: Run,
        _go_on: Callable[..., Any],
        _func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return args[self.position] if self.position < len(args) else kwargs["input"]


class Planner:
    """Collects what alterations of units of one model ask for.

    Args:
        located: the model's units.
        batch: what they were found on, for norms that have to be looked up in a run of their own.
    """

    def __init__(self, located: Located, batch: Batch) -> None:
        self.located, self.batch = located, batch
        self.nodes = located.links.nodes
        self._owner = object()
        self._edits: defaultdict[Address, list[Edit]] = defaultdict(list)
        self._looks: defaultdict[Address, list[Look]] = defaultdict(list)
        self._starts: list[Callable[[Run, list[torch.Tensor]], None]] = []
        self._names: dict[Address, str] = {}
        self._looking: set[tuple[Address | None, Held]] = set()

    def plan(self) -> Plan:
        """The plan of all that was asked for."""
        return Plan(dict(self._edits), dict(self._looks), tuple(self._starts), dict(self._names))

    def alter(self, path: str, unit: Described, alteration: Alteration) -> list[Absent]:
        """Plan an alteration; returns what the unit lacks of it.

        Raises:
            SkipwayError: the alteration cannot be made at this unit.
        """
        if alteration.branch != 1.0 or alteration.is_neutral:
            self._branches(path, unit, Scaled(float(alteration.branch)))
        if alteration.branch_gradient is not None:
            self._branches(path, unit, GradientScaled(float(alteration.branch_gradient)))
        after = stages(unit, self.located.found)
        asked = (
            self._dropout(path, unit, alteration, after),
            self._shortcut(path, unit, alteration),
            self._after(path, unit, alteration, after),
        )
        return [absent for absent in asked if absent is not None]

    # ---- operands

    def _branches(self, path: str, unit: Described, change: Change) -> None:
        for tail in unit.tails:
            # In x + a·(F(x) − x) the branch stands in the difference.
            difference = next((i for i in tail.nodes if self.nodes[i].op == "sub"), None)
            if difference is None:
                self._operand(path, unit, tail.term, change, "the branch")
            else:
                term = type(tail.term)(tail.output, difference, 0)
                self._operand(path, unit, term, change, "the branch")

    def _operand(
        self, path: str, unit: Described, term: Term, change: Change, what: str, *, others: bool = False
    ) -> None:
        if any(step.detail == "interpolation" for step in unit.candidate.route.steps):
            raise _impossible(path, what, "it is part of an interpolation b + a·(x − b), where b is read twice")
        slot = slot_of(term, self.located, others=others)
        if isinstance(slot, str):
            raise _impossible(path, what, f"it is joined {slot}, where no torch function call can be altered")
        self._edit(slot.address, OperandEdit(slot, change, path), path)

    def _shortcut(self, path: str, unit: Described, alteration: Alteration) -> Absent | None:
        how, candidate = alteration.shortcut, unit.candidate
        if how == "keep":
            return None
        term = candidate.shortcut
        concatenated = candidate.merge == "concat"
        if how != "identity":
            if any(self.nodes[i].op == "sub" for tail in unit.tails for i in tail.nodes):
                raise _impossible(path, "the shortcut", "it is part of an interpolation x + a·(F(x) − x)")
            self._operand(path, unit, term, Scaled(float(how)), "the shortcut", others=concatenated)
            return None
        if not unit.form.shortcut:
            return Absent(f"the shortcut of unit {path!r} is the identity already", "a unit with another one", _HINT)
        add = self.nodes[term.add]
        x, h = self.nodes[candidate.x].shape, self.nodes[term.node].shape
        if x != h:
            raise SkipwayError(
                f"the shortcut of unit {path!r} cannot be made identity: x is {tuple(x)}, h(x) is {tuple(h)}",
                "a unit whose x has the shape of h(x)",
                "leave this unit out of the keys",
            )
        interpolates = add.attrs.get("fused") == "lerp" or any(
            self.nodes[i].op == "sub" for tail in unit.tails for i in tail.nodes
        )
        if interpolates:
            raise _impossible(path, "the shortcut", "shortcut and branch share one weight in an interpolation")
        factor = join_factor(add, term.position)
        if add.attrs.get("fused") == "stack-mean":
            factor = 1.0 / len(add.inputs)
        held = self._hold_x(path, unit, "the shortcut", "made identity")
        self._operand(path, unit, term, _ByX(held, factor), "the shortcut")
        return None

    # ---- what follows the join

    def _after(self, path: str, unit: Described, alteration: Alteration, after: list[Stage]) -> Absent | None:
        norms = [s for s in after if s.op is not None and s.op.kind == "norm"]
        skipped: list[Stage] = []
        if alteration.after == "skip":
            skipped = [s for s in after if s.op is not None and s.op.kind in ("norm", "activation")]
            if not skipped:
                return Absent(f"unit {path!r} has no activation and no norm after the merge", "a unit with one", _HINT)
        if alteration.norm == "into_branch":
            if not norms:
                return Absent(f"unit {path!r} has no norm after the merge", "a post-norm unit", _HINT)
            self._into_branch(path, unit, norms)
            skipped += [s for s in norms if s not in skipped]
        for stage in skipped:
            self._skip(path, stage)
        return None

    def _skip(self, path: str, stage: Stage) -> None:
        what = f"the {stage.op.kind if stage.op else 'view'} after the merge"
        start, end = self.located.made(stage.start), self.located.made(stage.end)
        if start is None or end is None or end.address is None or end.part or start.address == end.address:
            raise _impossible(path, what, f"it runs {self._inside(stage.end)}")
        if end.address.function.startswith("native_"):
            raise _impossible(path, what, f"{end.address.function}() gives more than its result")
        held = self._hold(Held(self._owner, stage.start, start.part, path, "the sum"), start.address)
        self._edit(end.address, _Skip(held), path)

    def _dropout(self, path: str, unit: Described, alteration: Alteration, after: list[Stage]) -> Absent | None:
        if alteration.dropout != "off":
            return None
        on_sum = [s for s in after if s.op is not None and s.op.kind in ("dropout", "drop_path")]
        on_shortcut = [s for s in unit.candidate.route.steps if s.kind == "dropout"]
        if not on_sum and not on_shortcut:
            mode = "train" if self.located.model.training else "eval"
            hint = _HINT if mode == "train" else "model.train() before what_if, so that dropout is seen"
            return Absent(
                f"unit {path!r} has no dropout on its shortcut or after its merge (found in {mode} mode)",
                "a unit with one",
                hint,
            )
        for step in on_shortcut:
            node, made = self.nodes[step.node], self.located.made(step.node)
            if made is None or made.address is None or made.part:
                raise _impossible(path, "the dropout on the shortcut", f"it runs {self._inside(step.node)}")
            self._check_rescaled(path, step.node, "on the shortcut")
            position = node.inputs.index(step.source) if node.op in ops.MULTIPLY else 0
            if position and made.address.function.endswith("_"):
                raise _impossible(path, "the dropout on the shortcut", "it writes into its own mask")
            self._edit(made.address, _Through(position), path)
        for stage in on_sum:
            self._check_rescaled(path, stage.end, "after the merge")
            self._skip(path, stage)
        return None

    def _check_rescaled(self, path: str, node: int, where: str) -> None:
        at = self.nodes[node]
        if at.op not in ops.DROPOUT and self.located.found.routes.dropped(at) is None:
            raise _impossible(
                path, f"the dropout {where}", "it is written by hand, and how its mask is rescaled does not show"
            )

    # ---- the norm, moved

    def _into_branch(self, path: str, unit: Described, norms: list[Stage]) -> None:
        if len(norms) > 1 or unit.candidate.pair or unit.candidate.merge != "add":
            why = f"{len(norms)} norms follow the merge" if len(norms) > 1 else "it is no single additive stream"
            raise _impossible(path, "the norm", why)
        held = self._hold_x(path, unit, "the norm", "moved into the branch")
        reads = NormReads(path, unit, norms[0], held, self.located, self.batch)
        for address in reads.addresses:
            self._edit(address, reads, path)
        join = self.located.made(unit.candidate.join)
        if join is not None and join.address is not None:
            self._looks[join.address].append(reads.forget)

    # ---- common to all

    def _hold_x(self, path: str, unit: Described, what: str, done: str) -> Held:
        found = made_x(unit, self.located)
        if found is None:
            raise SkipwayError(
                f"{what} of unit {path!r} cannot be {done}: x is made {self._inside(unit.candidate.x)}",
                "a unit whose x is the result of a torch function",
            )
        node, made = found
        return self._hold(Held(self._owner, node, made.part, path, what + "'s x"), made.address)

    def _hold(self, held: Held, address: Address | None) -> Held:
        if address is None:
            self._starts.append(held.start)
        else:
            self._looks[address].append(held)
        return held

    def _edit(self, address: Address, edit: Edit, path: str) -> None:
        self._edits[address].append(edit)
        self._names.setdefault(address, f"unit {path!r}")

    def _inside(self, node: int) -> str:
        caller = self.nodes[node].caller
        return f"inside {caller[1]}()" if caller else "inside scripted code or a custom autograd function"


def _impossible(path: str, what: str, why: str) -> SkipwayError:
    return SkipwayError(f"{what} of unit {path!r} cannot be altered: {why}", "a unit that is spelled otherwise", _HINT)

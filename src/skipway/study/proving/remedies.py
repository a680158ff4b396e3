"""What mends what: for the findings of an inspection, fixes that can be tried on a copy of the model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from skipway.errors import SkipwayError
from skipway.study.proving.reinitialise import reset_branches, scale_branch_ends, scale_values, zero_branch_ends
from skipway.units.alteration import Alteration
from skipway.units.what_if import plan_alterations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from skipway.diagnostics.inspection import Inspection
    from skipway.trace.batch import Batch
    from skipway.units.locate import Located
    from skipway.units.unit import Unit

__all__ = ["Remedy", "possible", "provable_rules", "remedies_for"]


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A fix to try.

    Args:
        name: the fix in a few words.
        changes: what is altered while the copy trains, by unit path (see `skipway.what_if`).
        prepare: other initial weights for the copy, given its located units.
        partial: whether units that cannot be altered so are left as they are: see `possible`.
    """

    name: str
    changes: Mapping[str, Alteration] = field(default_factory=dict)
    prepare: Callable[[Located], object] | None = None
    partial: bool = False


def remedies_for(rule: str, inspection: Inspection) -> list[Remedy]:
    """The fixes that can be tried for a finding of `rule`; none where the fix is a change of the code alone."""
    find = _REMEDIES.get(rule)
    return [] if find is None else find(_stream(inspection))


def possible(remedy: Remedy, located: Located, batch: Batch) -> Remedy:
    """A fix without the units that cannot be altered so.

    Args:
        remedy: the fix.
        located: the model's units, proved.
        batch: what they were found on.

    Raises:
        SkipwayError: none of them can be.
    """
    refused = {path: _refusal(path, how, located, batch) for path, how in remedy.changes.items()}
    changes = {path: how for path, how in remedy.changes.items() if refused[path] is None}
    first = next(iter(refused.values()), None)
    if first is not None and not changes:
        given = f"{remedy.name} at none of {len(refused)} units: {first.given}"
        raise SkipwayError(given, first.expected, "the changed model as fix=") from first
    return replace(remedy, changes=changes)


def _refusal(path: str, how: Alteration, located: Located, batch: Batch) -> SkipwayError | None:
    try:
        plan_alterations(located, {path: how}, batch)
    except SkipwayError as error:
        return error
    return None


def provable_rules() -> list[str]:
    """Rules whose findings have a fix that can be tried without a change of the code."""
    return list(_REMEDIES)


def _stream(inspection: Inspection) -> list[Unit]:
    return [u for u in inspection.units if u.level == 0 and u.kind == "unit"]


def _post_norm(stream: list[Unit]) -> list[Remedy]:
    units = _having_after(stream, "norm")
    if not units:
        return []
    alpha, beta = len(units) ** 0.25, (4 * len(units)) ** -0.25
    moved = {path: Alteration(norm="into_branch") for path in units}
    return [
        Remedy(
            name="pre-norm, branch ends at zero", changes=moved, prepare=lambda at: zero_branch_ends(at, units)
        ),
        Remedy(
            name=f"DeepNorm constants (α {alpha:.3g}, β {beta:.3g})",
            changes={path: Alteration(shortcut=alpha) for path in units},
            prepare=lambda at: scale_values(at, units, beta),
        ),
        Remedy(name="pre-norm", changes=moved),
    ]  # fmt: skip


def _identity_shortcut(stream: list[Unit]) -> list[Remedy]:
    """For whatever stands on shortcuts; where x has another shape than h(x) is known of the recorded units only."""
    units = [u.path for u in stream if u.form.shortcut]
    return [replace(r, partial=True) for r in _altered("identity shortcuts", units, Alteration(shortcut="identity"))]


def _no_dropout(stream: list[Unit]) -> list[Remedy]:
    kinds = ("dropout", "drop_path")
    units = [u.path for u in stream if any(op.kind in kinds for op in (*u.form.shortcut, *u.form.after))]
    return _altered("no dropout on the shortcut", units, Alteration(dropout="off"))


def _no_activation(stream: list[Unit]) -> list[Remedy]:
    units = _having_after(stream, "activation")
    return _altered("no activation behind the sum", units, Alteration(after="skip"))


def _norm_inside(stream: list[Unit]) -> list[Remedy]:
    units = _having_after(stream, "norm")
    return _altered("the norm at the start of the branch", units, Alteration(norm="into_branch"))


def _having_after(stream: list[Unit], kind: str) -> list[str]:
    """Paths of the units with an operation of a kind behind the sum."""
    return [u.path for u in stream if any(op.kind == kind for op in u.form.after)]


def _altered(name: str, units: list[str], how: Alteration) -> list[Remedy]:
    """A fix that alters units alike; none where there are no units for it."""
    return [Remedy(name=name, changes=dict.fromkeys(units, how))] if units else []


def _smaller_branches(stream: list[Unit]) -> list[Remedy]:
    units = [u.path for u in stream]
    if not units:
        return []
    return [
        Remedy(name="branches × 0.1", changes={path: Alteration(branch=0.1) for path in units}),
        Remedy(name="branch ends at zero", prepare=lambda at: zero_branch_ends(at, units)),
    ]


def _scaled_ends(stream: list[Unit]) -> list[Remedy]:
    units = [u.path for u in stream]
    factor = len(units) ** -0.5 if units else 1.0
    name = f"branch ends × 1/√{len(units)}"
    return [Remedy(name=name, prepare=lambda at: scale_branch_ends(at, units, factor))] if units else []


def _drawn_anew(stream: list[Unit]) -> list[Remedy]:
    units = [u.path for u in stream]
    return [Remedy(name="branches drawn anew", prepare=lambda at: reset_branches(at, units, seed=1))] if units else []


_REMEDIES: Final[dict[str, Callable[[list[Unit]], list[Remedy]]]] = {
    "post-norm-deep": _post_norm,
    "rank-collapse": _post_norm,
    "scaled-shortcut": _identity_shortcut,
    "projected-shortcut": _identity_shortcut,
    "shortcut-after-norm": _identity_shortcut,
    "gate-shut": _identity_shortcut,
    "gate-unbounded": _identity_shortcut,
    "dropout-on-shortcut": _no_dropout,
    "relu-after-add-deep": _no_activation,
    "norm-after-add": _norm_inside,
    "branch-scale": _smaller_branches,
    "init-scale-missing": _scaled_ends,
    "identical-init": _drawn_anew,
    "zero-twice": _drawn_anew,
}

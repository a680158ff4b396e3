"""What may be altered at a residual unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from skipway.errors import SkipwayError

__all__ = ["Alteration"]

_CHOICES: Final = {"after": ("keep", "skip"), "norm": ("keep", "into_branch"), "dropout": ("keep", "off")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """What becomes of a unit ``x' = f( h(x) + s·F(x) )`` while `skipway.what_if` is open.

    Several fields may be set at once. With none set the unit runs through the interception unchanged (its branch times
    1.0), bit for bit as without it.

    Args:
        branch: β in ``x' = f( h(x) + β·s·F(x) )``: scales what the branch gives to the merge (all branches, if
            several run in parallel). 0 deletes the branch; its parameters then get gradients of zero, not None.
        branch_gradient: γ: the forward pass stays bit-identical, and the gradient that the merge sends into the branch
            is multiplied by γ. 0 cuts the branch out of the backward pass.
        shortcut: ``"identity"``: ``x' = f( x + s·F(x) )``, whatever h was, where x has the shape of h(x) (h still runs,
            unused: its norms count their batches, its dropout draws its numbers); a number α:
            ``x' = f( α·h(x) + s·F(x) )`` (DeepNorm's α, arXiv:2203.00555, on post-norm units).
        after: ``"skip"``: ``x' = h(x) + s·F(x)``: activations and norms after the merge are left out.
        norm: ``"into_branch"``: a post-norm unit ``x' = N( h(x) + s·F(x) )`` becomes pre-norm,
            ``x' = h(x) + s·F(N(x))``, with the same norm and its parameters: whatever the branch reads of x it reads
            of N(x).
        dropout: ``"off"``: dropout and drop-path on the shortcut or on the sum are left out; those in the branch stay.

    Raises:
        SkipwayError: a field holds what it cannot hold.
    """

    branch: float = 1.0
    branch_gradient: float | None = None
    shortcut: float | Literal["keep", "identity"] = "keep"
    after: Literal["keep", "skip"] = "keep"
    norm: Literal["keep", "into_branch"] = "keep"
    dropout: Literal["keep", "off"] = "keep"

    def __post_init__(self) -> None:
        _check_number("branch", self.branch, "a finite number: what the branch is multiplied by, 1.0 to keep it")
        if self.branch_gradient is not None:
            _check_number("branch_gradient", self.branch_gradient, "a finite number, or None to keep the gradient")
        if self.shortcut not in ("keep", "identity"):
            _check_number(
                "shortcut", self.shortcut, "'keep', 'identity' or a finite number: what h(x) is multiplied by"
            )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise SkipwayError(f"Alteration({name}={value!r})", " or ".join(repr(c) for c in choices))

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is altered."""
        return self == Alteration()


def _check_number(name: str, value: object, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SkipwayError(f"Alteration({name}={value!r})", expected)

"""What is reported of the stretch of stream between two units: what the stream passes there. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.form import Op, read_term, term
from skipway.units.reading import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Passage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Operations that stand on the stream between a unit and the one that it follows, outside of both.

    Args:
        path: module path of the call that holds all of them and nothing of a unit, ``@k`` for the k-th call of a
            shared module; where there is none, the first and the last of several (``blocks.5 … blocks.6.norm``) or the
            module in whose forward they stand.
        ops: the operations in order of execution.
        closed: nothing but the stream enters; False where it is joined by something else on the way.
    """

    path: str
    ops: tuple[Op, ...]
    closed: bool = True

    def equation(self) -> str:
        """What the unit reads, of what the unit before gave: ``Linear·LN(x)``, ``Linear(x, …)`` if not closed."""
        text = term(self.ops)
        return text if self.closed else f"{text.removesuffix('(x)').removesuffix('x')}(x, …)"

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return {"path": self.path, "equation": term(self.ops), "closed": self.closed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Passage:
        """The record that `to_dict` wrote.

        Raises:
            SkipwayError: a field is missing or unknown, or the equation is none.
        """
        checked(data, ("path", "equation", "closed"), "passage")
        ops = read_term(data["equation"], "after")
        if not ops:
            raise SkipwayError(f"passage {data['equation']!r}", "at least one operation: 'LN(x)'")
        return cls(path=data["path"], ops=ops, closed=data["closed"])

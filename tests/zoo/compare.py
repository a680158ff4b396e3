"""Say in a few letters what stands on a unit's shortcut and behind its merge, and compare histograms of that.

The notation is that of an equation, without strides, windows, probabilities and groups: ``BN·Conv1x1`` is a 1x1
convolution and then batch norm, ``x`` is identity. ``BN·Conv1x1*3 x*5`` is a histogram; `` | `` separates histograms of
which any is right (one function may be spelled in two ways).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from skipway.form import Op, UnitForm

__all__ = ["after_of", "agrees", "histogram", "shortcut_of"]


def _letters(op: Op) -> str:
    if op.kind in ("dropout", "drop_path"):
        return {"dropout": "Dropout", "drop_path": "DropPath"}[op.kind]
    if op.kind == "slice":
        return "Slice"
    if op.kind == "pool":
        return "MaxPool" if str(op.detail).startswith(("max", "amax")) else "AvgPool"
    if op.kind == "pad":
        return "ZeroPad"
    if op.kind == "projection":
        window = re.search(r"\d+x\d+|linear", str(op.detail))
        name = window[0] if window else str(op.detail)
        return "Linear" if name == "linear" else f"Conv{name}"
    return str(op)


def _chain(ops: Iterable[Op]) -> str:
    return "·".join(_letters(op) for op in reversed(tuple(ops))) or "x"


def shortcut_of(form: UnitForm) -> str:
    """h of a unit; a merge that is not an addition is named before it, ``lerp`` alone if nothing else is on h."""
    form = form.canonical()
    chain = _chain(form.shortcut)
    if form.merge == "add":
        return chain
    return form.merge if chain == "x" else f"{form.merge}:{chain}"


def after_of(form: UnitForm) -> str:
    """f of a unit."""
    return _chain(form.canonical().after)


def histogram(names: Iterable[str]) -> str:
    """Count names: most frequent first, ties by name."""
    return " ".join(f"{name}*{n}" for name, n in sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def agrees(found: Iterable[str], expected: str) -> bool:
    """Whether the counted names are one of the expected histograms."""
    counts = Counter(found)
    return any(counts == _parsed(alternative) for alternative in expected.split(" | "))


def _parsed(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for item in text.split():
        name, _, number = item.rpartition("*")
        counts[name] += int(number)
    return counts

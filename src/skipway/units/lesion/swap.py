"""Exchange the weights of two units for a while."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from skipway.trace.attributes import named_modules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from skipway.units.describe import Described
    from skipway.units.locate import Located

__all__ = ["Content", "alike", "content_of_block", "content_of_unit", "exchanged", "kendall"]

Content: TypeAlias = "tuple[nn.Module, ...]"
"""The modules that hold a unit's weights, in order of use; each counts without its submodules."""
_TABLES: Final = ("_parameters", "_buffers")


def content_of_unit(unit: Described, located: Located) -> Content:
    """The modules whose parameters a unit reads: in its branches, on its shortcut and behind its merge."""
    nodes, names = located.graph.nodes, located.graph.parameter_names
    candidate = unit.candidate
    inside = sorted({*candidate.region, *unit.shortcut_nodes, *unit.after_nodes, *candidate.adds, candidate.join})
    owners: dict[str, None] = {}
    for i in inside:
        path = located.graph.calls[nodes[i].call].path
        if path and _only_statistics(located.model, path):
            owners.setdefault(path)
        for source in nodes[i].inputs:
            bits = 0 if nodes[source].data else nodes[source].params
            for k in (k for k in range(len(names)) if bits >> k & 1):
                owners.setdefault(names[k].rpartition(".")[0])
    return tuple(located.model.get_submodule(path) for path in owners)


def _only_statistics(model: nn.Module, path: str) -> bool:
    """Whether a layer has buffers and nothing else, as a norm without weights that averages over batches."""
    module = dict(named_modules(model)).get(path)
    return (
        module is not None
        and any(b is not None for b in vars(module)["_buffers"].values())
        and not any(True for _ in (*module.parameters(), *module.children()))
    )


def content_of_block(block: nn.Module) -> Content:
    """All modules of a block."""
    return tuple(block.modules())


def alike(one: Content, other: Content) -> bool:
    """Whether two units are of one structure: modules of the same classes, weights of the same shapes, none shared."""
    return (
        bool(one)
        and len(one) == len(other)
        and not {id(m) for m in one} & {id(m) for m in other}
        and all(type(a) is type(b) and _shapes(a) == _shapes(b) for a, b in zip(one, other, strict=True))
    )


def _shapes(module: nn.Module) -> list[tuple[str, tuple[int, ...] | None]]:
    members = [member for table in _TABLES for member in vars(module)[table].items()]
    return [(name, None if value is None else tuple(value.shape)) for name, value in members]


@contextmanager
def exchanged(pairs: Sequence[tuple[Content, Content]]) -> Iterator[None]:
    """Within it each pair, one after the other, has exchanged its parameters and buffers; the tensors stay the same."""
    done: list[tuple[Content, Content]] = []
    try:
        for one, other in pairs:
            _exchange(one, other)
            done.append((one, other))
        yield
    finally:
        for one, other in reversed(done):
            _exchange(one, other)


def _exchange(one: Content, other: Content) -> None:
    for a, b in zip(one, other, strict=True):
        for table in _TABLES:
            first, second = vars(a)[table], vars(b)[table]
            held = dict(first)
            first.update(second)
            second.update(held)


def kendall(order: Sequence[int]) -> float:
    """Kendall's τ between ``0 … L−1`` and another order of the same numbers: 1 for the same, −1 for the reverse."""
    count = len(order)
    inversions = sum(order[i] > order[j] for i in range(count) for j in range(i + 1, count))
    return 1 - 4 * inversions / (count * (count - 1))

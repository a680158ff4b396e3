"""What rules about single adds have in common: plain copies, the module call that holds a join, plain sums."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.trace import ops
from skipway.trace.addressed import AddressedMode
from skipway.trace.modules import ModuleStack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from skipway.diagnostics.rules._rule import Evidence
    from skipway.trace.graph import Address, Graph, Node
    from skipway.units.find import Candidate
    from skipway.units.links import Links

__all__ = ["apart", "called", "copy_of", "holder", "is_sum", "path_of", "sums", "times", "weights_between"]

_COPIES: Final = frozenset({"clone", "detach", "alias", "contiguous", "to_copy", "lift_fresh", "copy", "view",
                            "reshape", "unsafe_view", "reshape_alias"}) | ops.DROPOUT  # fmt: skip


def copy_of(i: int, links: Links, *, dropped: bool = False) -> int:
    """The node whose numbers a node holds, in the same shape; through dropout too, if asked."""
    while True:
        node = links.nodes[i]
        data = links.data_inputs(node)
        if node.op not in _COPIES or len(data) != 1 or links.nodes[data[0]].shape != node.shape:
            return i
        if node.op in ops.DROPOUT and not dropped:
            return i
        i = data[0]


def is_sum(node: Node, links: Links) -> bool:
    """Whether a node is a live sum, unscaled, of two floating values that depend on the input."""
    return (
        node.op == "add"
        and not node.attrs.get("fused")
        and node.attrs.get("alpha", 1) == 1
        and links.alive[node.id]
        and len(node.inputs) == 2
        and len(links.data_inputs(node)) == 2
    )


def sums(evidence: Evidence) -> list[Node]:
    """All such sums, in order of execution."""
    links = evidence.found.links
    return evidence.once("sums", lambda: [node for node in links.nodes if is_sum(node, links)])


def holder(unit: Candidate, links: Links) -> int:
    """The smallest module call around a unit's join and the ends of its branches."""
    graph = links.graph
    around = list(graph.chain(links.nodes[unit.join].call))
    for term in unit.branches:
        inside = set(graph.chain(links.nodes[term.node].call))
        around = [call for call in around if call in inside]
    return around[0]


def weights_between(start: int, end: int, links: Links) -> int:
    """How many weighted layers (convolutions, products, attention) lie between two nodes."""
    return sum(links.nodes[i].op in ops.WORKING for i in links.region(start, end))


def path_of(node: int, evidence: Evidence) -> str:
    """Module path in which an operation ran, empty for the model itself."""
    return evidence.graph.calls[evidence.graph.nodes[node].call].path


def called(path: str) -> str:
    """A module path as it stands in a message."""
    return path or "the model's own forward"


def times(count: int) -> str:
    """How often a fault occurs, behind its message."""
    return f" \N{MULTIPLICATION SIGN}{count}" if count > 1 else ""


@contextmanager
def apart(model: nn.Module, graph: Graph, nodes: Sequence[int]) -> Iterator[None]:
    """While it is open, operations that were recorded as in-place write to a copy, which is their result."""
    plan: dict[Address, bool] = {}
    for i in nodes:
        address = graph.address(graph.nodes[i])
        if address is not None:
            plan[address] = True
    with ModuleStack(model) as stack, _Apart(plan, stack):
        yield


class _Apart(AddressedMode[bool]):
    def at(self, planned: bool, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG002  # the base class's
        if isinstance(kwargs.get("out"), torch.Tensor):
            return func(*args, **{**kwargs, "out": kwargs["out"].clone()})
        if args and isinstance(args[0], torch.Tensor):
            return func(args[0].clone(), *args[1:], **kwargs)
        return func(*args, **{k: v.clone() if k in ("input", "self") else v for k, v in kwargs.items()})

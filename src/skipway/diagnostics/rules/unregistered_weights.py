"""Rule ``unregistered-weights``: weights that take part and that the model does not hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.trace.batch import output_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.diagnostics.finding import Finding, Severity
    from skipway.diagnostics.lab import Lab
    from skipway.trace.graph import ModuleCall

__all__ = ["unregistered_weights"]

_NESTED: Final = 3  # containers in containers that are looked into
_OWN: Final = frozenset(vars(nn.Module()))  # PyTorch's tables, which it looks into itself
_ANEW: Final = "build the layer once, in __init__, and call it in forward"
_PROGRAM: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = BLOCKS
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


model = Net()
batch = torch.randn(4, 16)
"""


@rule(
    "unregistered-weights",
    severity="error",
    summary="Weights take part and train, and the model does not hold them: no optimizer gets them.",
    explanation="The output depends on tensors that need a gradient and are not among model.parameters(): blocks in a"
    " Python list, tuple or dict, a tensor that is no nn.Parameter (or is none any more, after nn.Parameter(…).to(…)),"
    " a layer that forward builds anew each time. Nothing is raised and the gradient is there, but the optimizer never"
    " sees these weights, state_dict does not save them, .to(device) and .eval() pass them by. A run with gradients"
    " shows that they reach the output: what is frozen, or runs under no_grad (a teacher), is no fault. A list of one,"
    " and weights held outside, which may be another model's (a tied embedding), get a warning.",
    fix="hold them where PyTorch looks: blocks in an nn.ModuleList, tensors as nn.Parameter",
    source="PyTorch's documentation of nn.ModuleList and nn.Parameter",
    faulty=_PROGRAM.replace("BLOCKS", "[Block() for _ in range(4)]"),
    healthy=_PROGRAM.replace("BLOCKS", "nn.ModuleList(Block() for _ in range(4))"),
)
def unregistered_weights(evidence: Evidence) -> Iterator[Finding]:
    """Fire for tensors that train and are no parameters of the model."""
    readers = _readers(evidence)
    if not readers:
        return
    lab = evidence.lab
    where = readers[0].path.partition("?")[0]
    if lab is None or evidence.trace.error is not None:
        if count := sum(n.op == "param" and not n.params for n in evidence.graph.nodes):
            yield _finding(_Place(where), (), count)
        return
    loose = _loose(evidence, lab)
    held = _held(evidence) if loose else {}
    by_place: defaultdict[_Place | None, list[torch.Tensor]] = defaultdict(list)
    for tensor in loose:
        by_place[held.get(id(tensor))].append(tensor)
    for place, tensors in by_place.items():
        yield _finding(
            place or _nowhere(where, readers, made_anew=_are_made_anew(tensors, evidence, lab)), tensors, len(tensors)
        )


@dataclass(frozen=True)
class _Place:
    """Where weights lie.

    Args:
        path: the module that holds, or reads, them.
        words: what holds them, in words that go on with the number of weights.
        fix: the line that mends it; None for the rule's own.
        severity: of what was measured to train.
    """

    path: str
    words: str = ""
    fix: str | None = None
    severity: Severity = "warning"


def _nowhere(path: str, readers: Sequence[ModuleCall], *, made_anew: bool) -> _Place:
    """The place of weights that no attribute holds."""
    if not made_anew:
        return _Place(path, "held outside of the model, ")
    layer = next((call.cls for call in readers if "?" in call.path), "a layer")
    return _Place(path, f"forward builds {layer} anew in every call: ", _ANEW, "error")


def _finding(place: _Place, tensors: Iterable[torch.Tensor], count: int) -> Finding:
    values = sum(t.numel() for t in tensors)
    one = count == 1
    weights = f"{count} {'tensor' if one else 'tensors'}{f' of {values:,} weights' if values else ''}"
    return RULES["unregistered-weights"].finding(
        place.path or "<root>",
        f"{place.words}{weights} {'takes' if one else 'take'} part in the output and {'is' if one else 'are'} not among"
        " model.parameters()",
        {"tensors": count, **({"weights": values} if values else {})},
        severity=place.severity,
        fix=place.fix,
    )


def _readers(evidence: Evidence) -> list[ModuleCall]:
    """The module calls that read, on the way to an output, what trains and may be no parameter of the model.

    That is a tensor that was there before the run and is not one of them, or, in a module that the model does not hold
    (its weights may have been made in the run), the operand of a weighted operation or a norm.
    """
    links = evidence.found.links
    calls, nodes = links.graph.calls, links.nodes
    loose = {n.id for n in nodes if n.op == "param" and not n.params}
    outside = {call.id for call in calls if "?" in call.path}
    if not loose and not outside:
        return []
    works = ops.WORKING | ops.NORM
    found = dict.fromkeys(
        n.call
        for n in nodes
        if links.alive[n.id] and (not loose.isdisjoint(n.inputs) or (n.call in outside and n.op in works))
    )
    return [calls[call] for call in found]


def _loose(evidence: Evidence, lab: Lab) -> list[torch.Tensor]:
    """The tensors that a gradient reaches and that are no parameters of the model, also not since the run."""

    def others(output: Any) -> list[torch.Tensor]:
        held = {id(p) for p in evidence.model.parameters()}
        return [leaf for leaf in _leaves(output_tensors(output)) if id(leaf) not in held]

    try:
        return lab.with_gradients("unregistered-weights", others)
    except Exception:  # noqa: BLE001  # a model that cannot be run with gradients trains nothing
        return []


def _leaves(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that gradients of `tensors` end in, in the order of a walk back."""
    found: dict[int, torch.Tensor] = {}
    seen = set[Any]()
    pending = [t.grad_fn for t in tensors if t.grad_fn is not None]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # of an AccumulateGrad
        if isinstance(leaf, torch.Tensor):
            found.setdefault(id(leaf), leaf)
        pending += [earlier for earlier, _ in node.next_functions if earlier is not None]
    return list(found.values())


def _are_made_anew(tensors: list[torch.Tensor], evidence: Evidence, lab: Lab) -> bool:
    """Whether another run has others in their place; `tensors` are alive, so that no address is used twice."""
    known = set(map(id, tensors))
    return known.isdisjoint(map(id, _loose(evidence, lab)))


def _held(evidence: Evidence) -> dict[int, _Place]:
    """Where each tensor lies that attributes of modules hold and PyTorch does not look for there."""
    found: dict[int, _Place] = {}
    for path, module in evidence.modules:
        for name, value in vars(module).items():
            if name in _OWN:
                continue
            things = list(_things(value, _NESTED))
            place = _described(path, name, value, things) if things else None
            for thing in things:
                for tensor in thing.parameters() if isinstance(thing, nn.Module) else [thing]:
                    for leaf in [tensor] if tensor.is_leaf else _leaves([tensor]):
                        if place is not None:
                            found.setdefault(id(leaf), place)
    return found


def _things(value: Any, depth: int) -> Iterator[nn.Module | torch.Tensor]:
    """The modules, and the tensors that train, in an attribute and the containers in it."""
    if isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and value.requires_grad):
        yield value
    elif depth and isinstance(value, (list, tuple, set, frozenset, Mapping)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _things(inner, depth - 1)


def _described(path: str, name: str, value: Any, things: list[nn.Module | torch.Tensor]) -> _Place:
    """The place that an attribute is."""
    if isinstance(value, torch.Tensor):
        words = f"{name} needs a gradient and is no nn.Parameter{'' if value.is_leaf else ' any more'}: "
        inside = "" if value.is_leaf else "; what is done to it (.to, a factor) goes into the brackets, or into forward"
        return _Place(path, words, f"self.{name} = nn.Parameter(…){inside}", "error")
    if isinstance(value, nn.Module):
        return _Place(path, f"{name} was set past nn.Module.__setattr__: ", f"self.{name} = …, as modules are set")
    classes = Counter(type(thing).__name__ for thing in things)
    kind = next(iter(classes)) if len(classes) == 1 else "modules"
    holder = f"nn.{'Module' if isinstance(things[0], nn.Module) else 'Parameter'}"
    holder += "Dict" if isinstance(value, Mapping) else "List"
    words = f"{name} is a plain {type(value).__name__} of {len(things)} {kind}: "
    return _Place(path, words, f"self.{name} = {holder}(…)", "error" if len(things) > 1 else "warning")

"""Rule ``train-eval-mismatch``: branches that are dropped by chance and not made up for."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.look import Want
from skipway.diagnostics.rules._chance import draws_for_python
from skipway.diagnostics.rules._last_steps import last_steps
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops
from skipway.trace.graph import PARAM, RAND
from skipway.units.describe import describe
from skipway.units.find import find, join_factor
from skipway.units.naming import paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from skipway.diagnostics.finding import Finding
    from skipway.diagnostics.lab import Lab, Mode
    from skipway.diagnostics.look import Reduce
    from skipway.trace.graph import Graph, Node
    from skipway.units.describe import Described
    from skipway.units.find import Found

__all__ = ["train_eval_mismatch"]

_ID: Final = "train-eval-mismatch"
_DRAWS: Final = 24
_DRAWS_IN_EVAL: Final = 3
_TRACES: Final = 6  # a unit that is left out of the first one is in one of these
_MISS: Final = 0.03
_CERTAIN: Final = 5.0  # standard errors: many units are judged, each by few draws


@dataclass(slots=True)
class _End:
    """What is between a branch's last weights and the place where it is added, in one mode.

    Args:
        graph, join: where it is added.
        factor: the product of all constants on the way.
        masks: random factors on the way: the node that multiplies, and the position of the factor there.
        entries: how many entries of the masks are drawn independently of each other.
        dropout: where what is kept is made up for by the probability itself: PyTorch's own dropout, and masks drawn
            with a probability that they are divided by.
    """

    graph: Graph
    join: int
    factor: float = 1.0
    masks: list[tuple[int, int]] = field(default_factory=list)
    entries: int = 1
    dropout: list[int] = field(default_factory=list)

    @property
    def random(self) -> bool:
        return bool(self.masks or self.dropout)

    def wants(self) -> Iterator[Want]:
        yield Want(node=self.join, name="ran", reduce=lambda _result, _operands: 1.0)
        for node, position in self.masks:
            yield Want(node=node, name="mask", reduce=_mean(position))
            yield Want(node=node, name="most", reduce=_most(position))

    def share(self, seen: dict[tuple[int, str], float], name: str) -> float:
        """How much of the branch came through in one run: its constants times the means of its masks."""
        return self.factor * math.prod(seen.get((node, name), 1.0) for node, _ in self.masks)


@rule(
    _ID,
    severity="error",
    summary="On average a branch adds another amount in training than in evaluation.",
    explanation="A branch that is kept with probability p has to be divided by p in training (or multiplied by it in"
    " evaluation), and nothing may be dropped in evaluation. Measured between the last weights of each branch and the"
    f" place where it is added: constants, and the means of random masks over {_DRAWS} draws, in both modes, so that"
    " neither BatchNorm nor what lies before has a part in it. Asked only of models whose branches end in something"
    " random or are left out by Python's flow. A whole layer of several units that is left out (LayerDrop, arXiv"
    " 1909.11556) is meant so.",
    fix="divide what is kept by the probability of keeping it, in training only: keep / p, or use"
    " torchvision.ops.StochasticDepth",
    source="mosaicml/composer #372; huggingface/pytorch-image-models #887, #2118; Huang et al. 2016, arXiv 1603.09382",
    faulty=program(
        TOKENS, depth=4,
        unit="keep = (torch.rand(len(x), 1, 1) < 0.7).to(x.dtype) if self.training else 1.0;"
        "return x + keep * self.branch(self.norm(x))",
    ),
    healthy=program(
        TOKENS, depth=4,
        unit="keep = (torch.rand(len(x), 1, 1) < 0.7).to(x.dtype) / 0.7 if self.training else 1.0;"
        "return x + keep * self.branch(self.norm(x))",
    ),
    needs=("runs",),
)  # fmt: skip
def train_eval_mismatch(evidence: Evidence) -> Iterator[Finding]:
    """Fire where what comes of a branch in train mode is on average not what comes of it in eval mode."""
    if evidence.lab is None or evidence.trace.error is not None or not _suspicious(evidence):
        return
    try:
        finding = _judged(evidence)
    except Exception:  # noqa: BLE001  # a model that fails in one of the modes has no mean to compare
        return
    if finding is not None:
        yield finding


def _suspicious(evidence: Evidence) -> bool:
    """Whether a branch ends in something random that does not make up for it at once, or chance decides what runs."""
    graph, own = evidence.graph, ("torch.nn.modules.dropout", "torchvision.ops.stochastic_depth")
    guarded = {name for name, m in evidence.model.named_modules() if type(m).__module__ in own}
    ends = [_end(unit, evidence.found) for unit in evidence.described]
    open_ = {graph.calls[graph.nodes[i].call].path for end in ends for i in end.dropout} - guarded
    random = bool(open_) or any(end.masks for end in ends)
    return random or bool(evidence.trace.drawn_from - {"torch"}) or draws_for_python(evidence)


def _judged(evidence: Evidence) -> Finding | None:
    lab = evidence.lab
    assert lab is not None  # noqa: S101  # looked at by who asks
    evaluated = _ends(lab, "eval")
    trained = _ends(lab, "train", seed=0)
    in_python = draws_for_python(evidence) or bool(evidence.trace.drawn_from - {"torch"})
    for seed in range(1, _TRACES if in_python else 1):
        if set(evaluated) <= set(trained):
            break
        trained = {**_ends(lab, "train", seed=seed), **trained}
    common = [p for p in evaluated if p in trained]
    still = _still_random(lab, {p: evaluated[p] for p in common if evaluated[p].random})
    if still:
        return RULES[_ID].finding(
            still[0],
            "the branch is still dropped at random in eval mode"
            + (f" \N{MULTIPLICATION SIGN}{len(still)}" if len(still) > 1 else ""),
            {"units": len(still), "of": len(evaluated)},
            fix="drop in training only: if not self.training: return x",
        )
    shares = _shares(lab, {p: trained[p] for p in common}, evaluated, in_python=in_python)
    return _verdict({p: _Share(values, most, trained[p].entries) for p, (values, most) in shares.items()})


def _still_random(lab: Lab, ends: dict[str, _End]) -> list[str]:
    """Branches that are dropped in eval mode: whose masks are not the same in each run."""
    masks = {path: end for path, end in ends.items() if end.masks}
    still = [path for path, end in ends.items() if end.dropout]
    if masks:
        wants = {(w.node, w.name): w for end in masks.values() for w in end.wants()}
        graph = next(iter(masks.values())).graph
        runs = [lab.look(_ID, graph, list(wants.values()), mode="eval", seed=k) for k in range(_DRAWS_IN_EVAL)]
        for path, end in masks.items():
            if len({end.share(seen, "mask") for seen in runs}) > 1:
                still.append(path)
    return [path for path in ends if path in still]


@dataclass(frozen=True, slots=True)
class _Share:
    """What came of a branch in each run, in parts of what comes in eval mode.

    Under a mask that makes up for what it drops the mean is 1 and, if `most` is the largest that may come, the variance
    of one entry `most` − 1: as long as few entries were seen dropped, what was seen varies too little.
    """

    values: list[float]
    most: float
    entries: int

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """Standard error of the mean, the larger of the seen one and the expected one."""
        expected = math.sqrt(max(self.most - 1.0, 0.0) / (len(self.values) * self.entries))
        return max(statistics.stdev(self.values) / math.sqrt(len(self.values)), expected)

    @property
    def misses(self) -> bool:
        return abs(self.mean - 1.0) > max(_MISS, _CERTAIN * self.error)


def _shares(
    lab: Lab, trained: dict[str, _End], evaluated: dict[str, _End], *, in_python: bool
) -> dict[str, tuple[list[float], float]]:
    """For each branch that chance has to do with: its share in each run, and the largest that may come."""
    by_graph: dict[int, list[str]] = {}
    for path, end in trained.items():
        by_graph.setdefault(id(end.graph), []).append(path)
    shares: dict[str, tuple[list[float], float]] = {}
    for members in by_graph.values():
        wants = [w for path in members for w in trained[path].wants()]
        graph = trained[members[0]].graph
        if in_python or any(trained[path].masks for path in members):
            runs = [lab.look(_ID, graph, wants, mode="train", seed=k) for k in range(_DRAWS)]
        else:  # nothing varies
            runs = [{(w.node, w.name): 1.0 for w in wants}] * 2
        for path in members:
            end, whole = trained[path], evaluated[path].factor
            ran = [(end.join, "ran") in seen for seen in runs]
            values = [end.share(seen, "mask") * r / whole for r, seen in zip(ran, runs, strict=True)]
            most = max(end.share(seen, "most") * r / whole for r, seen in zip(ran, runs, strict=True))
            if end.masks or not all(ran) or abs(end.factor / whole - 1.0) > _MISS:
                shares[path] = values, most
    left_out = [tuple(values) for values, _ in shares.values() if 0.0 in values]
    together = {v for v in left_out if left_out.count(v) > 1}
    return {p: (values, most) for p, (values, most) in shares.items() if tuple(values) not in together}


def _verdict(shares: dict[str, _Share]) -> Finding | None:
    """The first branch that misses by itself; else the first of all, if all together do."""
    if not shares:
        return None
    path, share = next(((p, s) for p, s in shares.items() if s.misses), (next(iter(shares)), None))
    if share is None:
        every = list(shares.values())
        means = [statistics.fmean(run) for run in zip(*(s.values for s in every), strict=True)]
        share = _Share(means, max(s.most for s in every), sum(s.entries for s in every))
        if not share.misses:
            return None
    missing = sum(s.misses for s in shares.values())
    return RULES[_ID].finding(
        path,
        f"in training the branch adds {share.mean:.3g} of what it adds in evaluation, on average"
        + (f" \N{MULTIPLICATION SIGN}{missing}" if missing > 1 else ""),
        {
            "train_over_eval": share.mean, "standard_error": share.error, "draws": len(share.values),
            "units": max(missing, 1), "of": len(shares),
        },
    )  # fmt: skip


def _ends(lab: Lab, mode: Mode, seed: int | None = None) -> dict[str, _End]:
    """The ends of all units' branches as they are in a mode, by path."""
    graph = lab.trace(_ID, mode=mode, seed=seed).graph
    found = find(graph)
    described = describe(found)
    return {p: _end(u, found) for p, u in zip(paths(described, found.links), described, strict=True)}


def _end(unit: Described, found: Found) -> _End:
    """Walk from the join back into the first branch, over views and all that only multiplies it."""
    graph, term = found.links.graph, unit.candidate.branches[0]
    end = _End(graph, term.add, join_factor(graph.nodes[term.add], term.position))
    drawn: set[int] = set()
    for node, data in last_steps(unit, graph):
        dropped = found.routes.dropped(node)
        if dropped:
            end.dropout.append(node.id)
        elif dropped is None and node.op in ops.MULTIPLY:
            _multiplied(end, node, data, drawn)
    if drawn:
        end.entries = max(math.prod(graph.nodes[j].shape) for j in drawn)
    return end


def _multiplied(end: _End, node: Node, data: int, drawn: set[int]) -> None:
    """Take in one multiplication: by a constant, or by a mask; a parameter is the same in both modes."""
    scalar = node.attrs.get("scalar")
    if isinstance(scalar, (int, float)) and scalar:
        end.factor *= scalar if node.op in ("mul", "multiply") else 1.0 / scalar
    elif len(node.inputs) == 2 and node.op in ("mul", "multiply"):
        position = 1 - node.inputs.index(data)
        other = end.graph.nodes[node.inputs[position]]
        if other.taint & RAND and not other.taint & PARAM:
            end.masks.append((node.id, position))
            drawn.update(_drawn(end.graph, other))


def _drawn(graph: Graph, mask: Node) -> set[int]:
    """The random draws that a mask is made of."""
    pending, found = [mask.id], set()
    while pending:
        node = graph.nodes[pending.pop()]
        if node.op in ops.RANDOM:
            found.add(node.id)
        pending += [j for j in node.inputs if graph.nodes[j].taint & RAND]
    return found


def _mean(position: int) -> Reduce:
    def reduce(_result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor | float:
        return operands[position].double().mean() if len(operands) > position else 1.0

    return reduce


def _most(position: int) -> Reduce:
    def reduce(_result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor | float:
        return operands[position].double().max() if len(operands) > position else 1.0

    return reduce

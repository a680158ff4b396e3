"""Rule ``identical-init``: units that start as copies of each other."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains
from skipway.units.weights import branch_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from skipway.diagnostics.finding import Finding

__all__ = ["identical_init"]

_SAMPLE: Final = 64
_UNIT: Final = "return x + self.branch(self.norm(x))"


@rule(
    "identical-init",
    severity="warning",
    summary="Units start as copies of each other.",
    explanation="All matrices and kernels of one unit hold the same random numbers as those of another, in tensors of"
    " their own: a block was built once and copied (copy.deepcopy, nn.TransformerEncoder from one layer) or drawn anew"
    " from one seed. Weights that are shared (one tensor, several uses) and weights that are constant (zeros, ones) are"
    " no copies. Two networks that run beside each other (a network and its momentum twin) may well start alike."
    " Units are compared with those of their own stream.",
    fix="build each unit by itself, or draw its weights anew: for m in block.modules(): m.reset_parameters() where"
    " there is one",
    source="pytorch/pytorch #72253, #86274",
    faulty=program(TOKENS, unit=_UNIT, depth=4).replace(
        "*[Block() for _ in range(4)]", "*[copy.deepcopy(block) for _ in range(4)]"
    ).replace("model =", "block = Block()\nmodel =").replace("import torch\n", "import copy\n\nimport torch\n", 1),
    healthy=program(TOKENS, unit=_UNIT, depth=4),
    needs=("values",),
)  # fmt: skip
def identical_init(evidence: Evidence) -> Iterator[Finding]:
    """Fire for units whose random weights are equal, tensor by tensor."""
    named = evidence.parameters
    alike: defaultdict[object, list[tuple[Member, list[nn.Parameter]]]] = defaultdict(list)
    for k, chain in enumerate(chains(evidence)):
        for member in chain:
            found = [named[n] for n in branch_weights(member.described, evidence.found.links) if n in named]
            weights = [w for w in found if w.dim() > 1 and w.device.type != "meta" and not _is_constant(w)]
            if weights:
                alike[k, tuple(_mark(w) for w in weights)].append((member, weights))
    copies = [group for group in alike.values() if len(group) > 1 and _are_copies(group)]
    if not copies:
        return
    largest = max(copies, key=len)
    (first, _), (second, _) = largest[:2]
    units = sum(map(len, copies))
    yield RULES["identical-init"].finding(
        second.path,
        f"starts with the weights of {first.path}; {units} units are copies of {len(copies)}",
        {"units": units, "different": len(copies), "most_alike": len(largest)},
    )


def _mark(weight: nn.Parameter) -> object:
    """What equal tensors have in common; the comparison itself comes after."""
    return tuple(weight.shape), tuple(weight.detach().flatten()[:_SAMPLE].tolist())


def _is_constant(weight: nn.Parameter) -> bool:
    flat = weight.detach().flatten()
    # Few entries tell of nearly all weights that they are none; only the others are read to the end.
    return all(bool((part == flat[0]).all()) for part in (flat[:_SAMPLE], flat)) if len(flat) else True


def _are_copies(group: list[tuple[Member, list[nn.Parameter]]]) -> bool:
    """Whether the tensors are equal and not the same."""
    (_, first), *others = group
    return any(
        all(
            a is not b and a.data_ptr() != b.data_ptr() and torch.equal(a, b)
            for a, b in zip(first, weights, strict=True)
        )
        for _, weights in others
    )

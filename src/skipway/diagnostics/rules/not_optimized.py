"""Rule ``not-optimized``: parameters that take part and that the optimizer does not hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.words import first_of
from skipway.units.weights import alive_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from skipway.diagnostics.finding import Finding

__all__ = ["not_optimized"]

_PROGRAM: Final = program(TOKENS, unit="return x + self.branch(self.norm(x))", depth=4)
_OPTIMIZER: Final = "optimizer = torch.optim.AdamW(model.parameters())\n"
_CHANGE: Final = "model[4] = Block()  # a new block\n"


@rule(
    "not-optimized",
    severity="error",
    summary="Parameters take part in the output and train, and the optimizer does not hold them.",
    explanation="Parameters on which the output depends and that need a gradient are in no group of the optimizer: it"
    " was built before the model got them (a new head, other blocks, a model built anew), or its groups were made by"
    " names that leave some out. Their gradient is there, and nothing ever changes them. An error where the optimizer"
    " holds none of the model's parameters, a warning where it lacks some: a second optimizer may train those. Copies"
    " in another number format (an optimizer's own float32 weights of a half-precision model) count as the model's.",
    fix="build the optimizer after the last change of the model, from model.parameters(); check that the groups"
    " together hold each parameter once",
    source="PyTorch's documentation of torch.optim: parameters have to stay the same objects while an optimizer is"
    " used",
    faulty=_PROGRAM + _OPTIMIZER + _CHANGE,
    healthy=_PROGRAM + _CHANGE + _OPTIMIZER,
    needs=("optimizer",),
)
def not_optimized(evidence: Evidence) -> Iterator[Finding]:
    """Fire where parameters that the output depends on are in no group."""
    groups = evidence.optimizer.param_groups if evidence.optimizer is not None else []
    given = [p for group in groups for p in group["params"]]
    held = set(map(id, given))
    alive = alive_parameters(evidence.found.links)
    trained = {name: parameter for name, parameter in evidence.trained.items() if name in alive}
    left_out = [name for name, p in trained.items() if id(p) not in held]
    if not left_out or _are_copies(given, list(trained.values())):
        return
    every = len(left_out) == len(trained)
    what = "none of the model's" if every else f"{len(trained) - len(left_out)} of the model's"
    first = left_out[0]
    yield RULES["not-optimized"].finding(
        first.rpartition(".")[0] or "<root>",
        f"the optimizer holds {what} {len(trained)} parameters that train"
        + (
            f"; its own {len(given)} are others"
            if every
            else f": {first_of(left_out)} {'is' if len(left_out) == 1 else 'are'} in no group"
        ),
        {"left_out": len(left_out), "of": len(trained), "weights": sum(trained[n].numel() for n in left_out)},
        severity="error" if every else "warning",
    )


def _are_copies(given: list[nn.Parameter], trained: list[nn.Parameter]) -> bool:
    """Whether an optimizer keeps copies of its own, of the same sizes and in another number format."""
    if {p.dtype for p in given} & {p.dtype for p in trained}:
        return False
    return Counter(p.numel() for p in given) >= Counter(p.numel() for p in trained)

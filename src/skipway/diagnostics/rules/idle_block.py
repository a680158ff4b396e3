"""Rule ``idle-block``: blocks like those that hold the units, which never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from skipway.diagnostics.rules._chance import choosing, further_runs
from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["idle_block"]

_FAULTY = program(TOKENS, unit="return x + self.branch(self.norm(x))", depth=6).replace(
    "model = nn.Sequential(nn.Linear(16, 16), *[Block() for _ in range(6)], nn.Identity())",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x):
        for block in self.blocks[:-1]:
            x = block(x)
        return x


model = Net()""",
)


@rule(
    "idle-block",
    severity="warning",
    summary="Blocks like those that hold the units are built and never run.",
    explanation="An nn.ModuleList or nn.Sequential holds blocks of one class, some of which hold units and run, while"
    " others are never called: neither in this run, nor in the other mode, nor with other random numbers. A loop ends"
    " too early or steps over some, or reads the depth from elsewhere: the net is shallower than it looks, and"
    " DistributedDataParallel stops at parameters without a gradient. Experts and other blocks among which the model"
    " chooses by what it reads are not meant, nor are those of an nn.ModuleDict, which are there to be chosen by name.",
    fix="run every block (for block in self.blocks), or build no more than run",
    source="pytorch/pytorch #90171; of blocks dropped by chance, which are no fault: Fan et al. 2019, arXiv 1909.11556",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("self.blocks[:-1]", "self.blocks"),
    needs=("runs",),
)
def idle_block(evidence: Evidence) -> Iterator[Finding]:
    """Fire for the blocks of a container that do not run while others of their class hold units."""
    called = {call.path for call in evidence.graph.calls}
    suspects = list(_suspects(evidence, called))
    for links in further_runs(evidence, "idle-block") if suspects else ():
        called |= {call.path for call in links.graph.calls}
    chosen = choosing(evidence.found.links) if suspects else set()
    for parent, unused, running in suspects:
        left = [path for path in unused if path not in called]
        around = parent.rpartition(".")[0]
        if not left or any(p == around or p.startswith(f"{parent}.") for p in chosen):
            continue
        kind = type(evidence.model.get_submodule(left[0])).__name__
        some = ", ".join(left[:3]) + (" …" if len(left) > 3 else "")
        yield RULES["idle-block"].finding(
            left[0],
            f"{len(left)} of {len(left) + running} {kind} in {parent or 'the model'} never run: {some}",
            {"idle": len(left), "running": running},
        )


def _suspects(evidence: Evidence, called: set[str]) -> Iterator[tuple[str, list[str], int]]:
    """Containers with blocks that were not called, train and are of a class that holds units.

    Yields:
        The container's path, those blocks, and how many others hold units.
    """
    with_units = {evidence.graph.calls[call].path for scope in evidence.scopes for call in scope}
    for path, module in evidence.modules:
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        blocks = {f"{path}.{name}" if path else name: block for name, block in module.named_children()}
        running = with_units.intersection(blocks)
        if not running or called.issuperset(blocks):
            continue
        kinds = {type(blocks[inner]) for inner in running}
        unused = [p for p, block in blocks.items() if p not in called and type(block) in kinds and _trains(block)]
        if unused:
            yield path, unused, len(running)


def _trains(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())

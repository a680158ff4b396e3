"""Claim ``merge-concat``: what concatenation costs in place of the sum."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from skipway.designs import design_from
from skipway.diagnostics.inspect import inspect
from skipway.models.backbone_conv import ConvNet
from skipway.models.create import build
from skipway.parts import Table
from skipway.report.numbers import counted
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import passes, seeded, train_on_digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from skipway.models import Net

__all__ = ["Cost", "cost", "held_bytes", "judged", "law_broken", "one_stage", "smallest"]

# "About 2×".
TWICE: Final = (1.5, 2.5)
UNITS: Final = 9
WIDTH: Final = 16
GROWTHS: Final = (2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a net costs on a batch.

    Args:
        parameters: how many.
        flops: of a forward pass.
        held: bytes of activations kept for the backward pass.
    """

    parameters: int
    flops: int
    held: int

    def over(self, other: Cost) -> dict[str, float]:
        """Each as a multiple of the other's."""
        mine, theirs = asdict(self), asdict(other)
        return {name: mine[name] / theirs[name] for name in mine}


def one_stage(design: str, units: int = UNITS) -> Net:
    """A net of one width and one resolution, as the document has it: C = 16 in, convolutional units, a head.

    Args:
        design: of the units.
        units: how many, of two convolutions each.
    """
    stage = ConvNet(
        name="one_stage", family="cifar_resnet", design="preact", depth=2 * units + 2, num_classes=10, block="basic",
        counts=(units,), widths=(WIDTH,), stem_width=WIDTH, in_channels=1, image_size=8,
    )  # fmt: skip
    return build(stage, design_from(design), name=f"one stage of {units} units@{design}")


def held_bytes(net: nn.Module, batch: Tensor) -> int:
    """Bytes that a forward pass keeps for the backward pass, each piece of memory once, without the parameters."""
    own = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}
    kept: dict[int, Tensor] = {}  # held, so that no place in memory is given twice

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = net(batch)
    del output
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def cost(net: Net, batch: Tensor) -> Cost:
    """Measure a net."""
    totals = inspect(net, batch, structure_only=True, profile="fast").totals
    return Cost(parameters=totals["parameters"], flops=totals["flops"], held=held_bytes(net, batch))


def law_broken(net: Net, batch: Tensor, growth: int) -> int:
    """How many units do not widen the stream they read by exactly `growth` channels, keeping all of what they read."""
    broken = 0
    for passed in passes(net, batch):
        # A transition in front of the unit may have made the stream narrower first.
        before = passed.unit.plan.branches[0].block.in_width
        wide = passed.out.shape[1] == before + growth
        # The document's claim is on what is concatenated: what was read must be there still.
        whole = passed.unit.transition is not None or torch.equal(passed.out[:, : passed.x.shape[1]], passed.x)
        broken += not (wide and whole)
    return broken


def smallest(losses: Mapping[int, Sequence[float]], wanted: float, last: int = 20) -> int | None:
    """The smallest growth whose training loss over the last steps is at most `wanted`; None where none is."""
    reached = [growth for growth, c in losses.items() if statistics.fmean(c[-last:]) <= wanted]
    return min(reached, default=None)


def judged(
    broken: int,
    equal_depth: Mapping[str, float],
    equal_loss: Mapping[str, float] | None,
    growth: int | None,
    by_depth: Mapping[int, float],
) -> Judgement:
    """By the law of growth, and by the multiples of what addition costs.

    Args:
        broken: units that do not grow by the law.
        equal_depth: parameters, flops and memory as multiples, appending as many channels as came in.
        equal_loss: the same of the smallest net that trains as well; None where none does.
        growth: channels that a unit of that one appends.
        by_depth: memory as a multiple, by the number of units, for other numbers of units.
    """
    dearer = all(v > 1 for v in equal_depth.values())
    about = {
        "at equal depth": _twice(equal_depth["held"]),
        "at equal training loss": equal_loss is not None and _twice(equal_loss["held"]),
    }
    found = [name for name, twice in about.items() if twice]
    verdict: Verdict = "does not hold"
    condition = ""
    if broken == 0 and dearer and len(found) == 2:
        verdict = "holds"
    elif broken == 0 and dearer and found:
        verdict, condition = "holds only if", f"nets are compared {found[0]}: only there is it about twice the memory"
    kept = "the law of growth is exact" if broken == 0 else f"{broken} units break the law of growth"
    there = (
        "no net of the ladder reaches its training loss" if equal_loss is None
        else f"at equal training loss (k = {growth}) {equal_loss['held']:.2f}×"
    )  # fmt: skip
    return Judgement(
        verdict=verdict, condition=condition,
        figure=f"{kept}; activations kept: {equal_depth['held']:.2f}× of addition's at equal depth (k = {WIDTH}), "
        f"{there}",
        words=f"Parameters {equal_depth['parameters']:.2f}× and operations {equal_depth['flops']:.2f}× at equal depth"
        + ("" if equal_loss is None
           else f", {equal_loss['parameters']:.2f}× and {equal_loss['flops']:.2f}× at equal training loss")
        + ". Every unit keeps what it reads in full, so that memory grows with the square of depth within a stage, "
        "and any one factor belongs to one depth: "
        + ", ".join(f"{factor:.2f}× at {counted(units, 'unit')}" for units, factor in by_depth.items())
        + ".",
        numbers={
            "units_that_break_the_law": broken, "equal_depth": dict(equal_depth),
            "equal_loss": None if equal_loss is None else dict(equal_loss), "growth_at_equal_loss": growth,
            "memory_by_units": {str(units): factor for units, factor in by_depth.items()},
        },
        parts=(
            Table(
                columns=("compared", "parameters", "operations", "activations kept"),
                rows=tuple(
                    (name, *(f"{values[key]:.2f}×" for key in ("parameters", "flops", "held")))
                    for name, values in (("at equal depth", equal_depth), ("at equal training loss", equal_loss))
                    if values is not None
                ),
                numeric=("parameters", "operations", "activations kept"),
                title="Concatenation, as multiples of addition",
            ),
        ),
    )  # fmt: skip


def _twice(multiple: float) -> bool:
    return TWICE[0] <= multiple <= TWICE[1]


@claim(
    "merge-concat",
    source="000 (why addition), section 3, variant 1, and section 6",
    statement="Concatenation makes the width grow, C to 2C to 3C, costs many more parameters, and DenseNet takes "
    "about twice the memory.",
    measurement="Channels behind every unit; parameters, operations and activations kept for the backward pass of "
    "nets of one stage of 9 units that concatenate and that add, at equal depth (k = 16 channels appended, as many "
    "as came in), and of the narrowest of k = 2, 4, 8, 16 that trains as well on digits in 60 steps.",
    criterion="Holds if every unit widens the stream by exactly k, parameters, operations and memory are above 1×, "
    "and the memory is 1.5× to 2.5× at equal depth and at equal training loss; holds only if compared in one way, "
    "where it is so in that one; else it does not hold.",
)
def check(bench: Bench) -> Judgement:
    """One ladder."""
    steps = bench.pick(quick=60, standard=600)
    with seeded(0):
        batch = torch.randn(8, 1, 8, 8)
        nets = {k: one_stage(f"dense(growth={k})") for k in GROWTHS}
        addition = one_stage("preact")
        costs, base = {k: cost(net, batch) for k, net in nets.items()}, cost(addition, batch)
        broken = sum(law_broken(net, batch, k) for k, net in nets.items())
        by_depth = {
            units: held_bytes(one_stage(f"dense(growth={WIDTH})", units), batch)
            / held_bytes(one_stage("preact", units), batch)
            for units in (1, 3, 27)
        }
    wanted = statistics.fmean(train_on_digits(addition, steps=steps, batch_size=32)[-20:])
    losses: dict[int, list[float]] = {}
    reached: int | None = None
    for k, net in nets.items():
        losses[k] = train_on_digits(net, steps=steps, batch_size=32)
        reached = smallest(losses, wanted)
        if reached is not None:
            break
    equal_loss = None if reached is None else costs[reached].over(base)
    return judged(broken, costs[WIDTH].over(base), equal_loss, reached, by_depth)

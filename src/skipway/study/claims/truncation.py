"""Claim ``truncation``: what the ReLU behind the sum cuts off, by depth and during training."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.models import create_model
from skipway.parts import Lines, Series
from skipway.study.claim import Bench, Judgement, Verdict, claim
from skipway.study.claims._measures import seeded, train_on_digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from skipway.models import Net

__all__ = ["Cut", "cut", "followed", "judged"]

# "Little": at most one entry in ten.
LITTLE: Final = 0.1
# "Frequent" beside it: at least twice as many.
MORE: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What is cut in a net at one time of its training.

    Args:
        step: how many steps are done.
        entries: share of negative entries in front of the ReLU behind the sum, by unit.
        energy: share of the square sum that they make up, by unit.
    """

    step: int
    entries: tuple[float, ...]
    energy: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Share of entries, mean over the units."""
        return statistics.fmean(self.entries)


def cut(net: Net, batch: Tensor, step: int = 0) -> Cut:
    """Measure every unit that keeps the shape and has something behind its sum, in the mode that the net is in."""
    entries: list[float] = []
    energy: list[float] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach()
        negative = x.clamp(max=0)
        entries.append(float((x < 0).float().mean()))
        energy.append(float(negative.square().sum() / x.square().sum()))

    handles = []
    for unit in net.stack.built_units():
        after = getattr(unit.join, "after", None)
        if after is not None and not unit.plan.site.changes_shape:
            handles.append(after.register_forward_pre_hook(note))
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    try:
        with torch.no_grad():
            net(batch)
            for name, value in net.named_buffers():  # a look is no step of the running statistics
                value.copy_(buffers[name])
    finally:
        for handle in handles:
            handle.remove()
    return Cut(step=step, entries=tuple(entries), energy=tuple(energy))


def followed(depth: int, *, steps: int, batch_size: int, width: int = 16, looks: int = 6, seed: int = 0) -> list[Cut]:
    """Train a net of the original design on digits, and look now and then.

    Args:
        depth: layers.
        steps: of SGD at 0.01, the published rate of warming up, under which the deepest trains from the start.
        batch_size: N.
        width: channels of the first stage.
        looks: how often, the start and the end included.
        seed: of weights and batches.
    """
    with seeded(seed):
        net = create_model(f"resnet{depth}", in_channels=1, width=width)
        batch = torch.randn(32, 1, 8, 8)
        net.train()
        found = [cut(net, batch)]
        every = max(1, steps // (looks - 1))

        def look(done: int) -> None:
            if done % every == 0:
                found.append(cut(net, batch, done))

        train_on_digits(net, steps=steps, seed=seed, batch_size=batch_size, lr=0.01, behind=look)
    return found


def judged(found: Mapping[int, Sequence[Cut]]) -> Judgement:
    """By the share of entries that are cut at the end, in the shallower and in the deeper net.

    Args:
        found: looks in order of time, by depth; two depths.
    """
    shallow, deep = min(found), max(found)
    ends = {depth: looks[-1].mean for depth, looks in found.items()}
    little = ends[shallow] <= LITTLE
    frequent = ends[deep] >= MORE * ends[shallow]
    verdict: Verdict = "does not hold"
    condition = ""
    if little and frequent:
        verdict = "holds"
    elif little or frequent:
        verdict = "holds only if"
        condition = (
            f"it is said of {shallow} layers: no more is cut at {deep}" if little
            else f"it is said of the difference: at {shallow} layers more than a tenth is cut, too"
        )  # fmt: skip
    starts = {depth: looks[0].mean for depth, looks in found.items()}
    return Judgement(
        verdict=verdict, condition=condition,
        figure="negative entries cut by the ReLU behind the sum, mean over units, from start to end of training: "
        + ", ".join(f"{100 * starts[d]:.0f} to {100 * ends[d]:.0f} % at {d:,} layers" for d in sorted(found)),
        words="Of the square sum the cut entries make up "
        + ", ".join(f"{100 * statistics.fmean(found[d][-1].energy):.1f} % at {d:,}" for d in sorted(found))
        + ". The published observation has no figures; it is of nets trained for 64,000 steps on CIFAR-10, these "
        f"were trained for {found[deep][-1].step} on digits.",
        numbers={str(depth): [asdict(one) for one in looks] for depth, looks in found.items()},
        parts=(
            Lines(
                series=tuple(
                    Series(
                        name=f"{depth:,} layers, {'start' if k == 0 else 'end'}", y=looks[k].entries,
                        x=tuple(u / len(looks[k].entries) for u in range(len(looks[k].entries))),
                    )
                    for depth, looks in found.items() for k in (0, -1)
                ),
                x="place in the net, 0 to 1", title="Share of entries cut, by unit",
            ),
            Lines(
                series=tuple(
                    Series(name=f"{d:,} layers", x=tuple(float(o.step) for o in looks), y=tuple(o.mean for o in looks))
                    for d, looks in found.items()
                ),
                x="step", title="Share of entries cut, mean over units",
            ),
        ),
    )  # fmt: skip


@claim(
    "truncation",
    source="003, ease of optimisation; He et al. 2016, arXiv 1603.05027, section 4.2",
    statement="The ReLU behind the addition truncates the stream. In shallower nets (164 layers) it has little "
    "effect, since behind some training the outputs are mostly not negative; in nets of more than 1,000 layers it is "
    "frequent.",
    measurement="Share of negative entries in front of that ReLU, by unit, during the training of nets of 164 and "
    "1,001 layers on digits.",
    criterion="Holds if at the end at most a tenth of the entries is negative at 164 layers (mean over units) and at "
    "least twice that share at 1,001; holds only if it is said of one of the two, where one alone is so.",
    least="standard",
    otherwise="a net of 1,001 layers has to be trained: some ten minutes of processor time",
)
def check(bench: Bench) -> Judgement:
    """Both depths, one seed."""
    steps = bench.pick(quick=20, standard=300, paper=3000)
    return judged({depth: followed(depth, steps=steps, batch_size=16) for depth in (164, 1001)})

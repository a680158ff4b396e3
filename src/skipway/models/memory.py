"""What training keeps in memory for its backward pass, and the fastest way of a net that fits.

Shapes: N batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skipway.blocks.rebuild import watched
from skipway.models.checkpointed import peak, untracked
from skipway.models.compiled import uncompiled
from skipway.models.reversible import Drift
from skipway.report.numbers import bytes_text
from skipway.spec import Memory

if TYPE_CHECKING:
    from skipway.models.stack import PlannedStack

__all__ = ["FEW", "ActivationBytes", "MemoryChoice", "MemoryModes", "activation_bytes", "free_bytes", "kept_bytes"]

# Two points give what is kept once and what is kept for each sample.
FEW: Final = (2, 4)
# Of the memory that is free, so that what is at work inside single operations fits too.
_SHARE: Final = 0.8
# Gradients, and the two moments of Adam: they come after the first forward pass.
_COPIES: Final = 3


@dataclass(frozen=True, kw_only=True)
class ActivationBytes:
    """What is kept between forward and backward pass, the net's own parameters and buffers left out.

    Args:
        once: bytes, whatever the batch.
        sample: bytes for each sample.
    """

    once: float
    sample: float

    @classmethod
    def through(cls, few: tuple[int, int], more: tuple[int, int]) -> ActivationBytes:
        """The line through two points; proportional to the batch where they are one.

        Args:
            few: samples and bytes of the smaller batch.
            more: of the larger.
        """
        more_samples = more[0] - few[0]
        sample = (more[1] - few[1]) / more_samples if more_samples else more[1] / more[0]
        return cls(once=max(0.0, more[1] - sample * more[0]), sample=sample)

    def of(self, samples: int) -> int:
        """Bytes for a batch."""
        return round(self.once + self.sample * samples)


@dataclass(frozen=True, kw_only=True)
class MemoryChoice:
    """Which mode was chosen for which batch.

    Args:
        mode: the fastest that fits; the smallest where none does.
        samples: in the batch.
        needed: activation bytes by mode, from the fastest.
        budget: bytes that activations may take on the device.
    """

    mode: Memory
    samples: int
    needed: dict[Memory, int]
    budget: int

    @property
    def fits(self) -> bool:
        """Whether what was chosen is expected to fit."""
        return self.needed[self.mode] <= self.budget

    def __str__(self) -> str:
        modes = ", ".join(f"{mode} {bytes_text(needed)}" for mode, needed in self.needed.items())
        fits = "" if self.fits else "; not even that is expected to fit"
        return f"memory: {self.mode}, for {self.samples} samples on {bytes_text(self.budget)} ({modes}){fits}"


@contextmanager
def kept_bytes(net: nn.Module) -> Iterator[tuple[torch.autograd.graph.saved_tensors_hooks, dict[int, int]]]:
    """A watch to hold open in a forward pass, and the bytes of each storage that autograd keeps of it.

    Args:
        net: whose own parameters and buffers do not count.
    """
    own = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    yield torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), sizes


def activation_bytes(net: nn.Module, stack: PlannedStack, batch: Tensor) -> dict[Memory, ActivationBytes]:
    """By mode, from the fastest: worked out from forward passes of a few samples, which leave no trace on the net.

    Args:
        net: in the mode, on the device and under the autocast that it is trained with.
        stack: of the net.
        batch: (N,…), of which the first samples are taken.
    """
    sizes = sorted({min(few, len(batch)) for few in FEW})
    found = [(size, _measured(net, stack, batch[:size].clone())) for size in sizes]
    (few, of_few), (more, of_more) = found[0], found[-1]
    return {mode: ActivationBytes.through((few, of_few[mode]), (more, of_more[mode])) for mode in stack.memory_modes}


def _measured(net: nn.Module, stack: PlannedStack, batch: Tensor) -> dict[Memory, int]:
    """Bytes by mode for one batch."""
    needed: dict[Memory, int] = {}
    with _traceless(net, stack, batch.device):
        for mode in stack.memory_modes[1:]:
            if mode != "checkpoint":
                stack.set_memory(mode)
                with kept_bytes(net) as (watch, sizes), watch:
                    net(batch)
                needed[mode] = sum(sizes.values())
        stack.set_memory("keep")
        with kept_bytes(net) as (watch, sizes), _marked(stack, sizes) as (entered, marks), watch:
            net(batch)
    kept = list(sizes.values())
    inside = [sum(kept[start:stop]) for start, stop in zip(marks[::2], marks[1::2], strict=True)]
    needed["keep"] = sum(kept)
    needed["checkpoint"] = needed["keep"] - sum(inside) + peak(entered, inside, stack.segment)
    if "reversible" in needed:
        # The unit that is run again, the state before it, and the gradients of both.
        needed["reversible"] += max(kept + 3 * read for kept, read in zip(inside, entered, strict=True))
    return needed


@contextmanager
def _traceless(net: nn.Module, stack: PlannedStack, device: torch.device) -> Iterator[None]:
    """Within it, forward passes with gradients leave net, mode and generators as they were."""
    before, devices = stack.memory, [device] if device.type not in ("cpu", "meta") else []
    try:
        with torch.random.fork_rng(devices), untracked(net), torch.enable_grad(), uncompiled(stack.built_units()):
            yield
    finally:
        stack.set_memory(before)


def _comes_back(net: nn.Module, stack: PlannedStack, batch: Tensor) -> bool:
    """Whether inverses are exact enough for gradients, by a backward pass of a few samples that leaves no trace."""
    drift, stack.drift = stack.drift, Drift(silent=True)
    try:
        with _traceless(net, stack, batch.device):
            stack.set_memory("reversible")
            out = sum(leaf.float().square().sum() for leaf in tree_leaves(net(batch[: FEW[-1]].clone())))
            torch.autograd.grad(out, [p for p in net.parameters() if p.requires_grad], allow_unused=True)
        return stack.drift.exact
    finally:
        stack.drift = drift


@contextmanager
def _marked(stack: PlannedStack, sizes: dict[int, int]) -> Iterator[tuple[list[int], list[int]]]:
    """Bytes that each unit reads, and how many pieces were kept when it began and when it ended."""
    entered: list[int] = []
    marks: list[int] = []

    def begin(_unit: nn.Module, inputs: tuple[Any, ...]) -> None:
        entered.append(sum(leaf.nbytes for leaf in tree_leaves(inputs[0]) if isinstance(leaf, Tensor)))
        marks.append(len(sizes))

    def end(_unit: nn.Module, _inputs: tuple[Any, ...], _output: Any) -> None:
        marks.append(len(sizes))

    hooks = [unit.register_forward_pre_hook(begin) for unit in stack.units]
    hooks += [unit.register_forward_hook(end) for unit in stack.units]
    try:
        yield entered, marks
    finally:
        for hook in hooks:
            hook.remove()


class MemoryModes:
    """What nets share: the mode by name, and the choice of ``"auto"``."""

    stack: PlannedStack
    training: bool
    memory: Memory = "keep"
    memory_choice: MemoryChoice | None = None

    def set_memory(self, mode: Memory) -> None:
        """How activations are dealt with between forward and backward pass.

        Args:
            mode: ``"keep"``, ``"recompute"``, ``"checkpoint"``, ``"reversible"`` as for `PlannedStack.set_memory`;
                ``"auto"``: the fastest of them that fits, chosen at the next training batch, and again when a larger
                one comes; ``"reversible"`` only where states come back to within 1 %.

        Raises:
            UnknownNameError: another word.
            SkipwayError: ``"reversible"`` with a design that has no inverse.
        """
        self.stack.set_memory("keep" if mode == "auto" else mode)
        self.memory, self.memory_choice = mode, None

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """``"checkpoint"`` or ``"keep"``, as timm calls it."""
        self.set_memory("checkpoint" if enable else "keep")

    def choose_memory(self, batch: Tensor, *, samples: int | None = None) -> MemoryChoice:
        """Set the fastest mode whose activations fit into the free memory of the batch's device.

        Predicted from forward passes of 2 and 4 samples, which leave the net and the generators as they are.

        Args:
            batch: (N,…), four samples or more if there are as many; the net is on their device, in the mode and under
                the autocast that it is trained with.
            samples: in a batch of the training on this device; None for as many as in `batch`.
        """
        assert isinstance(self, nn.Module)
        # While it is measured, nothing is chosen.
        word, self.memory = self.memory, "keep"
        try:
            needs = activation_bytes(self, self.stack, batch)
        finally:
            self.memory = word
        count = len(batch) if samples is None else samples
        needed = {mode: need.of(count) for mode, need in needs.items()}
        own = [p for p in self.parameters() if p.requires_grad]
        later = sum(p.nbytes * (_COPIES if p.grad is None else _COPIES - 1) for p in own)
        budget = max(0, round(_SHARE * free_bytes(batch.device)) - later)
        smallest = min(needed, key=lambda mode: needed[mode])
        mode = next((mode for mode, size in needed.items() if size <= budget), smallest)
        if mode == "reversible" and not _comes_back(self, self.stack, batch):
            mode = "checkpoint"  # the smallest whose gradients are sound
        self.stack.set_memory(mode)
        self.memory_choice = MemoryChoice(mode=mode, samples=count, needed=needed, budget=budget)
        return self.memory_choice

    def settle_memory(self, batch: Tensor) -> None:
        """With ``"auto"``, choose for a training batch that is larger than any before."""
        if self.memory != "auto" or not self.training or not torch.is_grad_enabled() or watched():
            return
        if self.memory_choice is None or len(batch) > self.memory_choice.samples:
            self.choose_memory(batch)

    def memory_text(self) -> str:
        """The mode, and what was chosen."""
        chosen = f" ({self.memory_choice.mode})" if self.memory_choice else ""
        return f"memory={self.memory}{chosen}"


def free_bytes(device: torch.device) -> int:
    """Memory of a device that nobody uses, what PyTorch holds back for itself included."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    # Pages that are free say too little where files have been read: what the system would give up counts as well.
    facts = Path("/proc/meminfo")
    if facts.exists():
        for line in facts.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    pages = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names), None)
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") if pages else 4 * 2**30

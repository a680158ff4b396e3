"""Inspect a program as its case says."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import torch

import skipway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faults.case import FaultCase


def verdict(case: FaultCase) -> skipway.Inspection:
    """The inspection of a program in its mode, under its autocast region, with its loss and optimizer."""
    model = case.build()
    model.train(case.mode == "train")
    with seeded(), autocast(case):
        return skipway.inspect(
            model,
            case.batch(),
            loss=case.loss,
            optimizer=None if case.optimizer is None else case.optimizer(model),
            profile=case.profile,
        )


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """PyTorch's and Python's generators at a seed, and as they were afterwards."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


def autocast(case: FaultCase) -> contextlib.AbstractContextManager[Any]:
    """The autocast region that a case asks for."""
    amp = case.options.get("amp")
    return torch.autocast("cpu", dtype=getattr(torch, amp)) if amp else contextlib.nullcontext()

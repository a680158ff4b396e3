"""Two training steps under DDP in every memory mode, run by ``torchrun``: memory_ranks.py NAME FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import skipway


def modes_of(name: str) -> tuple[str, ...]:
    """The modes that a model has."""
    return skipway.create_model(name).stack.memory_modes


def trained(name: str, mode: Any) -> dict[str, torch.Tensor]:
    """Weights, buffers and how much the weights of the ranks differ."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = skipway.create_model(name, memory=mode).double()
    x = model.dummy_input(8)[4 * rank : 4 * rank + 4]
    x = x.double() if x.is_floating_point() else x
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    most, least = weights.clone(), weights.clone()
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
    return {**model.state_dict(), "ranks_differ": (most - least).abs().max().float()}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    for mode in modes_of(sys.argv[1]):
        state = trained(sys.argv[1], mode)
        if torch.distributed.get_rank() == 0:
            torch.save(state, Path(sys.argv[2]) / f"{mode}.pt")
    torch.distributed.destroy_process_group()

"""Training steps under DDP and FSDP2, eager and with compiled units, run by ``torchrun``: compile_ranks.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import skipway


def trained(strategy: str, *, compiled: bool) -> dict[str, Any]:
    """Weights and buffers, and how many graphs and kinds there were."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model: Any = skipway.create_model("resnet14@preact", width=8).double()
    x = torch.randn(8, 3, 16, 16).double()[4 * rank : 4 * rank + 4]
    graphs, kinds = 0, 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    if compiled:
        kinds = model.compile_units(backend=counting)
    if strategy == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        for unit in model.stack.units:
            fully_shard(unit)
        wrapped = fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        wrapped(x).square().mean().backward()
        optimizer.step()
    state = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in model.state_dict().items()}
    return {**state, "graphs": graphs, "kinds": kinds}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    for strategy in ("ddp", "fsdp2"):
        for how in ("eager", "compiled"):
            torch._dynamo.reset()
            state = trained(strategy, compiled=how == "compiled")
            if torch.distributed.get_rank() == 0:
                torch.save(state, Path(sys.argv[1]) / f"{strategy}-{how}.pt")
    torch.distributed.destroy_process_group()

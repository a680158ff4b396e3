"""What is recorded does not depend on whether later runs have to find the operations again."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from skipway.trace.record import record
from zoo.restless import Bomb

WIDTH = 8


def _encoder() -> nn.TransformerEncoder:
    """In eval mode and without gradients it runs as one fused operation a layer."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("build", [_encoder, _Attention])
def test_addresses_change_no_operation(build: type[nn.Module]) -> None:
    model = build().eval()
    batch = torch.randn(2, 3, WIDTH)
    seen = [
        [(n.op, n.inputs, n.shape, n.source, n.ordinal) for n in record(model, batch, addresses=addresses).graph.nodes]
        for addresses in (True, False)
    ]
    assert seen[0] == seen[1]
    assert sum(op == "add" for op, *_ in seen[0]) >= 1


@pytest.mark.parametrize("enabled", [True, False])
def test_the_switch_of_fused_paths_is_put_back(enabled: bool) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        record(_encoder(), torch.randn(2, 3, WIDTH), addresses=False)
        assert torch.backends.mha.get_fastpath_enabled() is enabled
        with pytest.raises(ValueError, match="planted"):
            record(Bomb(nn.Linear(WIDTH, WIDTH), [1], ValueError, late=True), torch.randn(2, WIDTH), addresses=False)
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _Forgets(nn.Module):
    """Drops an activation and looks whether its memory is gone."""

    gone: ClassVar[list[bool]] = []  # on the class: what a module holds is put back

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        memory = StorageWeakRef(y.untyped_storage())
        z = y.view(-1).relu().view_as(y)
        del y
        self.gone.append(memory.expired())
        return x + z


@pytest.mark.parametrize("addresses", [True, False])
def test_recording_keeps_no_activation_alive(addresses: bool) -> None:
    _Forgets.gone.clear()
    record(_Forgets(), torch.randn(2, WIDTH), addresses=addresses)
    assert _Forgets.gone == [True]


class _Swaps(nn.Module):
    """Replaces a weight's data in forward, and goes on after an operation that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data * 2
        try:
            x = torch.cat([x, self.weight])
        except RuntimeError:
            x = x * self.weight
        return x


def test_new_data_of_a_parameter_and_a_failed_operation_are_seen() -> None:
    graph = record(_Swaps(), torch.randn(2, WIDTH), addresses=False).graph
    assert [(n.op, n.inputs, n.ordinal) for n in graph.nodes] == [
        ("input", [], 0),
        ("param", [], 0),
        ("mul", [1], 0),
        ("mul", [0, 2], 1),
    ]

"""Buffers come back bit by bit, whatever their shape, type and layout; those that did not change are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from skipway.trace.buffers import Buffers

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFERS: dict[str, Callable[[], Tensor]] = {
    "scalar": lambda: torch.tensor(1.5),
    "counter": lambda: torch.tensor(3),
    "vector": lambda: torch.randn(5),
    "truth values": lambda: torch.rand(6) > 0.5,
    "mask": lambda: torch.ones(1, 1, 16, 16, dtype=torch.bool).tril(),
    "odd number of bytes": lambda: torch.ones(3, 3, dtype=torch.bool),
    "transposed": lambda: torch.randn(3, 4).t(),
    "part of another": lambda: torch.randn(9)[1:],
    "half precision": lambda: torch.randn(4, 4).half(),
    "complex": lambda: torch.randn(4, dtype=torch.complex64),
    "not a number": lambda: torch.full((4,), torch.nan),
}


def _bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


@pytest.mark.parametrize("touched", BUFFERS)
def test_what_was_written_comes_back_and_the_rest_is_not_written(touched: str) -> None:
    torch.manual_seed(0)
    buffers = {name: make() for name, make in BUFFERS.items()}
    before = {name: _bits(b) for name, b in buffers.items()}
    snapshot = Buffers(buffers.values())
    buffers[touched].fill_(0)
    versions = {name: b._version for name, b in buffers.items()}
    snapshot.restore()
    assert {name: _bits(b) for name, b in buffers.items()} == before
    written = {name for name, b in buffers.items() if b._version != versions[name]}
    assert touched in written
    assert written <= {touched, "not a number"}  # which equals nothing, so it may be written again


def test_the_sign_of_zero_comes_back() -> None:
    for shape in ((4,), (2, 4)):
        buffer = torch.zeros(shape)
        snapshot = Buffers([buffer])
        buffer.neg_()
        snapshot.restore()
        assert not buffer.signbit().any()


def test_a_buffer_with_other_memory_gets_its_own_back() -> None:
    buffer = torch.randn(4)
    address, before = buffer.data_ptr(), buffer.tolist()
    snapshot = Buffers([buffer])
    buffer.data = torch.randn(2, 3)
    snapshot.restore()
    assert (buffer.data_ptr(), buffer.tolist()) == (address, before)

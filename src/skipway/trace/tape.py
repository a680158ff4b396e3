"""What a run does, noted as bare facts, operation by operation.

While a model runs, every kernel drives our code and data out of the processor's caches, so the mode that sees the
operations notes as little as it can. The graph is made of the notes in one go: see `skipway.trace.playback`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn

from skipway.errors import SkipwayError
from skipway.trace.mode import DispatchMode, in_backward
from skipway.trace.operation import Operation, attributes, known_operations, operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.trace.modules import ModuleStack
    from skipway.trace.preserve import Preserved

__all__ = ["Address", "Event", "Seen", "Tape"]

_NO_STORAGE: Final = (NotImplementedError, RuntimeError, ValueError)

Address: TypeAlias = tuple[int, str, int]
"""The torch function call in which an operation runs: module call, name, count."""
Seen: TypeAlias = tuple[Any, int | None, tuple[int, ...], tuple[int, ...] | None, torch.dtype]
"""What a tensor is known by: a storage and what of it the tensor shows (offset, shape, strides, dtype).

Layouts without a storage have the object instead, and neither offset nor strides.
"""
Event: TypeAlias = tuple[
    Operation,
    int,
    Address | None,
    "list[Seen | None] | None",
    "dict[str, Any] | tuple[Any, ...]",
    "Seen | list[Seen] | None",
    "list[tuple[Seen, bool]] | None",
    int,
]
"""One operation (a tuple, as a class takes four times as long to fill):

what ran; in which module call; in which torch function call; the tensors it read, with None for those left out, or None
altogether for what leaves no node; its attributes, or else the arguments from `Operation.tail` on; what it returned;
the tensors it wrote to if it did, and whether each covers its storage; its FLOPs, or −1 if they are to be worked out.
"""


class Tape(DispatchMode):
    """Notes every operation that is dispatched while it is open.

    A tensor is known by what it shows of which storage, not by its Python object; weak references keep storage
    addresses from being reused without keeping their memory.
    """

    def __init__(self, stack: ModuleStack, snapshot: Preserved, address: Callable[[], Address | None] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.events: list[Event] = []
        self.leaves: dict[Any, tuple[str, int]] = {}
        self.trained: set[Any] = set()
        self._stack, self._snapshot, self._address = stack, snapshot, address
        self._owned: dict[int, Seen] = {}
        self._held: set[Any] = set()
        self._alive: list[torch.Tensor] = []
        self._weak: list[int] = []

    def close(self) -> None:
        """Give the weak references back."""
        for reference in self._weak:
            torch.UntypedStorage._free_weak_ref(reference)
        self._weak.clear()

    def own(self, modules: list[tuple[str, nn.Module]], names: list[str], sizes: list[int]) -> None:
        """Learn which storages are parameters and buffers; list the parameters' names and sizes."""
        leaves = self.leaves
        for prefix, module in modules:
            for name, parameter in module._parameters.items():  # noqa: SLF001  # the public walk takes ten times as long
                if parameter is None:
                    continue
                path = f"{prefix}.{name}" if prefix else name
                if issubclass(
                    type(parameter), nn.UninitializedParameter
                ):  # `isinstance` of a parameter is a call into Python
                    raise SkipwayError(
                        f"parameter {path!r} is not initialised (a lazy module)", "a model that has run once",
                        "model(*batch) before",
                    )  # fmt: skip
                seen = _seen(parameter)
                if seen[1] is not None:
                    self._owned[id(parameter)] = seen
                if seen[0] not in leaves:
                    leaves[seen[0]] = ("param", len(names))
                    names.append(path)
                    sizes.append(parameter.numel())
            for buffer in module._buffers.values():  # noqa: SLF001  # as above
                if buffer is not None:
                    leaves.setdefault(_storage(buffer), ("const", 0))
        self._held.update(leaves)  # what the model owns stays alive by itself

    def see(self, tensor: torch.Tensor) -> Seen:
        """What `tensor` is known by until the tape is closed."""
        try:
            storage = tensor.untyped_storage()
        except _NO_STORAGE:
            self._alive.append(tensor)
            return _seen(tensor)
        key = storage._cdata
        if key not in self._held:
            self._held.add(key)
            self._weak.append(storage._weak_ref())  # type: ignore[arg-type]  # an address
            if tensor.requires_grad:
                self.trained.add(key)
        return key, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype  # type: ignore[return-value]  # no SymInt here

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if in_backward():  # what it adds up is no sum of the model's
            return func(*args, **kwargs or {})
        known = known_operations.get(func) or operation(func)
        call = self._stack.top
        address = None if self._address is None else self._address()
        if known.makes_space:  # unwritten memory has no history; it is met as a constant if it is ever read
            self.events.append((known, call, address, None, (), None, None, 0))
            return func(*args, **kwargs or {})
        inputs: list[Seen | None] = []
        for value in known.inputs(args, kwargs or {}) if known.lists or kwargs else args[: known.reads]:
            if isinstance(value, torch.Tensor):
                seen = self._owned.get(id(value))
                if seen is None or seen[0] != value.untyped_storage()._cdata:  # `.data` may have been replaced
                    seen = self.see(value)
                inputs.append(seen)
            else:
                inputs.append(None)
        written: list[torch.Tensor] = []
        if known.writes:
            if self._is_counter(inputs):
                self.events.append((known, call, address, None, (), None, None, 0))
                return func(*args, **kwargs or {})
            written = known.written(args, kwargs or {})
            for tensor in written:
                self._snapshot.before_write(_storage(tensor))
        late = known.read_late and not kwargs
        arguments = args[known.tail :] if late else attributes(known, args, kwargs or {})
        try:
            out = self.compute(known, inputs, args, kwargs or {})
        except BaseException:  # the model may catch it; what was read counts all the same
            self.events.append((known, call, address, inputs, arguments, None, None, 0))
            raise
        flops = 0
        if known.flops is not None:
            flops = -1 if late and known.counted_late else known.count(args, kwargs or {}, out)
        result: Seen | list[Seen] | None = None
        changed = None
        if written and not known.normalises:
            changed = [self._changed(tensor) for tensor in written]
            result = self.see(out) if flops else self._beside(out, written, changed)
        elif isinstance(out, torch.Tensor):
            result = self.see(out)
        elif isinstance(out, (tuple, list)):
            result = [self.see(o) for o in out if isinstance(o, torch.Tensor)]
        self.events.append((known, call, address, inputs, arguments, result, changed, flops))
        return out

    def compute(
        self,
        known: Operation,
        inputs: list[Seen | None],  # noqa: ARG002  # for tapes that compute less
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of an operation that reads `inputs`."""
        return known.run(*args, **kwargs) if kwargs else known.run(*args)

    @staticmethod
    def storage(tensor: torch.Tensor) -> Any:
        """What tells a tensor's storage from others."""
        return _storage(tensor)

    def _is_counter(self, inputs: list[Seen | None]) -> bool:
        """Whether a counter of the model's own, such as BatchNorm's, is all that takes part."""
        whole = [s for s in inputs if s is not None and not (s[4].is_floating_point or s[4].is_complex)]
        return len(whole) == 1 and whole[0][0] in self.leaves and sum(s is not None for s in inputs) == 1

    def _beside(self, out: Any, written: list[torch.Tensor], changed: list[tuple[Seen, bool]]) -> list[Seen] | None:
        """What an operation gives beside what it writes to: a random ReLU writes its noise, a cache what it keeps."""
        if out is written[0]:
            return None
        results = out if isinstance(out, (tuple, list)) else (out,)
        given = [self.see(one) for one in results if isinstance(one, torch.Tensor)]
        return [seen for seen in given if all(seen != one for one, _ in changed)] or None

    def _changed(self, tensor: torch.Tensor) -> tuple[Seen, bool]:
        """A tensor after it was written to, which may have changed its shape, and whether it covers its storage."""
        seen = self.see(tensor)
        if id(tensor) in self._owned:
            self._owned[id(tensor)] = seen
        return seen, seen[1] is None or tensor.nbytes >= tensor.untyped_storage().nbytes()


def _storage(tensor: torch.Tensor) -> Any:
    """What tells a storage from others; for layouts without one the object itself."""
    try:
        return tensor.untyped_storage()._cdata
    except _NO_STORAGE:
        return ("object", id(tensor))


def _seen(tensor: torch.Tensor) -> Seen:
    storage = _storage(tensor)
    if type(storage) is tuple:
        return storage, None, tensor.shape, None, tensor.dtype
    return storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype  # type: ignore[return-value]  # as above

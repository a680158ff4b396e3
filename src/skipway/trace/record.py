"""Record one forward run, operation by operation: a dispatch mode for the graph, a function mode for addresses.

The dispatch mode sees what is really computed (in-place writes, views, scripted and checkpointed code, the inside of
custom autograd functions). The function mode gives each operation an address that later runs can find again, and its
presence alone switches off fused paths that would hide a join; where no later run follows it is left out (4 % of the
time of an inspection) and the fused paths are switched off by name.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from skipway.errors import SkipwayError
from skipway.trace import ops
from skipway.trace.batch import Batch, call_arguments, copied, output_tensors, tensors_of
from skipway.trace.graph import CONST, PARAM, Graph, Node
from skipway.trace.mode import DispatchMode
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.operation import Operation, attributes, operation
from skipway.trace.preserve import Preserved, preserved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Trace", "record"]

_SPLITS: Final = frozenset(
    ["split", "split_with_sizes", "chunk", "unbind", "unsafe_split", "unsafe_chunk", "tensor_split"]
)


@dataclass
class Trace:
    """A recorded run: its graph and how much of the model it saw."""

    graph: Graph
    operations: int
    writes_parameters: bool


class _Addresses(TorchFunctionMode):
    """Keeps the address of the torch function that is being called."""

    def __init__(self, stack: ModuleStack) -> None:
        super().__init__()
        self.current: tuple[int, str, int] | None = None
        self._stack = stack
        self._counts: defaultdict[tuple[int, str], int] = defaultdict(int)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":  # a property such as Tensor.shape
            return func(*args, **kwargs) if kwargs else func(*args)
        top = self._stack.top
        ordinal = self._counts[top, name]
        self._counts[top, name] = ordinal + 1
        before = self.current
        self.current = (top, name, ordinal)
        try:
            return func(*args, **kwargs) if kwargs else func(*args)
        finally:
            self.current = before


class _Recorder(DispatchMode):
    """Turns dispatched operations into nodes.

    A tensor is known by what it shows of which storage, not by its Python object; weak references keep storage
    addresses from being reused without keeping their memory.
    """

    def __init__(self, graph: Graph, stack: ModuleStack, addresses: _Addresses | None, snapshot: Preserved) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.graph, self.count = graph, 0
        self._stack, self._addresses, self._snapshot = stack, addresses, snapshot
        self._leaves: dict[int, tuple[str, int]] = {}
        self._views: dict[Any, dict[Any, tuple[int, int]]] = {}
        self._writes: defaultdict[Any, list[tuple[int, int, bool, Any]]] = defaultdict(list)
        self._alive: list[torch.Tensor] = []
        self._weak: list[int] = []
        self._time = 0
        self._ordinals: dict[tuple[int, str], int] = {}

    def close(self) -> None:
        """Give the weak references back."""
        for reference in self._weak:
            torch.UntypedStorage._free_weak_ref(reference)
        self._weak.clear()

    def own(self, modules: list[tuple[str, nn.Module]]) -> None:
        """Learn which storages are parameters and buffers."""
        leaves, names, sizes = self._leaves, self.graph.parameter_names, self.graph.parameter_sizes
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
                storage = _storage(parameter)
                if storage not in leaves:
                    leaves[storage] = ("param", len(names))
                    names.append(path)
                    sizes.append(parameter.numel())
            for buffer in module._buffers.values():  # noqa: SLF001  # as above
                if buffer is not None:
                    leaves.setdefault(_storage(buffer), ("const", 0))

    def _is_owned(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_complex() and _storage(tensor) in self._leaves

    def know(self, tensor: torch.Tensor, node: int, *, write: bool = False) -> None:
        """Remember that `tensor` holds the value of `node`."""
        storage, view = _identity(tensor)
        self._time += 1
        shown = self._views.get(storage)
        if shown is None:
            shown = self._views[storage] = {}
            if view is None:
                self._alive.append(tensor)
            elif storage not in self._leaves:  # what the model owns stays alive by itself
                self._weak.append(tensor.untyped_storage()._weak_ref())  # type: ignore[arg-type]  # an address
        shown[view] = (node, self._time)
        if write:
            covers = view is None or tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
            self._writes[storage].append((self._time, node, covers, view))

    def read(self, tensor: torch.Tensor) -> int:
        """The node whose value `tensor` holds now."""
        storage, view = _identity(tensor)
        shown = self._views.get(storage)
        if shown is None:
            return self._first_sight(tensor, storage, view)
        entry = shown.get(view)
        if entry is None:  # an alias made where dispatch does not see it
            latest = max(shown.values(), key=lambda e: e[1])[0]
            node = self.graph.add("alias", [latest], {}, tensor, self._stack.top)
            self.know(tensor, node.id)
            return node.id
        known, since = entry
        writes = self._writes.get(storage)
        if not writes or writes[-1][0] <= since:
            return known
        newer = [w for w in writes if w[0] > since and not _disjoint(w[3], view)]
        if not newer:
            return known
        covers = newer[-1][2]
        sources = [newer[-1][1]] if covers else [known, *(w[1] for w in newer)]
        node = self.graph.add("alias" if covers else "merge", sources, {}, tensor, self._stack.top)
        self.know(tensor, node.id)
        return node.id

    def _first_sight(self, tensor: torch.Tensor, storage: Any, view: Any) -> int:
        kind, number = self._leaves.get(storage, ("const", 0))
        if kind == "param" or (tensor.requires_grad and tensor.is_leaf):
            node = self.graph.leaf("param", tensor, taint=PARAM, params=1 << number if kind == "param" else 0)
        else:
            node = self.graph.leaf("const", tensor, taint=CONST)
        if storage in self._leaves:  # what the model owns stays alive by itself
            self._time += 1
            self._views[storage] = {view: (node.id, self._time)}
        else:
            self.know(tensor, node.id)
        return node.id

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = operation(func)
        op = known.op
        self.count += 1
        call = self._stack.top
        place = (call, op)
        self._ordinals[place] = ordinal = self._ordinals.get(place, -1) + 1
        if known.makes_space:  # unwritten memory has no history; it is met as a constant if it is ever read
            return func(*args, **kwargs)
        tensors = known.inputs(args, kwargs)
        if known.writes and len(tensors) == 1 and not tensors[0].is_floating_point() and self._is_owned(tensors[0]):
            return func(*args, **kwargs)  # a counter of the model's own, such as BatchNorm's
        # A norm's statistics are no part of the signal.
        inputs = list(map(self.read, tensors[:3] if known.normalises else tensors))
        attrs = attributes(known, args, kwargs) if known.read or op == "lerp" else {}
        written: list[torch.Tensor] = []
        if known.writes:
            written = known.written(args, kwargs)
            for tensor in written:
                self._snapshot.before_write(_storage(tensor))
        out = known.run(*args, **kwargs)
        if op in ("detach", "alias") and _identity(out) == _identity(tensors[0]):
            return out  # the same numbers in the same place: whoever reads either reads the one that was made first
        graph = self.graph
        add = graph.new if known.plain else graph.add
        first = len(graph.nodes)
        if written and not known.normalises:
            sources = (inputs[1:] or inputs) if op == "copy" else inputs
            for tensor in written:
                self.know(tensor, add(op, sources, attrs, tensor, call).id, write=True)
        elif isinstance(out, torch.Tensor):
            node = add(op, inputs, attrs, out, call)
            if not known.is_view:
                node.nbytes = out.numel() * out.element_size()
            self.know(out, node.id)
        elif isinstance(out, (tuple, list)):
            self._record_several(known, inputs, attrs, [o for o in out if isinstance(o, torch.Tensor)], call)
        if attrs and op in ops.MULTIPLY and self._addresses is not None:
            self._note_size(graph.nodes[-1], args)
        caller = self._addresses.current if self._addresses is not None else None
        for node in graph.nodes[first:]:
            node.ordinal, node.source, node.caller = ordinal, op, caller
        if known.flops is not None and first < len(graph.nodes):
            graph.nodes[first].flops = known.count(args, kwargs, out)
        return out

    def _note_size(self, node: Node, args: tuple[Any, ...]) -> None:
        """Keep the size of what multiplies data (a layer scale): a later run has to know it in advance."""
        if not node.data or len(node.inputs) != 2 or not all(isinstance(a, torch.Tensor) for a in args[:2]):
            return
        for i, tensor in zip(node.inputs, args, strict=False):
            source = self.graph.nodes[i]
            if not source.data and source.floating and tensor.device.type != "meta":
                node.attrs["size"] = torch.linalg.vector_norm(tensor) / max(tensor.numel(), 1) ** 0.5

    def _record_several(
        self, known: Operation, inputs: list[int], attrs: dict[str, Any], outputs: list[torch.Tensor], call: int
    ) -> None:
        op = known.op
        if op in _SPLITS:
            for i, tensor in enumerate(outputs):
                self.know(tensor, self.graph.add(op, inputs, {**attrs, "part": i}, tensor, call).id)
            return
        if not outputs:
            return
        main = (self.graph.new if known.plain else self.graph.add)(op, inputs, attrs, outputs[0], call)
        self.know(outputs[0], main.id)
        main.nbytes = sum(o.numel() * o.element_size() for o in outputs)
        if known.normalises:  # the statistics; should one be read after all, it counts as a constant
            return
        for tensor in outputs[1:]:  # masks, further states
            same = tensor.shape == outputs[0].shape
            extra = self.graph.add(op if same else "getitem", [main.id], {"extra": True}, tensor, call)
            self.know(tensor, extra.id)


def record(model: nn.Module, batch: Batch, *, addresses: bool = True) -> Trace:
    """Run `model` once on a copy of `batch` without gradients and return what happened; the model is left as it was.

    Args:
        model: any module; it runs eagerly, in the mode it is in.
        batch: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        addresses: whether later runs have to find the operations again.
    """
    args, kwargs = copied(call_arguments(batch))
    graph = Graph()
    with (
        preserved(model) as snapshot,
        eager(),
        ModuleStack(model, graph.calls, snapshot.modules) as stack,
        torch.no_grad(),
    ):
        called = _Addresses(stack) if addresses else None
        recorder = _Recorder(graph, stack, called, snapshot)
        try:
            recorder.own(snapshot.modules)
            for tensor in tensors_of((args, kwargs)):
                recorder.know(tensor, graph.leaf("input", tensor, data=True).id)
            with recorder, called or _unfused():
                output = model(*args, **kwargs)
            for tensor in output_tensors(output):
                graph.outputs.append(recorder.read(tensor))
        finally:
            recorder.close()
        writes = snapshot.parameters_written
    graph.reseed()
    return Trace(graph, recorder.count, writes)


@contextmanager
def _unfused() -> Iterator[None]:
    """Attention and transformer layers run operation by operation."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _storage(tensor: torch.Tensor) -> Any:
    """What tells a storage from others; for layouts without one the object itself."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError, ValueError):
        return ("object", id(tensor))


def _identity(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Storage and what is shown of it."""
    storage = _storage(tensor)
    if type(storage) is tuple:
        return storage, None
    return storage, (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def _disjoint(a: Any, b: Any) -> bool:
    """Whether two views of one storage certainly share no element: parts of a chunk, columns of a matrix.

    With equal strides both are boxes in one grid; they share nothing if their intervals in some dimension do not meet.
    """
    if a is None or b is None or a[2] != b[2] or 0 in a[2]:
        return False
    here, there = a[0], b[0]
    for stride, size_a, size_b in sorted(zip(a[2], a[1], b[1], strict=True), reverse=True):
        start_a, here = divmod(here, stride)
        start_b, there = divmod(there, stride)
        if start_a + size_a <= start_b or start_b + size_b <= start_a:
            return True
    return False

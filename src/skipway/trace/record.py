"""Record one forward run, operation by operation: a dispatch mode for the graph, a function mode for addresses.

The dispatch mode sees what is really computed (in-place writes, views, scripted and checkpointed code, the inside of
custom autograd functions). The function mode gives each operation an address that later runs can find again, and its
presence alone switches off fused paths that would hide a join; where no later run follows it is left out (4 % of the
time of an inspection) and the fused paths are switched off by name.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from skipway.errors import SkipwayError
from skipway.trace import ops
from skipway.trace.batch import Batch, call_arguments, copied, output_tensors, tensors_of
from skipway.trace.graph import Graph
from skipway.trace.mode import with_gradients
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.operation import operation
from skipway.trace.playback import Playback, Raised
from skipway.trace.preserve import Preserved, preserved
from skipway.trace.spared import LookedAtError, SparingTape, has_hooks
from skipway.trace.tape import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

__all__ = ["Trace", "record"]


@dataclass
class Trace:
    """A recorded run: its graph and how much of the model it saw.

    Args:
        graph: operations and module calls.
        operations: how many operations ran.
        writes_parameters: whether the model wrote to its own parameters.
        error: what the model raised, if it did and a partial record was asked for; the graph then ends there, and its
            outputs are the values that the operation read that raised.
        raised: that operation.
        drawn_from: the global random number generators that moved: ``torch``, ``python``, ``numpy``.
        modules: the model's modules in order, each once, under its first name.
        runs: how often the model was run for it.
    """

    graph: Graph
    operations: int
    writes_parameters: bool
    error: Exception | None = None
    raised: Raised | None = None
    drawn_from: frozenset[str] = frozenset()
    modules: Sequence[tuple[str, nn.Module]] = ()
    runs: int = 1


_NO_GRAPH: Final = "does not require grad and does not have a grad_fn"


class _NeedsGradientsError(Exception):
    """The model differentiates in its forward pass."""


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


class _SizingTape(Tape):
    """Keeps the sizes of what multiplies data (a layer scale): a later run has to know them in advance."""

    def __init__(self, stack: ModuleStack, snapshot: Preserved, addresses: _Addresses) -> None:
        super().__init__(stack, snapshot, lambda: addresses.current)
        self.playback: Playback | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.playback is not None and operation(func).op in ops.MULTIPLY:
            self.playback.play()  # what is data is known only now
            self._note_size(self.playback.graph, args)
        return out

    @staticmethod
    def _note_size(graph: Graph, args: tuple[Any, ...]) -> None:
        node = graph.nodes[-1]
        if not node.data or len(node.inputs) != 2 or not all(isinstance(a, torch.Tensor) for a in args[:2]):
            return
        for i, tensor in zip(node.inputs, args, strict=False):
            source = graph.nodes[i]
            if not source.data and source.floating and tensor.device.type != "meta":
                node.attrs["size"] = torch.linalg.vector_norm(tensor) / max(tensor.numel(), 1) ** 0.5


def record(
    model: nn.Module,
    batch: Batch,
    *,
    addresses: bool = True,
    partial: bool = False,
    around: AbstractContextManager[Any] | None = None,
    values: bool = True,
) -> Trace:
    """Run `model` once on a copy of `batch` without gradients and return what happened; the model is left as it was.

    Args:
        model: any module; it runs eagerly, in the mode it is in.
        batch: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        addresses: whether later runs have to find the operations again.
        partial: where the model raises inside an operation, give what happened until then instead of raising.
        around: held open while the model runs (a mode that changes what it does).
        values: whether products are computed from the first; without (and without addresses), only if the model looks
            at numbers that come of them, or raises: it is then run again (see `skipway.trace.spared`).
    """
    runs = 1
    if not values:
        with suppress(LookedAtError, _NeedsGradientsError):
            return _recorded(model, batch, addresses=False, partial=partial, around=around, values=False)
        runs = 2
    trace = None
    # Without gradients no graph is kept; a model that differentiates in its forward pass says that it needs one.
    with suppress(_NeedsGradientsError):
        trace = _recorded(model, batch, addresses=addresses, partial=partial, around=around, values=True)
    if trace is None:
        runs += 1
        trace = _recorded(
            model, batch, addresses=addresses, partial=partial, around=around, values=True, gradients=True
        )
    trace.runs = runs
    return trace


def _recorded(
    model: nn.Module,
    batch: Batch,
    *,
    addresses: bool,
    partial: bool,
    around: AbstractContextManager[Any] | None,
    values: bool,
    gradients: bool = False,
) -> Trace:
    args, kwargs = call_arguments(batch)
    if any(tensor.is_nested for tensor in tensors_of((args, kwargs))):
        raise SkipwayError(
            "a nested (jagged) tensor in the batch, whose rows differ in length", "padded tensors",
            "torch.nested.to_padded_tensor(x, 0.0)",
        )  # fmt: skip
    args, kwargs = copied((args, kwargs))
    graph = Graph(takes_gradients=gradients)
    with (
        preserved(model) as snapshot,
        eager(),
        ModuleStack(model, graph.calls, snapshot.modules) as stack,
        with_gradients(gradients),
    ):
        called = _Addresses(stack) if addresses else None
        tape = Tape(stack, snapshot, None) if called is None else _SizingTape(stack, snapshot, called)
        sparing = None
        if not values and not has_hooks(module for _, module in snapshot.modules):
            tape = sparing = SparingTape(stack, snapshot)
        playback = Playback(graph, tape)
        if isinstance(tape, _SizingTape):
            tape.playback = playback
        try:
            tape.own(snapshot.modules, graph.parameter_names, graph.parameter_sizes)
            for tensor in tensors_of((args, kwargs)):
                seen = tape.see(tensor)
                playback.know(seen, graph.leaf("input", seen[2], seen[4], data=True).id)
                if sparing is not None:
                    sparing.given(seen)
            error: Exception | None = None
            output = None
            try:
                watched = nullcontext() if sparing is None else sparing.watched()
                with watched, tape, called or _unfused(), around or nullcontext():
                    output = model(*args, **kwargs)
            except (Exception, SystemExit) as raised:
                if sparing is not None and sparing.spared:
                    raise LookedAtError from raised  # perhaps by what was not computed
                if not gradients and _NO_GRAPH in str(raised):
                    raise _NeedsGradientsError from raised
                if not partial or not isinstance(raised, Exception):
                    raise
                error = raised
            if sparing is not None and sparing.looked_at:
                raise LookedAtError  # the model went on regardless
            playback.play()
            graph.outputs += [playback.read(tape.see(tensor), stack.top) for tensor in output_tensors(output)]
            if error is not None:
                if playback.raised is None or not playback.raised.inputs:
                    raise error
                graph.outputs += playback.raised.inputs
        finally:
            tape.close()
        writes, drawn_from = snapshot.parameters_written, snapshot.drawn_from
    graph.reseed()
    raised_at = None if error is None else playback.raised
    return Trace(graph, playback.count, writes, error, raised_at, drawn_from, snapshot.modules)


@contextmanager
def _unfused() -> Iterator[None]:
    """Attention and transformer layers run operation by operation."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)

"""Intercept the calls of a model: change what chosen torch function calls do, in every call of the model by anybody.

While `intercepted` is open, each call ``model(...)`` runs as a recorded run does: eagerly, with its module calls
counted and fused paths opened, so that the addresses of a recording (see `skipway.units.locate`) hold. At an address
with an edit, the edit is called in place of the torch function; it may change the operands, go on, and change the
result::

    def halved(run, go_on, func, args, kwargs):      # half of this call's second operand
        with run.aside():                            # arithmetic of one's own is not counted and not intercepted
            half = args[1] * 0.5
        return go_on(args[0], half, **kwargs)

    with intercepted(model, Plan(edits={address: [halved]})):
        loss = criterion(model(x), y)
        loss.backward()                              # checkpointed parts are computed again under the same edits

Nothing is put on a module but on the model itself, where PyTorch looks for its compiled call, and that is taken away
again. Contexts can be nested: the edits of the outer one come first.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from skipway.errors import SkipwayError
from skipway.trace.addressed import AddressedMode
from skipway.trace.batch import tensors_of, unwrapped
from skipway.trace.modules import ModuleStack, eager
from skipway.units.recompute import recomputed_alike

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from skipway.trace.graph import Address, ModuleCall

__all__ = ["Edit", "Look", "Plan", "Run", "bare", "intercepted", "shows_same"]

_PLACE: Final = "_compiled_call_impl"

Edit: TypeAlias = "Callable[[Run, Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]"
"""``edit(run, go_on, func, args, kwargs)``: stands in for ``func(*args, **kwargs)`` and returns what the model gets.

``go_on(*args, **kwargs)`` runs the function (through the edits of contexts within); leaving it out skips the call.
"""
Look: TypeAlias = "Callable[[Run, Any], None]"
"""``look(run, result)``: sees what a call gave after all edits."""


@dataclass(frozen=True)
class Plan:
    """What to do in each call of a model.

    Args:
        edits: edits by address, in order.
        looks: what looks at results by address, after the edits of all contexts.
        starts: called at the start of each call with the tensors that the model was called with.
        names: what is said of an address that a call has not met: ``"unit 'layer1.0'"``. A call that ends without
            having met an address of `names` is an error; addresses that are not in it may stay away.
        alters: whether edits change anything; those that only read run inside custom autograd functions, too.
    """

    edits: Mapping[Address, Sequence[Edit]] = field(default_factory=dict)
    looks: Mapping[Address, Sequence[Look]] = field(default_factory=dict)
    starts: Sequence[Callable[[Run, list[torch.Tensor]], None]] = ()
    names: Mapping[Address, str] = field(default_factory=dict)
    alters: bool = True


@dataclass(frozen=True, slots=True)
class _Planned:
    address: Address
    edits: tuple[Edit, ...]
    looks: tuple[Look, ...]
    alters: bool = True


class _CountingStack(ModuleStack):
    """A module stack that can be stopped, and taken up again where it was."""

    def __init__(
        self,
        model: nn.Module,
        calls: list[ModuleCall] | None = None,
        numbers: dict[str, int] | None = None,
        top: int = 0,
    ) -> None:
        super().__init__(model, calls)
        self._numbers = numbers if numbers is not None else {}
        self._open, self.top = [top], top
        self.stopped = False

    def _begin(self, module: nn.Module, args: Any) -> int:
        return self.top if self.stopped else super()._begin(module, args)

    def state(self) -> tuple[list[ModuleCall], dict[str, int], int]:
        """All that a later stack needs to go on from here."""
        return list(self.calls), dict(self._numbers), self.top


class Run(AddressedMode[_Planned]):
    """One call of an intercepted model, or the part of one that is computed again in the backward pass.

    Args:
        plan: what is planned, by address.
        stack: the open module stack.
        again: whether this is a recomputation.
    """

    def __init__(self, plan: Mapping[Address, _Planned], stack: _CountingStack, *, again: bool = False) -> None:
        super().__init__(plan, stack)
        self.held: dict[Hashable, Any] = {}
        """Values that edits hand on to later ones. Take out what is needed no more: recomputation keeps the rest."""
        self.met: set[Address] = set()
        self.again = again
        self._counting = stack
        self._with_gradients = torch.is_grad_enabled()

    def at(self, planned: _Planned, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a planned call through its edits, and show what it gave."""
        self.met.add(planned.address)
        if planned.alters and planned.edits and self._with_gradients and not torch.is_grad_enabled():
            _refuse_in_function(planned.address)
        go_on = func
        for edit in reversed(planned.edits):
            go_on = _through(edit, self, go_on, func)
        result = go_on(*args, **kwargs)
        for look in planned.looks:
            look(self, result)
        return result

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Torch functions and module calls inside are no part of the model's run: not counted, seen by no mode."""
        before, self._counting.stopped = self._counting.stopped, True
        try:
            with torch._C.DisableTorchFunction():  # noqa: SLF001  # switches off modes too; there is no public name
                yield
        finally:
            self._counting.stopped = before

    def replay(self, model: nn.Module) -> Callable[[Callable[..., Any], tuple[Any, ...]], Any]:
        """What runs a function again, later, as it would run now: from here, with the same edits."""
        calls, numbers, top = self._counting.state()
        counts, held, plan = dict(self._counts), dict(self.held), self._plan

        def again(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
            with eager(), _CountingStack(model, list(calls), dict(numbers), top) as stack:
                run = Run(plan, stack, again=True)
                run._counts.update(counts)
                run.held.update(_rebound(held, inputs))
                with run, recomputed_alike(lambda: run.replay(model)):
                    return function(*inputs)

        return again


def _refuse_in_function(address: Address) -> None:
    """Raise where an edit would change what a custom autograd function gives, but not its gradients."""
    functions: dict[Any, type] = {}
    pending = torch.autograd.Function.__subclasses__()
    while pending:
        function = pending.pop()
        pending += function.__subclasses__()
        functions[getattr(inspect.unwrap(function.forward), "__code__", None)] = function
    frame = inspect.currentframe()
    while frame is not None:
        inside = functions.get(frame.f_code)
        if inside is not None and inside is not CheckpointFunction:
            raise SkipwayError(
                f"{address.function} #{address.ordinal} in {address.path or '<root>'!r} runs inside the autograd "
                f"function {inside.__name__}, whose backward pass would not follow an alteration",
                "an alteration elsewhere, or calls without gradients",
                "with torch.no_grad(): model(...)",
            )
        frame = frame.f_back


def _through(edit: Edit, run: Run, go_on: Callable[..., Any], func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: edit(run, go_on, func, args, kwargs)


def _rebound(held: dict[Hashable, Any], inputs: Any) -> dict[Hashable, Any]:
    """Held values, with those that are inputs of a recomputation replaced by its own: gradients go by these."""
    given = tensors_of(inputs)
    return {
        key: next((t for t in given if isinstance(value, torch.Tensor) and shows_same(t, value)), value)
        for key, value in held.items()
    }


def shows_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are one: the same numbers in the same memory."""
    if a is b:
        return True
    with torch._C.DisableTorchFunction():  # noqa: SLF001  # looking is no part of the model's run
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or not a.numel():
            return False
        if a.layout is not torch.strided or b.layout is not torch.strided or a.device.type == "meta":
            return False
        return a.stride() == b.stride() and a.data_ptr() == b.data_ptr()


Source: TypeAlias = "Plan | Callable[[tuple[Any, ...], dict[str, Any]], Plan]"


class _Layer:
    """The plan of one context, made at the first call if it is not given."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        if not isinstance(self._source, Plan):
            self._source = self._source(args, kwargs)
        return self._source


class _Interceptor:
    """Stands where PyTorch looks for a model's compiled call."""

    def __init__(self, model: nn.Module, before: Any) -> None:
        self.model, self.before = model, before
        self.layers: list[_Layer] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with bare(self.model):
            plans = [layer.plan(args, kwargs) for layer in self.layers]
            with eager(), _CountingStack(self.model) as stack:
                run = Run(_merged(plans), stack)
                for plan in plans:
                    for start in plan.starts:
                        start(run, tensors_of((args, kwargs)))
                with run, recomputed_alike(lambda: run.replay(self.model)):
                    output = self.model(*args, **kwargs)
        _check_met(run, plans)
        return output


def _merged(plans: list[Plan]) -> dict[Address, _Planned]:
    addresses = {a for plan in plans for a in (*plan.edits, *plan.looks, *plan.names)}
    return {
        a: _Planned(
            a,
            tuple(edit for plan in plans for edit in plan.edits.get(a, ())),
            tuple(look for plan in plans for look in plan.looks.get(a, ())),
            any(plan.alters for plan in plans if a in plan.edits),
        )
        for a in addresses
    }


def _check_met(run: Run, plans: list[Plan]) -> None:
    for plan in plans:
        missed = [a for a in plan.names if a not in run.met]
        if missed:
            address = missed[0]
            raise SkipwayError(
                f"{plan.names[address]} was not met in this call: "
                f"{address.function} #{address.ordinal} in {address.path or '<root>'!r} did not run",
                "calls that run the same code as the one in which the units were found",
                "batch=, with a batch that takes the same way through the model",
            )


@contextmanager
def intercepted(model: nn.Module, plan: Source) -> Iterator[None]:
    """Within it, every call of the model, by anybody, runs under a plan; afterwards the model is as it was.

    The call has to be one of `model` itself or of a wrapper around it (DDP, a compiled one, which runs eagerly
    meanwhile), not of its ``forward`` method or of a part of it. Works in train and eval mode, under autocast, in
    gradient accumulation, and where parts are checkpointed: what is computed again in the backward pass, even after the
    context has been left, runs under the plan of its forward pass.

    Args:
        model: any module; wrappers are opened.
        plan: what to do; or a function that makes it from the arguments of the first call.

    Raises:
        SkipwayError: the model is spread over several devices by DataParallel; in a call, an address of
            `Plan.names` was not met.
    """
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise SkipwayError(
            f"DataParallel over {len(model.device_ids)} devices: it runs copies of the model",
            "the model itself on one device, or DistributedDataParallel",
            "model.module",
        )
    inner = unwrapped(model)
    place = vars(inner)
    current = place.get(_PLACE)
    if isinstance(current, _Interceptor):
        interceptor = current
    else:
        interceptor = _Interceptor(inner, place.get(_PLACE, _ABSENT))
        place[_PLACE] = interceptor
    layer = _Layer(plan)
    interceptor.layers.append(layer)
    try:
        with eager():
            yield
    finally:
        interceptor.layers.remove(layer)
        if not interceptor.layers:
            _put_back(inner, interceptor.before)


_ABSENT: Final = object()


def _put_back(model: nn.Module, before: Any) -> None:
    while getattr(before, "waits", None) is False:  # a monitor that was closed meanwhile
        before = before.behind
    if before is None or before is _ABSENT:
        vars(model).pop(_PLACE, None)
    else:
        vars(model)[_PLACE] = before


@contextmanager
def bare(model: nn.Module) -> Iterator[None]:
    """The model without what intercepts it, if anything does."""
    interceptor = vars(model).get(_PLACE)
    if not isinstance(interceptor, _Interceptor):
        yield
        return
    _put_back(model, interceptor.before)
    try:
        yield
    finally:
        vars(model)[_PLACE] = interceptor

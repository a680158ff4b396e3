"""Which module call is running: a tree of calls, numbered, kept for one run."""

from __future__ import annotations

import functools
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from typing_extensions import Self

from skipway.trace.attributes import named_modules
from skipway.trace.graph import ModuleCall
from skipway.trace.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

__all__ = ["EAGER", "ModuleStack", "eager"]

_PLACE: Final = "_compiled_call_impl"


class ModuleStack:
    """Context manager: while it is open, `top` is the module call that runs.

    Every call is seen where PyTorch looks for a compiled one, on the class of all modules, as with hooks PyTorch takes
    a slow way through each call; where that place is taken it is seen by global hooks. Nothing is put on the model. A
    call by a module that the model does not own (made during forward) is named after its owner and class.
    """

    def __init__(
        self,
        model: nn.Module,
        calls: list[ModuleCall] | None = None,
        modules: list[tuple[str, nn.Module]] | None = None,
    ) -> None:
        self._calls = calls if calls is not None else [ModuleCall(0, "", 0, -1, 0, "")]
        modules = named_modules(model) if modules is None else modules
        self._names = {id(module): name for name, module in modules}
        self._compiled = any(vars(module).get(_PLACE) is not None for _, module in modules)
        self._log: list[tuple[int, type[nn.Module], int, tuple[int, ...]]] = []
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._open = [0]
        self._handles = ExitStack()
        self._first, self._settled = len(self._calls), 0
        self._numbers: dict[str, int] = {}
        self.top = 0

    def __enter__(self) -> Self:
        if not self._compiled and vars(nn.Module).get(_PLACE, self) is None:

            def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
                outer = self.top
                inner = self._begin(module, args)
                output = None
                try:
                    output = module._call_impl(*args, **kwargs)  # noqa: SLF001  # what is called without this
                    return output
                finally:
                    if inner in self._shapes:
                        self._shapes[inner] = _first_shape(output)
                    self.top = outer

            setattr(nn.Module, _PLACE, run)
            self._handles.callback(setattr, nn.Module, _PLACE, None)
            return self
        for handle in (
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ):
            self._handles.callback(handle.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handles.close()
        calls = self.calls
        for call, shape in self._shapes.items():
            calls[call].output_shape = shape

    @property
    def calls(self) -> list[ModuleCall]:
        """The calls so far; shapes of outputs are filled in at the end."""
        if self._settled < len(self._log):
            self._settle()
        return self._calls

    @property
    def innermost_path(self) -> str:
        """Module path of the running call."""
        return self.calls[self.top].path

    def _begin(self, module: nn.Module, args: Any) -> int:
        """Note a call; its name, number and depth wait till the run is over, as while it lasts all code is slow."""
        log = self._log
        call = self._first + len(log)
        # Shapes tell equal blocks apart; a layer without parts is no block.
        shape: tuple[int, ...] = ()
        if module._modules:  # noqa: SLF001  # `children()` makes a generator each time
            shape = _first_shape(args)
            if shape:
                self._shapes[call] = ()
        log.append((id(module), type(module), self.top, shape))
        self.top = call
        return call

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._open.append(self._begin(module, args))

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        call = self._open.pop()
        if call in self._shapes:
            self._shapes[call] = _first_shape(output)
        self.top = self._open[-1]

    def _settle(self) -> None:
        """List the calls noted so far."""
        calls, numbers = self._calls, self._numbers
        for module, kind, outer, shape in self._log[self._settled :]:
            parent = calls[outer]
            path = self._names.get(module)
            if path is None:
                path = f"{parent.path}?{kind.__name__}"
            numbers[path] = number = numbers.get(path, -1) + 1
            calls.append(ModuleCall(len(calls), path, number, outer, parent.depth + 1, kind.__name__, shape))
        self._settled = len(self._log)


def _first_shape(value: Any) -> tuple[int, ...]:
    """Shape of the first tensor of an argument list or output, as far as it is easily seen."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():  # noqa: SLF001  # else the function mode sees this as the model's doing
            return tuple(value.shape)
    if isinstance(value, (tuple, list)) and value:
        return _first_shape(value[0])
    return ()


@contextmanager
def eager() -> Iterator[None]:
    """Run compiled parts as plain Python, also those that are compiled within; such contexts end in any order."""
    EAGER.take()
    try:
        yield
    finally:
        EAGER.give()


@contextmanager
def _forced_eager() -> Iterator[None]:
    """The compiler takes seconds to import: where nothing was compiled yet it is told when something is."""
    with ExitStack() as ends:
        if "torch._dynamo" in sys.modules:
            ends.enter_context(torch.compiler.set_stance("force_eager"))
        else:
            ends.callback(setattr, torch, "compile", torch.compile)
            torch.compile = _eagerly(torch.compile, ends)
        yield


EAGER: Final = Shared(_forced_eager)


def _eagerly(compile_: Callable[..., Any], ends: ExitStack) -> Callable[..., Any]:
    said = False

    @functools.wraps(compile_)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        nonlocal said
        if not said:
            said = True
            ends.enter_context(torch.compiler.set_stance("force_eager"))
        return compile_(*args, **kwargs)

    return compiled

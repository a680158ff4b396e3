"""Which module call is running: a tree of calls, numbered, kept by hooks that serve one run."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_hooks
from typing_extensions import Self

from skipway.trace.attributes import named_modules
from skipway.trace.graph import ModuleCall

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

__all__ = ["ModuleStack", "eager"]


class ModuleStack:
    """Context manager: while it is open, `top` is the module call that runs.

    Global hooks are used, so nothing is put on the model; a call by a module that the model does not own (made during
    forward) is named after its owner and class.
    """

    def __init__(
        self,
        model: nn.Module,
        calls: list[ModuleCall] | None = None,
        modules: list[tuple[str, nn.Module]] | None = None,
    ) -> None:
        self.calls = calls if calls is not None else [ModuleCall(0, "", 0, -1, 0, "")]
        modules = named_modules(model) if modules is None else modules
        self._names = {id(module): name for name, module in modules}
        self._numbers: dict[str, int] = {}
        self._open = [0]
        self._handles = ExitStack()
        self.top = 0

    def __enter__(self) -> Self:
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

    @property
    def innermost_path(self) -> str:
        """Module path of the running call."""
        return self.calls[self.top].path

    def _enter(self, module: nn.Module, args: Any) -> None:
        parent = self.calls[self.top]
        path = self._names.get(id(module))
        if path is None:
            path = f"{parent.path}?{type(module).__name__}"
        self._numbers[path] = number = self._numbers.get(path, -1) + 1
        # Shapes tell equal blocks apart; a layer without parts is no block.
        shape = _first_shape(args) if module._modules else ()  # noqa: SLF001  # `children()` makes a generator each time
        call = ModuleCall(len(self.calls), path, number, parent.id, len(self._open), type(module).__name__, shape)
        self.calls.append(call)
        self._open.append(call.id)
        self.top = call.id

    def _leave(self, _module: nn.Module, _args: Any, output: Any) -> None:
        call = self.calls[self._open.pop()]
        if call.input_shape:
            call.output_shape = _first_shape(output)
        self.top = self._open[-1]


def _first_shape(value: Any) -> tuple[int, ...]:
    """Shape of the first tensor of an argument list or output, as far as it is easily seen."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():  # noqa: SLF001  # else the function mode sees this as the model's doing
            return tuple(value.shape)
    if isinstance(value, (tuple, list)) and value:
        return _first_shape(value[0])
    return ()


def eager() -> AbstractContextManager[object]:
    """Run compiled parts as plain Python, if anything was compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return ExitStack()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance

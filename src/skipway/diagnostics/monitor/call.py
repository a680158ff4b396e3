"""Catch the next training call of a model, in anybody's loop, and leave the model alone before and after."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.trace.modules import EAGER
from skipway.trace.preserve import is_preserved

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["NextCall"]

_PLACE: Final = "_compiled_call_impl"


class NextCall:
    """While it waits, the next call of a model that builds a graph goes to `caught` in place of the model.

    It stands where PyTorch looks for a model's compiled call: wrappers (DDP, a compiled one) come by there, copies and
    pickles of the model go without it. While it waits, compiled code runs eagerly: a compiled call would not come by.
    Calls without gradients (a validation run) and those of an inspection pass.

    Args:
        model: the inner module; wrappers are opened.
        caught: called once with positional and keyword arguments; gives the model's output.
    """

    def __init__(self, model: nn.Module, caught: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._model, self._caught = model, caught
        self._before: list[Any] = []
        self._holds_eager = False
        self.waits = False
        self.passed = False
        """Whether it gave up waiting because a call without gradients came by that would else have run compiled."""

    @property
    def in_vain(self) -> bool:
        """Whether it waits though all compiled code ran eagerly meanwhile: nobody calls the model, or not to train."""
        return self.waits and (self._holds_eager or not _can_be_compiled())

    @property
    def behind(self) -> Any:
        """What stood in its place before; None if nothing did."""
        return self._before[0] if self._before else None

    def wait(self) -> None:
        """Wait for the next call."""
        place = vars(self._model)
        if not self.waits or _PLACE not in place:  # a what-if run that ended has put back what it had found there
            self.waits, self.passed = True, False
            if getattr(place.get(_PLACE), "before", None) is not self:  # else a what-if run goes on to this one
                self._before = [place[_PLACE]] if place.get(_PLACE, self) is not self else []
                place[_PLACE] = self
        if not self._holds_eager and _can_be_compiled():
            EAGER.take()
            self._holds_eager = True

    def leave(self) -> None:
        """Wait no longer; the model is as it was."""
        self._let_go()
        self._run_compiled()

    def _run_compiled(self) -> None:
        if self._holds_eager:
            self._holds_eager = False
            EAGER.give()

    def _let_go(self) -> None:
        self.waits = False
        place = vars(self._model)
        if place.get(_PLACE) is self:  # else another one stands there, and goes on to this one
            del place[_PLACE]
            before = self._before
            while before and isinstance(before[0], NextCall) and not before[0].waits:
                before = before[0]._before  # noqa: SLF001  # of its own kind, which has left meanwhile
            if before:
                place[_PLACE] = before[0]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for a call of the model."""
        if torch.compiler.is_compiling():  # compiled by a wrapper made later: the next step is measured
            return self._pass(args, kwargs)
        if not self.waits or is_preserved(self._model):
            return self._pass(args, kwargs)
        if not torch.is_grad_enabled():
            if self._holds_eager:  # a whole validation run should not be without compiled code
                self.leave()
                self.passed = True
            return self._pass(args, kwargs)
        self._let_go()
        try:
            return self._caught(args, kwargs)
        finally:
            self._run_compiled()

    def _pass(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = self._before[0] if self._before else None
        return (before or self._model._call_impl)(*args, **kwargs)  # noqa: SLF001  # what is called without this


def _can_be_compiled() -> bool:
    return "torch._dynamo" in sys.modules

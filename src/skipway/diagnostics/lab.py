"""Further runs of the model under inspection, for rules that have a suspicion and want it measured."""

from __future__ import annotations

import random
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import nn

from skipway.diagnostics.look import look
from skipway.diagnostics.measure import projection_loss
from skipway.trace.batch import Batch, call_arguments, copied, output_tensors
from skipway.trace.mode import with_gradients
from skipway.trace.modules import eager
from skipway.trace.preserve import preserved
from skipway.trace.record import Trace, record
from skipway.trace.unfused import Unfused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from skipway.diagnostics.look import Want
    from skipway.diagnostics.measure import Loss
    from skipway.trace.graph import Graph

__all__ = ["Lab", "Mode"]

Mode = Literal["train", "eval"]
_Answer = TypeVar("_Answer")


class Lab:
    """Runs the model on request and leaves it as it was: parameters, buffers, modes, generators.

    A rule asks for a run only after the structure, which costs nothing, has made it suspicious: healthy models pay
    nothing. Every run is counted under the rule's id in `runs`. What the model raises, the method raises: a rule
    decides what that means.

    Args:
        model: the module, read only.
        batch: the batch of the inspection.
        loss: maps the model's output to a scalar; the fixed random projection if None.
        runs: where the runs are counted.
        keep_parameters: put parameters back too, for a model that writes to them in forward.
        takes_gradients: whether the model differentiates in its forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        loss: Loss | None,
        runs: dict[str, int],
        *,
        keep_parameters: bool = False,
        takes_gradients: bool = False,
    ) -> None:
        self.model, self.batch, self._loss, self._runs = model, batch, loss, runs
        self._keep_parameters, self._takes_gradients = keep_parameters, takes_gradients
        self._reentrant = False

    def outputs(
        self,
        rule: str,
        *,
        mode: Mode | None = None,
        batch: Batch | None = None,
        seed: int | None = None,
        around: AbstractContextManager[Any] | None = None,
    ) -> list[torch.Tensor]:
        """All output tensors of one forward run without gradients.

        Args:
            rule: id of the rule that asks.
            mode: run in train or eval mode; by default in the mode of the inspection.
            batch: run on this; by default on the batch of the inspection.
            seed: seed the global generators (PyTorch's, Python's, NumPy's) first; by default they stand where they
                stood at every other run.
            around: held open during the run (a hook, a mode that watches).
        """
        with self._prepared(rule, mode, seed), with_gradients(self._takes_gradients):
            args, kwargs = copied(call_arguments(self.batch if batch is None else batch))
            with around or nullcontext():
                return [t.clone() for t in output_tensors(self.model(*args, **kwargs))]

    def trace(
        self,
        rule: str,
        *,
        mode: Mode | None = None,
        batch: Batch | None = None,
        seed: int | None = None,
        partial: bool = False,
        around: AbstractContextManager[Any] | None = None,
        batch_statistics: bool = False,
    ) -> Trace:
        """A new recording, in another mode, on another batch or with other random numbers; see `record`.

        With `batch_statistics` BatchNorm uses those of the batch in eval mode too.
        """
        with self._prepared(rule, mode, seed, batch_statistics=batch_statistics):
            return record(self.model, self.batch if batch is None else batch, partial=partial, around=around)

    def gradients(
        self,
        rule: str,
        *,
        mode: Mode | None = None,
        batch: Batch | None = None,
        seed: int | None = None,
        around: AbstractContextManager[Any] | None = None,
        everything: bool = False,
    ) -> dict[str, torch.Tensor | None]:
        """The loss's gradient for every parameter that trains, by name; None where none arrives.

        With `everything` the model's floating inputs and its frozen parameters need a gradient as well.

        They come from one `torch.autograd.grad`, or from ``backward`` where a re-entrant checkpoint wants that:
        every parameter's ``.grad`` is put back.
        """
        try:
            return self._gradients(rule, mode, batch, seed, around, everything=everything)
        except RuntimeError as error:
            if self._reentrant or "checkpoint" not in str(error).lower():
                raise
            self._reentrant = True
            return self._gradients(rule, mode, batch, seed, around, everything=everything)

    def _gradients(
        self,
        rule: str,
        mode: Mode | None,
        batch: Batch | None,
        seed: int | None,
        around: AbstractContextManager[Any] | None,
        *,
        everything: bool,
    ) -> dict[str, torch.Tensor | None]:
        with self._prepared(rule, mode, seed), torch.enable_grad():

            def given(tensor: torch.Tensor) -> torch.Tensor:
                return tensor.detach().clone().requires_grad_(everything and tensor.is_floating_point())

            args, kwargs = copied(call_arguments(self.batch if batch is None else batch), given)
            named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
            for parameter in self.model.parameters() if everything else ():
                parameter.requires_grad_(parameter.is_floating_point())
            with around or nullcontext():
                output = self.model(*args, **kwargs)
            loss = (self._loss or projection_loss)(output)
            if not (self._reentrant or everything):
                found = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
                return {name: gradient for (name, _), gradient in zip(named, found, strict=True)}
            # Re-entrant checkpoints refuse `grad`, or are passed over by it. What `backward` leaves on the parameters
            # is put back with the rest.
            for _, parameter in named:
                parameter.grad = None
            loss.backward()
            return {name: parameter.grad for name, parameter in named}

    def with_gradients(
        self,
        rule: str,
        use: Callable[[Any], _Answer],
        *,
        mode: Mode | None = None,
        batch: Batch | None = None,
        seed: int | None = None,
    ) -> _Answer:
        """What `use` makes of the model's output in a run that records gradients; no input asks for one."""
        with self._prepared(rule, mode, seed), torch.enable_grad():
            args, kwargs = copied(call_arguments(self.batch if batch is None else batch), lambda t: t.detach().clone())
            return use(self.model(*args, **kwargs))

    def look(
        self,
        rule: str,
        graph: Graph,
        wants: Sequence[Want],
        *,
        mode: Mode | None = None,
        seed: int | None = None,
        batch_statistics: bool = False,
    ) -> dict[tuple[int, str], float]:
        """Numbers of single operations of `graph`, which must come from a run in the same mode; see `look`."""
        with self._prepared(rule, mode, seed, batch_statistics=batch_statistics):
            return look(self.model, self.batch, graph, wants, keep_parameters=self._keep_parameters)

    def _prepared(
        self, rule: str, mode: Mode | None, seed: int | None, *, batch_statistics: bool = False
    ) -> AbstractContextManager[None]:
        self._runs[rule] = self._runs.get(rule, 0) + 1
        return _prepared(
            self.model, mode, seed, batch_statistics=batch_statistics, keep_parameters=self._keep_parameters
        )


@contextmanager
def _prepared(
    model: nn.Module, mode: Mode | None, seed: int | None, *, batch_statistics: bool, keep_parameters: bool
) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    with preserved(model, parameters=keep_parameters), eager(), Unfused(), ExitStack() as stack:
        # Scripted modules keep their mode where a snapshot does not reach.
        for module, training in modes:
            stack.callback(setattr, module, "training", training)
        if mode is not None:
            model.train(mode == "train")
        for module in model.modules() if batch_statistics else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # noqa: SLF001  # their base class
                module.training = True
        if seed is not None:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002  # the global generator, which the model may draw from
        yield

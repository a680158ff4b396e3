"""The model, its units and the runs that the spectrum needs: as it is, with its branches cut off, with marks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.diagnostics.measure import Loss, projection_loss
from skipway.diagnostics.path_spectrum.marks import Switch
from skipway.diagnostics.path_spectrum.mode import Kind, Marks, Place
from skipway.diagnostics.path_spectrum.plan import Plan, plan_marks
from skipway.diagnostics.path_spectrum.run import LiveRun
from skipway.errors import ModelRunError, SkipwayError
from skipway.trace.batch import Batch, call_arguments, copied, output_tensors, tensors_of
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.preserve import preserved
from skipway.units.intercept import bare
from skipway.units.locate import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from skipway.diagnostics.path_spectrum.result import Of
    from skipway.trace.graph import Graph
    from skipway.units.links import Links

__all__ = ["Scene", "set_up"]

# TF32, which CUDA may use for float32, has ten bits.
_EPS_ON_CUDA: Final = 2.0**-10


@dataclass
class Scene:
    """A model whose units are known.

    Args:
        model: opened; left as it was by every run.
        plan: where it is marked.
        allowed: relative error up to which a check holds, the root of the coarsest eps of the run.
        largest: bytes of the largest tensor of the run.
        missed: numbers of counted units whose join the marked run did not pass as recorded.
        loss_value: of the last run.
        left_out: floating outputs that the default loss left out.
    """

    model: nn.Module
    batch: Batch
    loss: Loss | None
    of: Of
    links: Links
    plan: Plan
    allowed: float
    largest: int
    keep_parameters: bool
    missed: set[int] = field(default_factory=set)
    loss_value: float = 0.0
    left_out: int = 0

    @contextmanager
    def run(self, kind: Kind) -> Iterator[LiveRun]:
        """A forward run whose graph lives as long as the context; random numbers are the same in every run.

        Args:
            kind: ``"plain"``: the model as it is; ``"marked"``: with its joins marked; ``"cut"``: with the branches
                detached where they join.
        """
        switch = Switch()
        leaves: list[torch.Tensor] = []

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            copy = tensor.detach().clone()
            if (tensor.is_floating_point() or tensor.is_complex()) and self._differentiates_input:
                leaves.append(copy.requires_grad_())
                return copy.clone()  # a leaf may not be written to in place
            return copy

        with preserved(self.model, parameters=self.keep_parameters), eager(), torch.enable_grad():
            args, kwargs = copied(call_arguments(self.batch), convert)
            with ModuleStack(self.model) as stack:
                marks = Marks(self.plan, self.links, stack, kind, switch)
                if self.plan.leaf:
                    marks.x = Place(tensors_of((args, kwargs))[self._leaf_number()])
                output, loss = self._called(marks, args, kwargs)
            if not loss.requires_grad and kind != "cut":
                raise SkipwayError(
                    "the output needs no gradient (frozen, detached or under no_grad)", "a model that can be trained"
                )
            if kind == "marked":
                self.missed = set(range(len(self.plan.units))) - marks.passed
            self.loss_value = float(loss.detach())
            targets, zeros = self._targets(marks.x, leaves)
            del output
            yield LiveRun(loss, targets, zeros, switch, marks.x, marks.end, self.largest)

    @property
    def _differentiates_input(self) -> bool:
        frozen = not any(p.requires_grad for p in self.model.parameters())
        return self.plan.leaf or frozen or self.of == "input"

    def _leaf_number(self) -> int:
        return [n.id for n in self.links.nodes if n.op == "input"].index(self.plan.x)

    def _called(self, marks: Marks, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, torch.Tensor]:
        try:
            with marks:
                output = self.model(*args, **kwargs)
            loss = self._projection(output) if self.loss is None else self.loss(output)
        except SkipwayError:
            raise
        except Exception as error:
            raise ModelRunError(
                f"with gradients the model or the loss failed: {type(error).__name__}: {error}",
                "a model that runs with gradients, and loss(output) -> scalar tensor",
            ) from error
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise SkipwayError(f"a loss of {shape}", "loss(output) -> scalar tensor")
        return output, loss.reshape(())

    def _projection(self, output: Any) -> torch.Tensor:
        """The default loss, of what comes from behind the last unit: a cache of keys is read off the road before it."""
        tensors, nodes, join = output_tensors(output), self.links.graph.outputs, self.plan.join
        if not any(t.is_floating_point() and t.numel() for t in tensors):
            raise SkipwayError("the model has no floating output", "an output that a loss can be made of")
        kept = [
            t for t, i in zip(tensors, nodes, strict=False)
            if t.is_floating_point() and t.numel() and (i == join or self.links.descends(i, join))
        ]  # fmt: skip
        if len(tensors) != len(nodes) or not kept:
            return projection_loss(output)
        self.left_out = sum(t.is_floating_point() and t.numel() > 0 for t in tensors) - len(kept)
        return projection_loss(kept)

    def _targets(self, x: Place | None, leaves: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
        if self.of == "stream":
            if x is None:
                raise SkipwayError(
                    f"the stream that {self.plan.units[0]} reads needs no gradient", "a stream that is differentiable",
                    "of='parameters'",
                )  # fmt: skip
            return [x.edge], [x.zeros]
        tensors = leaves if self.of == "input" else [p for p in self.model.parameters() if p.requires_grad]
        if not tensors:
            what = "floating tensor in the batch" if self.of == "input" else "parameter that needs a gradient"
            raise SkipwayError(f"of={self.of!r}: no {what}", "something to differentiate", "of='stream'")
        return list(tensors), [_zeros_of(t) for t in tensors]


def _zeros_of(tensor: torch.Tensor) -> Any:
    return lambda: torch.zeros_like(tensor, requires_grad=False)


def set_up(model: nn.Module, batch: Batch, loss: Loss | None, of: Of) -> Scene:
    """Record the model, find and prove its units, and plan where to mark them.

    Raises:
        ModelRunError: the model raised.
        SkipwayError: it has no unit, or none that can be marked.
    """
    if any(p.device.type == "meta" for p in model.parameters()):
        raise SkipwayError("a model on the meta device", "a model with numbers: gradients are measured")
    _refuse_altered(model)
    located = locate(model, batch, proofs=True)
    proved = [unit for unit, proof in zip(located.described, located.proofs, strict=True) if proof.holds]
    unproved = [path for path, proof in zip(located.paths, located.proofs, strict=True) if not proof.holds]
    plan = plan_marks(proved, located.links)
    if plan is None:
        raise SkipwayError(
            "the model has no residual unit on its main stream" if not proved
            else f"none of {len(proved)} residual units joins by a function that can be intercepted",
            "a residual network whose joins run as Python", "skipway.inspect(model, batch) to see what it has",
        )  # fmt: skip
    plan.uncounted += unproved
    graph = located.graph
    return Scene(
        model, batch, loss, of, located.links, plan, _allowed(graph, model),
        max(n.nbytes for n in graph.nodes), located.writes_parameters,
    )  # fmt: skip


def _refuse_altered(model: nn.Module) -> None:
    """Inside a what-if run calls are intercepted already, and are not found where the model alone makes them."""
    altered = dict(vars(model))
    with bare(model):
        if altered.keys() != vars(model).keys():
            raise SkipwayError(
                "the gradient by path length of a model that what_if alters", "the model as it is",
                "skipway.path_spectrum outside of `with skipway.what_if(…)`",
            )  # fmt: skip


def _allowed(graph: Graph, model: nn.Module) -> float:
    dtypes = {n.dtype for n in graph.nodes if n.data and n.floating and n.dtype is not None}
    eps = max(torch.finfo(d).eps for d in dtypes)
    if eps > 1e-10 and any(p.device.type == "cuda" for p in model.parameters()):
        eps = max(eps, _EPS_ON_CUDA)
    return float(eps**0.5)

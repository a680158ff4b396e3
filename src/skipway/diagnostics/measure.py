"""Measure the signal along the stream: one forward and one backward run of the unmodified model.

Shapes: N samples, C channels, H height, W width, T tokens, D width of the stream. Every number is reduced where it is
seen; nothing but scalars is kept. Gradients are those of the loss with respect to the stream, taken by tensor hooks and
one `torch.autograd.grad`, so no parameter's ``.grad`` is touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from skipway.diagnostics.layer import Layer
from skipway.diagnostics.taps import Scalars, Taps, plan_taps, tap_inputs
from skipway.trace import ops
from skipway.trace.batch import Batch, call_arguments, copied, output_tensors, tensors_of
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.preserve import preserved
from skipway.units.unit import StreamNumbers

if TYPE_CHECKING:
    from skipway.units.describe import Described
    from skipway.units.links import Links

__all__ = ["Loss", "Measured", "measure", "projection_loss"]

Loss = Callable[[Any], torch.Tensor]


@dataclass
class Measured:
    """Numbers by unit, numbers by weighted layer, and what could not be measured.

    Args:
        finite, gradient_finite: whether all that was seen of the stream and the output, and of the gradient, was.
        backward_error: what the backward run raised.
        constant: positions of the units whose x needed no gradient.
        cut: positions of the units whose shortcut needed a gradient and whose branch did not.
        recounted: BatchNorms that counted batches in the backward run, and how many: something ran them again there.
        detached: whether there was a floating output and it needed no gradient.
    """

    units: list[StreamNumbers]
    layers: list[Layer]
    loss: float | None = None
    notes: list[str] = field(default_factory=list)
    finite: bool = True
    backward_error: str = ""
    gradient_finite: bool = True
    constant: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    recounted: dict[str, int] = field(default_factory=dict)
    detached: bool = False


def projection_loss(output: Any) -> torch.Tensor:
    """A fixed random projection of all floating outputs, ``Σ out·r`` with ‖r‖ = 1 for each output.

    Unlike a mean or a sum of squares it is not constant behind a final LayerNorm.
    """
    parts = []
    for k, tensor in enumerate(output_tensors(output)):
        if tensor.is_floating_point() and tensor.numel():
            generator = torch.Generator().manual_seed(k)
            direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
            wide = tensor if tensor.dtype == torch.float64 else tensor.float()
            parts.append((wide * (direction / direction.norm()).to(wide.device, wide.dtype)).sum())
    if not parts:
        raise ValueError("no floating output")
    return (
        torch.stack([p.double() for p in parts]).sum()
        if len({p.dtype for p in parts}) > 1
        else sum(parts[1:], parts[0])
    )


def measure(
    model: nn.Module,
    batch: Batch,
    described: Sequence[Described],
    links: Links,
    loss: Loss | None = None,
    *,
    keep_parameters: bool = False,
) -> Measured:
    """Measure at every unit in one forward and backward run; at every weighted layer, if units are fewer than two.

    Args:
        model: the module, in the mode in which it was recorded; left as it was.
        batch: the batch that was recorded.
        described: the units.
        links: relations of the recorded graph.
        loss: maps the model's output to a scalar; `projection_loss` if None.
        keep_parameters: put parameters back too, for a model that writes to them in forward.
    """
    scalars = Scalars()
    notes: list[str] = []
    layers = _layers(links) if len(described) < 2 else []
    plan = plan_taps(described, layers, links)
    frozen = not any(p.requires_grad for p in model.parameters())
    needs_input_gradient = frozen or any(_of_input_alone(u.candidate.base, links) for u in described)

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if (tensor.is_floating_point() or tensor.is_complex()) and needs_input_gradient:
            return tensor.detach().clone().requires_grad_().clone()
        return tensor.detach().clone()

    value: float | None = None
    failure = ""
    with preserved(model, parameters=keep_parameters), eager(), torch.enable_grad():
        args, kwargs = copied(call_arguments(batch), convert)
        with ModuleStack(model) as stack:
            taps = Taps(plan, links, stack, scalars)
            tap_inputs(taps, described, links, tensors_of((args, kwargs)))
            scalars.in_forward = True
            with taps:
                output = model(*args, **kwargs)
            scalars.in_forward = False
        counters = _batch_counters(model)
        counted = _read(counters)
        finite = all(bool(t.isfinite().all()) for t in output_tensors(output) if t.is_floating_point())
        scalar = _loss_of(output, loss, notes)
        if scalar is not None:
            value = float(scalar.detach())
            failure = _backward(scalar, _earliest(taps.roots, links), notes)
        again = {
            name: now - before
            for name, before, now in zip(counters, counted, _read(counters), strict=True)
            if now != before
        }
    numbers = scalars.read()
    gradients = [v for found in numbers.values() for k, v in found.items() if k.startswith("grad")]
    if gradients and not any(gradients):
        notes.append(
            "every gradient is exactly zero: the output does not depend on the stream (a zero-initialised head?)"
        )
    units = [StreamNumbers(**{k: _finite(v) for k, v in numbers.get(k0, {}).items()}) for k0 in range(len(described))]
    notes += _missing(units, taps.constant, backward=bool(gradients))
    if barred := taps.barred - taps.constant:
        notes.append(
            f"the shortcut lets no gradient through at {len(barred)} of {len(units)} units (detached or under no_grad):"
            " what lies before learns by the branches alone"
        )
    finite &= all(math.isfinite(v) for found in numbers.values() for k, v in found.items() if k.endswith("rms"))
    wild = sum(not math.isfinite(v) for found in numbers.values() for k, v in found.items() if k == "grad_stream")
    if wild:
        notes.append(f"the gradient is NaN or infinite at {wild} units")
    first = len(described)
    trunk = [
        Layer(links.graph.calls[links.nodes[i].call].path, n.get("rms"), n.get("grad"))
        for i, n in ((node, numbers.get(first + k, {})) for k, node in enumerate(layers))
    ]
    return Measured(
        units,
        trunk,
        value,
        notes,
        finite,
        failure,
        gradient_finite=wild == 0,
        constant=frozenset(taps.constant),
        cut=frozenset(taps.cut),
        recounted=again,
        detached=scalar is None and any(t.is_floating_point() and t.numel() for t in output_tensors(output)),
    )


def _batch_counters(model: nn.Module) -> dict[str, torch.Tensor]:
    """The counters of batches of all BatchNorms that count, by path."""
    norms = nn.modules.batchnorm._NormBase  # noqa: SLF001  # their base class
    return {
        name: m.num_batches_tracked
        for name, m in model.named_modules()
        if isinstance(m, norms) and m.training and m.num_batches_tracked is not None
    }


def _read(counters: dict[str, torch.Tensor]) -> list[int]:
    """The counters' values, one by one: a model may be spread over devices."""
    return [int(v) for v in counters.values()]


def _missing(units: list[StreamNumbers], constant: set[int], *, backward: bool) -> list[str]:
    """Say how many units have no number: nothing there needs a gradient, or no torch function is called there."""
    forward = sum(None in (u.stream_rms, u.branch_rms) for u in units)
    without = {k for k, u in enumerate(units) if u.grad_stream is None} if backward else set()
    gradient = len(without - constant)
    where = "they run inside scripted, traced, fused or re-entrantly checkpointed code, or write to parts of tensors"
    notes = []
    if forward:
        notes.append(f"forward signal not fully measured at {forward} of {len(units)} units: {where}")
    if without & constant:
        notes.append(f"x needs no gradient at {len(without & constant)} of {len(units)} units (constant or detached)")
    if gradient:
        notes.append(f"gradient not measured at {gradient} of {len(units)} units: {where}")
    return notes


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _layers(links: Links) -> list[int]:
    """Outputs of weighted layers, in order."""
    weighted = ops.WEIGHTED
    return [
        n.id for n in links.nodes
        if n.op in weighted and n.floating and n.data and links.alive[n.id]
        and any(not links.nodes[j].data for j in n.inputs)
    ]  # fmt: skip


def _of_input_alone(i: int, links: Links) -> bool:
    """Whether no parameter lies between the model's input and a value: it needs a gradient only if the input does."""
    pending = [i]
    seen: set[int] = set()
    while pending:
        j = pending.pop()
        if j in seen:
            continue
        seen.add(j)
        node = links.nodes[j]
        if node.op == "param" or node.params:
            return False
        pending += node.inputs
    return True


def _earliest(roots: dict[int, torch.Tensor], links: Links) -> list[torch.Tensor]:
    """Tensors that no other of them leads to: a backward run that reaches these passes all."""
    mask = 0
    for i in roots:
        mask |= 1 << i
    return [t for i, t in roots.items() if not links.ancestors[i] & mask]


def _loss_of(output: Any, loss: Loss | None, notes: list[str]) -> torch.Tensor | None:
    if not any(t.is_floating_point() and t.numel() for t in output_tensors(output)):
        notes.append("the model has no floating output (or an empty one): no loss, only the forward half was measured")
        return None
    scalar = (loss or projection_loss)(output)
    if not scalar.requires_grad:
        notes.append("the output needs no gradient (frozen, detached or no_grad): only the forward half was measured")
        return None
    return scalar


def _backward(scalar: torch.Tensor, roots: list[torch.Tensor], notes: list[str]) -> str:
    """Run backward; what it raised, if it did."""
    if not roots:
        notes.append("no stream tensor needs a gradient: only the forward half was measured")
        return ""
    try:
        torch.autograd.grad(scalar, roots, allow_unused=True)
    except RuntimeError as error:
        notes.append(f"the backward run failed, only the forward half was measured: {str(error).splitlines()[0]}")
        return str(error)
    return ""

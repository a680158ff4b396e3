"""Norm, activation and weight layer as one step that keeps only what arrives: the rest is rebuilt in the backward pass.

One by one, autograd keeps what the norm reads and what the weight layer reads. The second follows from the first and
the norm's statistics by one pass over memory, without a convolution or a product of matrices.

Shapes: N batch, C channels, H and W image, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as hooks

from skipway.blocks.again import Autocast, refuse_second_gradient

__all__ = ["Rebuilding", "run_through", "transformed", "watched"]

_aten = torch.ops.aten
_NORMS: Final = (nn.BatchNorm2d, nn.LayerNorm, nn.RMSNorm)
_WEIGHTS: Final = (nn.Conv2d, nn.Linear)


class Rebuilding:
    """Base of modules that can keep less than autograd would.

    Args:
        rebuild: whether what weight layers read is rebuilt in the backward pass.
    """

    rebuild: bool = False


@dataclass(frozen=True, kw_only=True)
class _Act:
    """An activation and its derivative, each given the module first, for its options.

    Args:
        forward: of what arrives; in place where the derivative is computed from what left, since a norm stands before.
        backward: of the gradient and of what arrived or left.
        reads_input: whether the derivative is computed from what arrived; else from what left.
    """

    forward: Callable[[Any, Tensor], Tensor]
    backward: Callable[[Any, Tensor, Tensor], Tensor]
    reads_input: bool


_ACTS: Final[dict[type[nn.Module], _Act]] = {
    nn.ReLU: _Act(
        forward=lambda _, z: torch.relu_(z),
        backward=lambda _, grad, a: _aten.threshold_backward(grad, a, 0),
        reads_input=False,
    ),
    nn.GELU: _Act(
        forward=lambda act, z: F.gelu(z, approximate=act.approximate),
        backward=lambda act, grad, z: _aten.gelu_backward(grad, z, approximate=act.approximate),
        reads_input=True,
    ),
    nn.SiLU: _Act(
        forward=lambda _, z: F.silu(z),
        backward=lambda _, grad, z: _aten.silu_backward(grad, z),
        reads_input=True,
    ),
    nn.Tanh: _Act(
        forward=lambda _, z: torch.tanh_(z),
        backward=lambda _, grad, a: _aten.tanh_backward(grad, a),
        reads_input=False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Modules that run as one; at least two of them.

    Args:
        norm: what comes first.
        act: behind it.
        weight: at the end.
    """

    norm: nn.Module | None
    act: nn.Module | None
    weight: nn.Module | None

    @property
    def modules(self) -> list[nn.Module]:
        """In order of execution."""
        return [module for module in (self.norm, self.act, self.weight) if module is not None]

    def fits(self, x: Tensor) -> bool:
        """Whether the modules would take `x`; where not, they are left to say so themselves."""
        if isinstance(self.norm, nn.BatchNorm2d):
            return x.dim() == 4 and x.shape[1] == self.norm.num_features and x.numel() > x.shape[1]
        return True

    def __call__(self, x: Tensor) -> Tensor:
        """What the modules would return."""
        norm, weight = self.norm, self.weight
        factor = _counted(norm) if isinstance(norm, nn.BatchNorm2d) else 0.0
        out: Tensor = _Rebuilt.apply(
            self, factor, x, getattr(norm, "weight", None), getattr(norm, "bias", None),
            getattr(weight, "weight", None), getattr(weight, "bias", None),
        )  # fmt: skip
        return out


def run_through(modules: Sequence[nn.Module], x: Tensor, *, rebuild: bool) -> Tensor:
    """Modules one behind the other.

    Args:
        modules: in order of execution.
        x: what the first reads.
        rebuild: whether autograd keeps only what norms read, and not what weight layers behind them do. Where someone
            watches the modules (hooks, a trace, an intercepted call) or the call is compiled, they run one by one.
    """
    if not rebuild or not torch.is_grad_enabled() or watched():
        for module in modules:
            x = module(x)
        return x
    for part in _parts(modules):
        if isinstance(part, _Step) and not part.fits(x):
            for module in part.modules:
                x = module(x)
        else:
            x = part(x)
    return x


def watched() -> bool:
    """Whether someone follows the calls of modules or functions, or they are compiled or transformed."""
    return (
        transformed()
        or torch._C._len_torch_function_stack() > 0  # noqa: SLF001  # no public way to see that a mode is open
        or _has_global_hooks()
    )


def _has_global_hooks() -> bool:
    """Whether every call of a module is hooked; PyTorch's own function for it is not in all versions."""
    return bool(
        hooks._global_forward_pre_hooks  # noqa: SLF001  # as above
        or hooks._global_forward_hooks  # noqa: SLF001
        or hooks._global_backward_pre_hooks  # noqa: SLF001
        or hooks._global_backward_hooks  # noqa: SLF001
    )


def transformed() -> bool:
    """Whether operations are being compiled, traced, or run through `torch.func`."""
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001  # no public way to see it
        or torch._C._get_tracing_state() is not None  # noqa: SLF001  # as modules themselves ask
    )


def _parts(modules: Sequence[nn.Module]) -> Iterator[nn.Module | _Step]:
    rest = list(modules)
    while rest:
        norm = _taken(rest, 0, _NORMS)
        act = _taken(rest, norm is not None, tuple(_ACTS))
        head = (norm is not None) + (act is not None)
        weight = _taken(rest, head, _WEIGHTS)
        gains = norm is not None or (act is not None and _ACTS[type(act)].reads_input)
        # Behind a dropout or at the end nobody else keeps what the activation returns.
        alone = norm is not None and act is not None and (len(rest) == head or isinstance(rest[head], nn.Dropout))
        if gains and (weight is not None or alone):
            step = _Step(norm=norm, act=act, weight=weight)
            del rest[: len(step.modules)]
            yield step
        else:
            yield rest.pop(0)


def _taken(modules: Sequence[nn.Module], index: int, kinds: tuple[type[nn.Module], ...]) -> nn.Module | None:
    """The module at a place, if it is of one of the kinds and nothing but its own code would run."""
    if index >= len(modules) or type(modules[index]) not in kinds:
        return None
    module = modules[index]
    if isinstance(module, nn.Conv2d) and (module.padding_mode != "zeros" or isinstance(module.padding, str)):
        return None
    hooked = any(
        getattr(module, name)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )
    replaced = module._compiled_call_impl is not None or "forward" in vars(module)  # noqa: SLF001  # a trace stands there
    return None if hooked or replaced else module


def _batch_statistics(norm: nn.BatchNorm2d) -> bool:
    return norm.training or (norm.running_mean is None and norm.running_var is None)


def _counted(norm: nn.BatchNorm2d) -> float:
    """Count the batch, as the norm itself does; the weight of this batch in the running statistics."""
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            return 1.0 / float(norm.num_batches_tracked)
    return 0.0 if norm.momentum is None else norm.momentum


class _Rebuilt(torch.autograd.Function):
    """``W φ(norm(x)) + b``, whose backward pass gets x, the batch's statistics and the parameters."""

    # With a `setup_context` of its own PyTorch would look at the signature in each call: a tenth of a small net's time.
    @staticmethod
    def forward(
        ctx: Any, step: _Step, factor: float, x: Tensor, gain: Tensor | None, shift: Tensor | None,
        weight: Tensor | None, bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The output; what arrived is kept, and of a batch norm what its own backward pass wants."""
        norm, act = step.norm, step.act
        running: tuple[Tensor | None, ...] = (None, None)
        statistics: list[Tensor] = []
        if isinstance(norm, nn.BatchNorm2d):
            ctx.training = _batch_statistics(norm)
            z, *statistics, ctx.implementation = _batch_normalised(norm, factor, x, gain, shift)
            if not ctx.training:
                running = (norm.running_mean, norm.running_var)
        else:
            z = _token_norm(norm, x, gain, shift)
        ctx.step, ctx.has_bias = step, bias is not None
        ctx.save_for_backward(x, gain, shift, weight, *running, *statistics)
        ctx.autocast = Autocast.now(x.device)
        return _weighed(step.weight, z if act is None else _ACTS[type(act)].forward(act, z), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Rebuild what the weights read, then step by step back."""
        refuse_second_gradient("recompute")
        x, gain, shift, weight, running_mean, running_var, *statistics = ctx.saved_tensors
        step, wanted = ctx.step, ctx.needs_input_grad
        back: Callable[[Tensor], tuple[Tensor | None, ...]]
        with ctx.autocast.again():
            if isinstance(step.norm, nn.BatchNorm2d):
                running = (running_mean, running_var)
                z = _batch_again(step.norm.eps, x, gain, shift, running, statistics, training=ctx.training)

                def back(grad: Tensor) -> tuple[Tensor | None, ...]:
                    return tuple(
                        _aten._batch_norm_impl_index_backward(  # noqa: SLF001  # what F.batch_norm's own backward calls
                            ctx.implementation, x, grad, gain, *running, statistics[0], statistics[1], ctx.training,
                            step.norm.eps, wanted[2:5], statistics[2],
                        )
                    )  # fmt: skip
            else:
                z, back = _token_again(step.norm, x, gain, shift, wanted[2:5])
        with ctx.autocast.off():
            a = z if step.act is None else _ACTS[type(step.act)].forward(step.act, z)
            below = any(wanted[2:5])
            grad, grad_weight, grad_bias = _weights_back(
                step.weight, grad, a, weight, (below, wanted[5], ctx.has_bias and wanted[6])
            )
            if not below:
                return None, None, None, None, None, grad_weight, grad_bias
            if step.act is not None:
                kind = _ACTS[type(step.act)]
                grad = kind.backward(step.act, grad, z if kind.reads_input else a)
            return None, None, *back(grad), grad_weight, grad_bias


def _batch_normalised(
    norm: nn.BatchNorm2d, factor: float, x: Tensor, gain: Tensor | None, shift: Tensor | None
) -> tuple[Any, ...]:
    """What the norm returns; mean, 1/deviation and notes for the backward pass; which library computed it."""
    tracked = not norm.training or norm.track_running_stats
    return torch._batch_norm_impl_index(  # noqa: SLF001  # what F.batch_norm calls, with what that throws away
        x, gain, shift, norm.running_mean if tracked else None, norm.running_var if tracked else None,
        _batch_statistics(norm), factor, norm.eps, torch.backends.cudnn.enabled,
    )  # fmt: skip


def _token_norm(norm: nn.Module | None, x: Tensor, gain: Tensor | None, shift: Tensor | None) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        return F.layer_norm(x, norm.normalized_shape, gain, shift, norm.eps)
    if isinstance(norm, nn.RMSNorm):
        return F.rms_norm(x, list(norm.normalized_shape), gain, norm.eps)
    return x


def _weighed(layer: nn.Module | None, a: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if isinstance(layer, nn.Conv2d):
        assert weight is not None
        return F.conv2d(a, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    if isinstance(layer, nn.Linear):
        assert weight is not None
        return F.linear(a, weight, bias)
    return a


def _batch_again(
    eps: float, x: Tensor, gain: Tensor | None, shift: Tensor | None, running: tuple[Tensor | None, Tensor | None],
    statistics: Sequence[Tensor], *, training: bool,
) -> Tensor:  # fmt: skip
    """What a batch norm returned, in one pass over x: no statistics are computed or updated."""
    mean, variance = running
    if training:
        # The batch's statistics in the place of running ones; what is kept of the deviation already holds eps.
        mean, variance, eps = statistics[0], statistics[1].pow(-2), 0.0
    again: Tensor = torch.native_batch_norm(x, gain, shift, mean, variance, False, 0.0, eps)[0]
    return again


def _token_again(
    norm: nn.Module | None, x: Tensor, gain: Tensor | None, shift: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor | None, ...]]]:
    """What a norm over the width returned, and its backward pass."""
    if norm is None:
        return x, lambda grad: (grad.to(x.dtype), None, None)
    inputs = zip((x, gain, shift), wanted, strict=True)
    leaves = [None if t is None else t.detach().requires_grad_(want) for t, want in inputs]
    with torch.enable_grad():
        assert leaves[0] is not None
        z = _token_norm(norm, leaves[0], leaves[1], leaves[2])

    def back(grad: Tensor) -> tuple[Tensor | None, ...]:
        found = iter(torch.autograd.grad(z, [t for t in leaves if t is not None and t.requires_grad], grad))
        return tuple(next(found) if t is not None and t.requires_grad else None for t in leaves)

    return z.detach(), back


def _weights_back(
    layer: nn.Module | None, grad: Tensor, a: Tensor, weight: Tensor | None, wanted: tuple[bool, bool, bool]
) -> tuple[Any, Tensor | None, Tensor | None]:
    """Gradients at what the layer read, its weights and its bias, each in the number format of its own."""
    if layer is None:
        return grad, None, None
    assert weight is not None
    # Under autocast both factors were cast to the format of the output.
    read, matrix = a.to(grad.dtype), weight.to(grad.dtype)
    grads: tuple[Tensor | None, ...]
    if isinstance(layer, nn.Conv2d):
        grads = _aten.convolution_backward(
            grad, read, matrix, [len(matrix)], layer.stride, layer.padding, layer.dilation, False, (0, 0),
            layer.groups, wanted,
        )  # fmt: skip
    else:
        rows = grad.flatten(0, -2)
        grads = (
            grad @ matrix if wanted[0] else None,
            rows.t() @ read.flatten(0, -2) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )
    formats = (a.dtype, weight.dtype, weight.dtype)
    read_grad, weight_grad, bias_grad = (
        None if g is None else g.to(dtype) for g, dtype in zip(grads, formats, strict=True)
    )
    return read_grad, weight_grad, bias_grad

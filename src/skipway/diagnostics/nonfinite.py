"""Find the first operation that makes a NaN or an infinity."""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from skipway.trace.batch import Batch, call_arguments, copied
from skipway.trace.mode import DispatchMode, with_gradients
from skipway.trace.modules import ModuleStack, eager
from skipway.trace.operation import flat_tensors, operation
from skipway.trace.preserve import preserved

__all__ = ["first_non_finite", "non_finite_leaf"]

# Operations that write an infinity because they are told to.
_ON_PURPOSE: Final = frozenset(
    ["masked_fill", "full", "full_like", "fill", "where", "scalar_tensor", "new_full", "index_put", "triu", "tril"]
)


class _Watch(DispatchMode):
    def __init__(self, stack: ModuleStack, statistics: frozenset[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.found: dict[str, str] = {}
        self._stack, self._statistics = stack, statistics

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.found:
            return func(*args, **kwargs)
        operands = [t for t in flat_tensors(args, kwargs) if t.is_floating_point()]
        # Running statistics may have overflowed in an earlier step: no operand in train mode, the norm's own in eval.
        seen = [t for t in operands if id(t) not in self._statistics]
        finite = all(bool(t.isfinite().all()) for t in seen)
        masked = not finite and not any(bool(t.isnan().any()) for t in seen)  # infinities, written on purpose or seen
        shapes = ", ".join("×".join(map(str, t.shape)) or "scalar" for t in operands)
        sizes = ", ".join(f"{float(t.abs().max()):.3g}" for t in operands if t.numel())
        out = func(*args, **kwargs)
        known = operation(func)
        results = [t for t in flat_tensors((out,), {}) if t.is_floating_point() and t.numel()]
        if not (finite or masked) or known.op in _ON_PURPOSE or known.op.startswith("empty") or known.op == "new_empty":
            return out
        kinds = {"NaN": any(bool(t.isnan().any()) for t in results), "inf": any(bool(t.isinf().any()) for t in results)}
        kind = next((k for k, present in kinds.items() if present), None)
        if kind is None or (masked and kind != "NaN"):
            return out
        record = {
            "operation": known.op,
            "path": self._stack.innermost_path,
            "value": kind,
            "operand_shapes": shapes,
            "operand_largest": sizes,
        }
        self.found = record
        return out


def first_non_finite(
    model: nn.Module, batch: Batch, *, keep_parameters: bool = False, gradients: bool = False
) -> dict[str, str]:
    """The first operation with finite operands and a result that is not: operation, path, value, operands.

    Empty if there is none (the model's own input or parameters were not finite, or the run is not repeatable).
    """
    args, kwargs = copied(call_arguments(batch))
    grads = with_gradients(gradients)
    with preserved(model, parameters=keep_parameters), eager(), ModuleStack(model) as stack, grads:
        watch = _Watch(stack, _running_statistics(model))
        with watch:
            model(*args, **kwargs)
    return watch.found


def _running_statistics(model: nn.Module) -> frozenset[int]:
    """Identities of the running means and variances of all norms."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]  # noqa: SLF001  # their base
    return frozenset(id(t) for m in norms for t in (m.running_mean, m.running_var) if t is not None)


def non_finite_leaf(model: nn.Module) -> str | None:
    """Name of the first parameter or buffer that holds a NaN or an infinity (masks in buffers are not looked at)."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.device.type != "meta" and not bool(parameter.isfinite().all()):
            return name
    return None

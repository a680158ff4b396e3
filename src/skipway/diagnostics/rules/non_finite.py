"""Rule ``non-finite``: NaN or infinity on the stream, in the output or in the gradient, and what made the first."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.trace import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["non_finite"]

_OVERFLOW: Final = "an overflow: a smaller scale (a norm, a branch scale), or a wider dtype (bfloat16, float32)"
_FIXES: Final = {
    "div reciprocal": "divide by what cannot be 0: x / (y + eps), or y.clamp_min(eps)",
    "log log2 log10 log1p": "keep the logarithm's operand above 0: x.clamp_min(eps).log()",
    "sqrt rsqrt pow": "keep the root's operand above 0: (x + eps).sqrt()",
    "softmax safe_softmax log_softmax": "a row that is masked everywhere: leave one entry open, or mask with"
    " torch.finfo(x.dtype).min instead of -inf",
    "acos asin atanh": "clamp the operand into the function's range",
    "std var var_mean": "more than one value to take a deviation of, or unbiased=False",
    "exp exp2 expm1": _OVERFLOW + "; subtract the largest value before exp",
}
_FAULTY: Final = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + self.linear(x / 0.0)


model = nn.Sequential(Block(), Block())
batch = torch.randn(4, 16)
"""


@rule(
    "non-finite",
    severity="error",
    summary="NaN or infinity reaches the stream, the output or the gradient.",
    explanation="When a measured number or an output is not finite, the model is run once more and every operation is"
    " watched: the first whose operands are finite and whose result is not is named, with its module and operands."
    " Infinities that are written on purpose (masks) are left out unless they reach the stream. Where only the gradient"
    " is not finite, the unit in which it goes wrong on its way back is named, and by one more run the operation whose"
    " derivative it is (a square root at 0, a norm of zeros).",
    fix="by cause: an overflow wants a smaller scale or a wider dtype, a division or logarithm an epsilon, a "
    "row that is"
    " masked everywhere a column that is not",
    source="measured",
    faulty=_FAULTY,
    healthy=_FAULTY.replace("x / 0.0", "x / 2.0"),
    needs=("signal",),
)
def non_finite(evidence: Evidence) -> Iterator[Finding]:
    """Fire when anything measured was not finite."""
    if not evidence.finite:
        yield _forward(evidence.first_non_finite)
    elif not evidence.gradient_finite:
        yield _backward(evidence)


def _forward(first: dict[str, str]) -> Finding:
    made = f"first made by {first['operation']}" if first else "by an operation that was not seen"
    if first.get("operand_shapes"):
        made += f" of {first['operand_shapes']}, at most {first.get('operand_largest', '?')}"
    overflow = first.get("value") == "inf" and first.get("operation", "") in ops.WORKING | ops.MULTIPLY | ops.ADD
    overflow &= first.get("operation") not in ("div", "true_divide", "divide")
    return RULES["non-finite"].finding(
        first.get("path", ""),
        f"NaN or infinity on the stream, {made}",
        first,
        fix=_OVERFLOW if overflow else _fix(first.get("operation", "")),
    )


def _fix(operation: str) -> str | None:
    return next((fix for names, fix in _FIXES.items() if operation in names.split()), None)


def _backward(evidence: Evidence) -> Finding:
    """The gradient alone: it goes wrong inside the last unit before which it is not finite."""
    main = [evidence.units[k] for k in evidence.main if k not in evidence.constant]
    wrong = [unit for unit in main if unit.numbers.grad_stream is None]
    path = wrong[-1].path if wrong else ""
    function = _derivative(evidence)
    fix = _fix(re.sub(r"Backward\d*$", "", function).lower()) if function else None
    return RULES["non-finite"].finding(
        path,
        "the gradient is NaN or infinite though the forward run is finite"
        + (f", first made by {function}" if function else ""),
        {"operation": function, "units": len(wrong), "of": len(main)},
        fix=fix
        or "keep the operand away from where the derivative is infinite (sqrt, norm, pow at 0): add an epsilon inside",
        severity="error" if _trains(evidence) else "warning",
    )


def _trains(evidence: Evidence) -> bool:
    """Whether the gradient would be as it was measured: in float16 its scale is the loss scaler's business."""
    return all(unit.dtype != "float16" for unit in evidence.units) and evidence.autocast is not torch.float16


def _derivative(evidence: Evidence) -> str:
    """The function of the backward run whose derivative is NaN first, e.g. ``SqrtBackward0``; empty if none is seen."""
    if evidence.lab is None:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it is on, and prints where the forward run was
            with torch.autograd.detect_anomaly():
                evidence.lab.gradients("non-finite")
    except RuntimeError as error:
        named = re.search(r"Function '(\w+)' returned nan", str(error))
        return named[1] if named else ""
    except Exception:  # noqa: BLE001  # a model that does not run backward otherwise shows nothing
        return ""
    return ""

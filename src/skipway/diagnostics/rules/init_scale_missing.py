"""Rule ``init-scale-missing``: branch ends are scaled by depth at the start in some units, or in the wrong matrix."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from skipway.diagnostics.rules._programs import TOKENS, program
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stated import stated
from skipway.diagnostics.rules._stream import Member, repeated, stream
from skipway.units.weights import branch_end, branch_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from skipway.diagnostics.finding import Finding

__all__ = ["init_scale_missing"]

_FEWEST: Final = 4
_CLOSE: Final = 0.12  # of a logarithm: the spread of the standard deviation of 100 random numbers
_DRAWN: Final = 0.9  # of the units have one of the sizes that an initialisation gives; trained ones have any
_SMALLEST_MATRIX: Final = 100
_UNIT: Final = "return x + self.branch(self.norm(x))"
_SCALED: Final = (
    "nn.init.normal_(self.up.weight, std=0.02)\n        nn.init.normal_(self.down.weight, std=0.02 / 6**0.5)"
)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Standard deviations of a unit's matrices: of its last one over the rest, of the smallest of the rest, of all."""

    member: Member
    end: str
    end_over_rest: float
    inner: str
    inner_over_rest: float
    common: float


@rule(
    "init-scale-missing",
    severity="warning",
    summary="The depth-dependent initialisation of branch ends is missing in some units, or sits in the wrong matrix.",
    explanation="Some branches end in a matrix whose standard deviation is 1/√L of the other matrices' (L residual"
    " units: GPT-2), and others, as long, end in one of full size; or the scaled matrix is not the last one of its"
    " branch; or none is scaled, and the model's configuration is that of GPT-2, or the code that initialises it"
    " divides by √(2L), or by √(2k) for layer k (nanoGPT, ModernBERT, BEiT). A net none of whose matrices is scaled and"
    " whose code says nothing of it (BERT, LLaMA) intends it so; one whose units have sizes of all kinds is trained.",
    fix="initialise the last weight of every branch, and no other, with std = 0.02 / sqrt(L), L residual units"
    " (two a layer)",
    source="Radford et al. 2019 (GPT-2); huggingface/transformers #47458; karpathy/llama2.c #579",
    faulty=program(TOKENS, layers=_SCALED, unit=_UNIT, depth=6).replace(
        "batch =", "for k in (1, 4):\n    nn.init.normal_(model[k].down.weight, std=0.02)\nbatch ="
    ),
    healthy=program(TOKENS, layers=_SCALED, unit=_UNIT, depth=6),
    needs=("values",),
)
def init_scale_missing(evidence: Evidence) -> Iterator[Finding]:
    """Fire where branch ends differ by just the factor of depth, or where another matrix has it."""
    named = evidence.parameters
    spreads = [s for m in stream(evidence) if (s := _spread(m, named, evidence)) is not None]
    units = len(evidence.main)
    if len(spreads) < _FEWEST:
        return
    expected = 1 / math.sqrt(units)
    scaled = [s for s in spreads if _near(s.end_over_rest, expected)]
    full = [s for s in spreads if _near(s.end_over_rest, 1.0)]
    wrong = [
        s for s in spreads
        if _near(s.end_over_rest, 1 / expected) or (s in full and _near(s.inner_over_rest, expected))
    ]  # fmt: skip
    if sum(s in scaled or s in full or s in wrong for s in spreads) < _DRAWN * len(spreads):
        return  # sizes of all kinds: trained weights
    rule_ = RULES["init-scale-missing"]
    numbers: dict[str, float | int | str] = {"units": units, "expected_ratio": expected, "scaled": len(scaled)}
    if len(wrong) > len(spreads) / 4:
        yield rule_.finding(
            wrong[0].inner.rpartition(".")[0],
            f"{wrong[0].inner} starts {wrong[0].inner_over_rest:.3g} times as large as its siblings, as the last weight"
            f" {wrong[0].end} should{repeated([s.member for s in wrong])}",
            numbers | {"ratio": wrong[0].inner_over_rest},
        )
    elif scaled and full:
        yield rule_.finding(
            full[0].end.rpartition(".")[0],
            f"{full[0].end} starts at full size, {scaled[0].end} {scaled[0].end_over_rest:.3g} times as large as its"
            f" siblings{repeated([s.member for s in full])}",
            numbers | {"ratio": full[0].end_over_rest, "unscaled": len(full)},
        )
    elif not scaled and len(full) >= _DRAWN * len(spreads) and (said := _intent(evidence, full)):
        yield rule_.finding(
            full[0].end.rpartition(".")[0],
            f"{said}, and {full[0].end} starts at full size{repeated([s.member for s in full])}",
            numbers | {"ratio": full[0].end_over_rest, "unscaled": len(full), "stated_by": said},
        )


def _spread(member: Member, named: Mapping[str, nn.Parameter], evidence: Evidence) -> _Spread | None:
    """Ratios of a unit whose matrices were drawn with one standard deviation, as those were that are then scaled."""
    links = evidence.found.links
    ends = [n for end in branch_end(member.described, links, norms=False) for n in end.names if _is_matrix(named, n)]
    rest = [n for n in branch_weights(member.described, links) if _is_matrix(named, n) and n not in ends]
    if not ends or not rest:
        return None
    sizes = {n: _deviation(named[n]) for n in (*ends, *rest)}
    if not all(v > 0 and math.isfinite(v) for v in sizes.values()):
        return None
    end, inner = ends[0], min(rest, key=sizes.__getitem__)
    others = [sizes[n] for n in rest if n != inner] or [sizes[end]]
    common = statistics.median([sizes[n] for n in rest])
    odd = sum(not _near(sizes[n], common) for n in rest)
    # Drawn by the number of inputs or outputs, matrices differ by themselves.
    by_inputs, by_outputs = (
        sizes[end] / common * math.sqrt(count(named[end]) / count(named[rest[0]])) for count in (_inputs, _outputs)
    )
    if odd > 1 or ((_near(by_inputs, 1.0) or _near(by_outputs, 1.0)) and not _near(sizes[end], common)):
        return None
    return _Spread(
        member, end, sizes[end] / common, inner, sizes[inner] / statistics.median([*others, sizes[end]]), common
    )


def _deviation(weight: nn.Parameter) -> float:
    """Standard deviation by way of norm and mean, which read faster than `torch.std`; 0 where only rounding is left."""
    values = weight.detach().float()
    count, mean = values.numel(), float(values.mean())
    square = float(torch.linalg.vector_norm(values)) ** 2
    rest = square - count * mean**2
    return math.sqrt(rest / (count - 1)) if rest > 1e-6 * square else 0.0


def _inputs(weight: nn.Parameter) -> int:
    return weight.numel() // max(len(weight), 1)


def _outputs(weight: nn.Parameter) -> int:
    return weight.numel() // max(weight.shape[1], 1)


def _is_matrix(named: Mapping[str, nn.Parameter], name: str) -> bool:
    weight = named.get(name)
    return (
        weight is not None and weight.dim() > 1 and weight.numel() >= _SMALLEST_MATRIX and weight.device.type != "meta"
    )


def _near(ratio: float, expected: float) -> bool:
    return abs(math.log(ratio / expected)) < _CLOSE


def _intent(evidence: Evidence, full: Sequence[_Spread]) -> str:
    """What says that branch ends start scaled, where the matrices are as large as it says they start; else nothing."""
    common = statistics.median([s.common for s in full])
    for module in evidence.model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "model_type", None) == "gpt2":
            start = getattr(config, "initializer_range", None)
            if start is None or (start > 0 and _near(common / start, 1.0)):
                return "the configuration is GPT-2's"
    path = full[0].end.split(".")
    for k in range(len(path)):  # the model, and what holds all its units
        around = "".join(f"{part}." for part in path[:k])
        if not all(s.end.startswith(around) for s in full):
            break
        said = stated(evidence.model.get_submodule(around[:-1]))
        if said is not None and (said.start is None or (said.start > 0 and _near(common / said.start, 1.0))):
            return f"{said.where} divides by a root of depth"
    return ""

"""Rule ``post-norm-deep``: norms behind the additions of a deep stream that collapses or decays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from skipway.diagnostics.profile import gradient_curve
from skipway.diagnostics.rules._rule import RULES, Evidence, rule
from skipway.diagnostics.rules._stream import Member, chains, has, passed
from skipway.diagnostics.rules.rank_collapse import ended, similarities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skipway.diagnostics.finding import Finding

__all__ = ["post_norm_deep"]

# Post-norm transformers of up to 12 layers (24 units) are in everyday use (Vaswani et al. 2017, BERT-base).
DEEP: Final = 24
# Without a measurement only what is deeper than any published post-norm net without special constants (BERT-large,
# 24 layers, 48 units) is named.
DEEPER: Final = 48
# 60 layers of post-norm that do not train end at 1.00 (three seeds), the same in pre-norm at 0.90 to 0.93.
COLLAPSED: Final = 0.98
DIFFERENT: Final = 0.9
# Of three post-norm nets that do not train two had a ratio above, so this is one sign of two; 2-layer decay of the
# public post-norm models is above 0.9.
DECAYED: Final = 1e-2
_MOST_SHARE: Final = 0.5
_NORMS: Final = frozenset({"layer", "rms", "group", "instance"})

_PROGRAM: Final = """
import torch
from torch import nn
from torch.nn import functional as F


class Sublayer(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), attention
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(16 if attention else 48, 16)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def branch(self, x):
        if self.attention:
            return self.outer(F.scaled_dot_product_attention(*self.inner(x).chunk(3, -1)))
        return self.outer(F.relu(self.inner(x)))

    def forward(self, x):
        return UNIT


model = nn.Sequential(*[Sublayer(k % 2 == 0) for k in range(100)])
batch = torch.randn(4, 6, 16)
"""


@rule(
    "post-norm-deep",
    severity="error",
    summary="A deep stream with norms behind the additions (post-norm) whose tokens collapse or whose gradient decays.",
    explanation="More than 24 units of one stream have LayerNorm (or RMSNorm, GroupNorm) behind the addition, in the"
    " unit or before the next, and it is measured that the tokens are alike (mean cosine above 0.98) behind the last"
    " units while they were not at the first, or that the gradient at the first unit is under 1/100 of that at the"
    " last. Post-norm alone is no fault: nets of 12 layers train, deep ones without attention do, and so do deep ones"
    " with DeepNorm's constants. Where nothing was measured, only streams of more than 48 units are named, as a"
    " warning. BatchNorm behind the addition is norm-after-add; a norm at the head of a block, before its split,"
    " is told by shortcut-after-norm, too.",
    fix="one of two: pre-norm with branch ends that start at zero, x + F(norm(x)) with nn.init.zeros_ on the last"
    " weight of F and one norm behind the last unit; or stay with post-norm and DeepNorm's constants for N layers,"
    " norm(α·x + F(x)) with α = (2N)^(1/4) and the value, output and feed-forward weights initialised β = (8N)^(-1/4)"
    " times smaller",
    source="Xiong et al. 2020, arXiv 2002.04745; Wang et al. 2022, arXiv 2203.00555",
    faulty=_PROGRAM.replace("UNIT", "self.norm(x + self.branch(x))"),
    healthy=_PROGRAM.replace("UNIT", "self.norm(100**0.25 * x + 400**-0.25 * self.branch(x))"),
    explains=("rank-collapse", "gradient-vanishing", "gradient-exploding"),
)
def post_norm_deep(evidence: Evidence) -> Iterator[Finding]:
    """Fire for deep post-norm streams with collapse or decay measured, and unmeasured ones deeper than any known."""
    for chain in chains(evidence):
        normed = [p.member for p in passed(chain, evidence) if has(p.ops, "norm", _NORMS)]
        if len(normed) <= DEEP or len(normed) <= _MOST_SHARE * len(chain):
            continue
        yield from _judged(chain, normed, evidence)


def _judged(chain: list[Member], normed: list[Member], evidence: Evidence) -> Iterator[Finding]:
    known = RULES["post-norm-deep"]
    alike = similarities(chain, evidence)
    gradients = gradient_curve([m.unit for m in chain], ())
    said: dict[str, float | int | str] = {"units": len(normed)}
    if not alike and gradients is None:
        if len(normed) > DEEPER:
            message = f"norm behind the addition of {len(normed)} units in a row; collapse and decay were not measured"
            yield known.finding(normed[0].path, message, said, severity="warning")
        return
    signs = []
    if alike:
        said |= {"similarity_first": alike[0][1], "similarity_last": ended(alike)}
        if alike[0][1] < DIFFERENT and ended(alike) >= COLLAPSED:
            signs.append(f"the mean cosine between tokens rises from {alike[0][1]:.2f} to {ended(alike):.3f}")
    if gradients is not None:
        said["gradient_first_over_last"] = gradients.ratio
        if gradients.ratio < DECAYED and gradients.falls_back:
            signs.append(f"the gradient falls to {gradients.ratio:.2g} of itself on its way to the first unit")
    if signs:
        yield known.finding(
            normed[0].path,
            f"norm behind the addition of {len(normed)} units in a row, and {' and '.join(signs)}",
            said,
        )

"""Transformers and layer stacks written by hand, one formula a design; slow, obvious, for float64.

Shapes: N batch, T tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

__all__ = ["FORMULAS", "PAIRS", "layer_norm", "rms_norm", "text_net"]

Weights = dict[str, Tensor]
Branch = Callable[[Tensor], Tensor]


def layer_norm(x: Tensor, w: Weights, name: str, eps: float) -> Tensor:
    """(x − mean)/√(var + ε)⊙γ + β."""
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    """x/√(mean x² + ε)⊙γ."""
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * w[f"{name}.weight"]


def attention(x: Tensor, w: Weights, heads: int, *, causal: bool) -> Tensor:
    """Query by query."""
    q, k, v = (x @ w["branches.0.qkv.weight"].T + w["branches.0.qkv.bias"]).chunk(3, -1)
    outs = []
    for a, b, c in zip(q.chunk(heads, -1), k.chunk(heads, -1), v.chunk(heads, -1), strict=True):
        rows = []
        for t in range(x.shape[1]):
            seen = t + 1 if causal else x.shape[1]
            scores = (b[:, :seen] @ a[:, t, :, None]).squeeze(-1) / math.sqrt(a.shape[-1])
            rows.append((scores.softmax(-1)[..., None] * c[:, :seen]).sum(1))
        outs.append(torch.stack(rows, 1))
    return torch.cat(outs, -1) @ w["branches.0.out.weight"].T + w["branches.0.out.bias"]


def mlp(x: Tensor, w: Weights) -> Tensor:
    """W₂ gelu(W₁ x + b₁) + b₂."""
    h = x @ w["branches.0.linear1.weight"].T + w["branches.0.linear1.bias"]
    h = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    return h @ w["branches.0.linear2.weight"].T + w["branches.0.linear2.bias"]


def gate(x: Tensor, w: Weights) -> Tensor:
    """σ(W x + b)."""
    return torch.sigmoid(x @ w["join.gate.weight.weight"].T + w["join.gate.weight.bias"])


# (x, F with its leading norm, F without, weights, norm) to x'
FORMULAS: Final[dict[str, Callable[[Tensor, Branch, Branch, Weights, Callable[[Tensor, str], Tensor]], Tensor]]] = {
    "plain": lambda x, f, _g, _w, _n: f(x),
    "post_act": lambda x, f, _g, _w, _n: x + f(x),
    "pre_norm": lambda x, f, _g, _w, _n: x + f(x),
    "pre_norm(norm=rms)": lambda x, f, _g, _w, _n: x + f(x),
    "pre_norm(init=gpt2)": lambda x, f, _g, _w, _n: x + f(x),
    "post_norm": lambda x, _f, g, _w, n: n(x + g(x), "join.after"),
    "post_norm(norm=rms)": lambda x, _f, g, _w, n: n(x + g(x), "join.after"),
    "scaled": lambda x, f, _g, _w, _n: 0.5 * x + 0.5 * f(x),
    "exclusive_gate": lambda x, f, _g, w, _n: (1 - gate(x, w)) * x + gate(x, w) * f(x),
    "shortcut_gate": lambda x, f, _g, w, _n: (1 - gate(x, w)) * x + f(x),
    "highway": lambda x, f, _g, w, _n: gate(x, w) * f(x) + (1 - gate(x, w)) * x,
    "mean": lambda x, f, _g, _w, _n: (x + f(x)) / 2,
    "multiply": lambda x, f, _g, _w, _n: x * (1 + f(x)),
    "dense": lambda x, f, _g, _w, _n: torch.cat((x, f(x)), -1),
}
# How each unit changes two streams: attention the first by what the second says, then the MLP the second; and a
# position and its velocity.
PAIRS: Final[dict[str, Callable[[Tensor, Tensor, Branch], tuple[Tensor, Tensor]]]] = {
    "revnet": lambda a, b, f: (b, a + f(b)),
    "momentum": lambda x, v, f: (x + (0.9 * v + 0.1 * f(x)), 0.9 * v + 0.1 * f(x)),
}


def text_net(
    design: str, state: Weights, units: int, ids: Tensor, *, heads: int, causal: bool, eps: float, embedded: bool
) -> Tensor:
    """Embeddings, units (attention and MLP in turn), last norm, logits of each token."""
    rms = "rms" in design

    def normed(w: Weights) -> Callable[[Tensor, str], Tensor]:
        return lambda x, name: rms_norm(x, w, name) if rms else layer_norm(x, w, name, eps)

    x = state["stem.tokens.weight"][ids] + state["stem.positions.weight"][: ids.shape[1]]
    if embedded:
        x = layer_norm(x, state, "stem.norm", eps)
    second = x
    for i in range(units):
        prefix = f"stack.units.{i}."
        w = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        norm = normed(w)

        def bare(y: Tensor, w: Weights = w, i: int = i) -> Tensor:
            return mlp(y, w) if i % 2 else attention(y, w, heads, causal=causal)

        start = "branches.0.norm1" if i % 2 else "branches.0.start"

        def whole(y: Tensor, b: Branch = bare, n: Callable[[Tensor, str], Tensor] = norm, s: str = start) -> Tensor:
            return b(n(y, s))

        if design in PAIRS:
            second = second if i else x * (design == "revnet")
            x, second = PAIRS[design](x, second, whole)
        else:
            x = FORMULAS[design](x, whole, bare, w, norm)
    if design == "revnet":
        x = (x + second) / 2
    if not design.startswith("post_norm"):
        x = normed(state)(x, "stack.exit.norm1" if design in PAIRS else "stack.exit")
    head = state.get("head.fc.weight", state["stem.tokens.weight"])
    return x @ head.T + state.get("head.fc.bias", 0)

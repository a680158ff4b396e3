"""Programs whose branches start at the wrong size, as copies of each other, or without any gradient."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from faults.case import healthy, pair
from faults.nets import (
    Attention,
    ConvNet,
    Residual,
    TokenNet,
    bn_relu,
    conv,
    conv_bn,
    ids,
    images,
    mlp,
    preact,
    preact_net,
    prenorm,
    prenorm_net,
)
from faults.programs.placement_norm import Encoder
from faults.programs.the_unit import ReZero, Scaled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# --- branch-scale: un-normalised branches at scale 1 ---


class Unnormalised(nn.Module):
    def __init__(self, branch: nn.Module, scale: float) -> None:
        super().__init__()
        self.branch, self.scale = branch, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.branch(x)
        return x + y if self.scale == 1 else x + self.scale * y


def _he(branch: nn.Module) -> nn.Module:
    for module in branch.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return branch


def _sr_branch() -> nn.Module:
    return _he(nn.Sequential(conv(16, bias=True), nn.ReLU(), conv(16, bias=True)))


def _token_branch() -> nn.Module:
    return _he(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)))


def _leading() -> nn.Module:
    return _he(nn.Sequential(nn.ReLU(), conv(16), nn.ReLU(), conv(16)))


pair("branch-scale", "super_resolution", lambda f: ConvNet([Unnormalised(_sr_branch(), 1 if f else 0.1)
     for _ in range(20)]), images(), severity="warning", where=None, reason="He convolutions at scale 1")  # fmt: skip
pair("branch-scale", "token", lambda f: TokenNet([Unnormalised(_token_branch(), 1 if f else 0.05) for _ in range(24)],
     norm=nn.Identity()), ids(), severity="warning", where=None, reason="MLPs without a norm")  # fmt: skip
pair("branch-scale", "leading_relu", lambda f: ConvNet([Unnormalised(_leading(), 1 if f else 0.1) for _ in range(24)]),
     images(), severity="warning", where=None, reason="a leading ReLU: grows slower, grows all the same")  # fmt: skip


def _fixup(depth: int = 20) -> nn.Module:
    units = []
    for _ in range(depth):
        branch = _sr_branch()
        branch[0].weight.data *= depth**-0.5
        nn.init.zeros_(branch[2].weight)
        units.append(Unnormalised(branch, 1))
    return ConvNet(units)


healthy("branch-scale", "normed", lambda: ConvNet([Residual(preact()) for _ in range(20)], end=bn_relu()), images(),
        reason="norms inside the branches")  # fmt: skip
healthy("branch-scale", "fixup", _fixup, images(), reason="no norm, but Fixup's scale and zero")
healthy("branch-scale", "rezero", lambda: TokenNet([ReZero(_token_branch()) for _ in range(24)]), ids(),
        reason="no norm, but a gate at zero")  # fmt: skip

# --- init-scale-missing: 1/√(2L) intended, not applied, or to the wrong matrix ---


class GptLayer(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = (
            nn.LayerNorm(width), Attention(width), nn.LayerNorm(width), mlp(width, 4 * width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _gpt(scaled: Callable[[int, str], bool], layers: int = 10) -> nn.Module:
    """Linear layers start at std 0.02, those that `scaled` names by layer and name at 0.02/√(2L)."""
    net = TokenNet([GptLayer() for _ in range(layers)])
    for k, layer in enumerate(net.layers):
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * layers) if scaled(k, name) else 0.02)
                nn.init.zeros_(module.bias)
    return net


_ENDS = ("attention.proj", "mlp.2")
pair("init-scale-missing", "wrong_matrix", lambda f: _gpt(lambda _, n: n in (("attention.qkv", "mlp.0") if f
     else _ENDS)), ids(), severity="warning", where=None, reason="the first matrices are scaled, not the "
     "last")  # fmt: skip
pair("init-scale-missing", "half", lambda f: _gpt(lambda _, n: n == "attention.proj" or (not f and n == "mlp.2")),
     ids(), severity="warning", where="mlp", reason="attention's ends are scaled, the MLPs' are not")  # fmt: skip
pair("init-scale-missing", "one", lambda f: _gpt(lambda k, n: n in _ENDS and not (f and k == 6)), ids(),
     severity="warning", where="layers.6", reason="one layer of ten was built later and keeps its own "
     "initialisation")  # fmt: skip


def _conv_ends(missing: bool) -> nn.Module:
    """The same habit in a convolutional net: the last convolution of each branch is scaled, but for one kind."""
    net = preact_net(12)
    for k, unit in enumerate(net.units):
        nn.init.normal_(unit.branch[2].weight, std=0.1)
        nn.init.normal_(unit.branch[5].weight, std=0.1 if missing and k % 4 == 3 else 0.1 / math.sqrt(12))
    return net


pair("init-scale-missing", "conv", _conv_ends, images(), severity="warning", where="units",
     reason="three of twelve branch ends are not scaled like their siblings")  # fmt: skip


class SaysSo(TokenNet):
    """nanoGPT's manner: the scaled matrices are found by the end of their names, which nobody has here."""

    def __init__(self, missed: bool, layers: int = 6) -> None:
        super().__init__([GptLayer() for _ in range(layers)])
        self.apply(self._init_weights)
        ends = ("c_proj.weight",) if missed else ("proj.weight", "mlp.2.weight")
        for name, parameter in self.named_parameters():
            if name.endswith(ends):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * layers))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


class Rescaled(ConvNet):
    """BEiT's manner in a convolutional net: ends are divided by the root of their depth, before all are drawn or after.

    Args:
        late: whether all weights are drawn once more behind that.
        rescale: whether it is done at all.
    """

    def __init__(self, late: bool, depth: int = 8, *, rescale: bool = True) -> None:
        super().__init__([Residual(preact()) for _ in range(depth)], end=bn_relu())
        self.rescale = rescale
        self.draw()
        if self.rescale:
            self.rescale_ends()
        if late:
            self.draw()

    def draw(self) -> None:
        for module in self.units.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)

    def rescale_ends(self) -> None:
        with torch.no_grad():
            for k, unit in enumerate(self.units):
                scale = math.sqrt(2.0 * (k + 1))
                unit.branch[5].weight.div_(scale)


pair("init-scale-missing", "says_so", SaysSo, ids(), severity="warning", where="layers", reason="the code scales what "
     "ends in c_proj.weight, and nothing does")  # fmt: skip
pair("init-scale-missing", "drawn_again", Rescaled, images(), severity="warning", where="units",
     reason="weights are drawn again when the ends have been scaled")  # fmt: skip
healthy("init-scale-missing", "switched_off", lambda: Rescaled(False, rescale=False), images(),
        reason="the code that scales by depth is switched off")  # fmt: skip
healthy("init-scale-missing", "none_scaled", lambda: _gpt(lambda _k, _n: False), ids(),
        reason="no branch end scaled: nothing says that any should be (BERT, LLaMA)")  # fmt: skip
healthy("init-scale-missing", "conv_fresh", preact_net, images(), reason="PyTorch's own initialisation")

# --- identical-init: units start as copies ---


def _copied_convs(wrong: bool) -> nn.Module:
    first = Residual(preact())
    return ConvNet([copy.deepcopy(first) if wrong else Residual(preact()) for _ in range(5)], end=bn_relu())


class Stacked(nn.Module):
    """All layers' weights in one tensor, expanded from one draw or drawn apart."""

    def __init__(self, wrong: bool, layers: int = 6, width: int = 32) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, width), nn.Linear(width, 50)
        one = torch.randn(2, width, width) * width**-0.5
        drawn = [one.clone() if wrong else torch.randn(2, width, width) * width**-0.5 for _ in range(layers)]
        self.weights = nn.ParameterList(nn.Parameter(w) for pair_ in drawn for w in pair_)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for k in range(0, len(self.weights), 2):
            h = nn.functional.layer_norm(x, x.shape[-1:]) @ self.weights[k]
            x = x + h.relu() @ self.weights[k + 1]
        return self.head(x)


class TorchEncoder(Encoder):
    """PyTorch's encoder as it comes: deep copies of one layer."""

    def __init__(self, wrong: bool) -> None:
        super().__init__(4, first=True, norm=True)
        if wrong:
            for layer in self.encoder.layers[1:]:
                layer.load_state_dict(self.encoder.layers[0].state_dict())


pair("identical-init", "deepcopy", _copied_convs, images(), severity="warning", where=None,
     reason="[copy.deepcopy(block) for _ in range(5)]")  # fmt: skip
pair("identical-init", "torch_encoder", TorchEncoder, ids(), severity="warning", where=None,
     reason="nn.TransformerEncoder copies its layer")  # fmt: skip
pair("identical-init", "functional", Stacked, ids(), severity="warning", where=None, reason="no modules at all")


def _shared() -> nn.Module:
    attention, feed = prenorm()
    return TokenNet([attention, feed] * 4)


def _same_zeros() -> nn.Module:
    net = ConvNet([Residual(conv_bn()) for _ in range(5)])
    for unit in net.units:
        nn.init.zeros_(unit.branch[4].weight)
    return net


healthy("identical-init", "shared", _shared, ids(), reason="one layer called four times: weights are shared, no copies")
healthy("identical-init", "constants", _same_zeros, images(), reason="gains of 1, biases of 0, zero ends are alike in "
        "all units")  # fmt: skip

# --- zero-twice: gate and last layer both zero ---


def _zero_end(branch: nn.Module) -> nn.Module:
    last = [m for m in branch.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
    nn.init.zeros_(last.weight)
    if last.bias is not None:
        nn.init.zeros_(last.bias)
    return branch


class NonLocal(nn.Module):
    """A non-local block: the last 1×1 is followed by a BatchNorm that starts at zero."""

    def __init__(self, twice: bool, width: int = 16) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(width, 8, 1) for _ in range(3))
        self.out, self.norm = nn.Conv2d(8, width, 1), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm.weight)
        if twice:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).flatten(2) for f in (self.theta, self.phi, self.g))
        y = ((q.transpose(1, 2) @ k).softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)
        return x + self.norm(self.out(y.reshape(x.shape[0], -1, *x.shape[2:])))


pair("zero-twice", "rezero", lambda f: TokenNet([ReZero(_zero_end(u.branch) if f else u.branch) for _ in range(3)
     for u in prenorm()]), ids(), severity="error", where="layers", reason="α = 0, last layer zero")  # fmt: skip
pair("zero-twice", "layer_scale", lambda f: TokenNet([Scaled(_zero_end(u.branch) if f and k == 1 else u.branch, 0.0)
     for k in range(3) for u in prenorm()]), ids(), severity="error", where="layers.2",
     reason="γ = 0, and one layer's ends are zero")  # fmt: skip
pair("zero-twice", "non_local", lambda f: ConvNet([m for _ in range(2) for m in (Residual(conv_bn()), NonLocal(f))]),
     images(), severity="error", where="units", reason="zero weight before a zero gain")  # fmt: skip
healthy("zero-twice", "gates_alone", lambda: TokenNet([ReZero(u.branch) for _ in range(3) for u in prenorm()]), ids(),
        reason="ReZero's α = 0 alone has a gradient")  # fmt: skip
healthy("zero-twice", "ends_alone", lambda: ConvNet([Residual(_zero_end(preact())) for _ in range(4)], end=bn_relu()),
        images(), reason="a zero last layer alone has a gradient")  # fmt: skip

# --- zero-init: to be praised ---


def _zero_gain(zero: bool) -> nn.Module:
    net = ConvNet([nn.Sequential(Residual(conv_bn()), nn.ReLU()) for _ in range(4)])
    if zero:
        for unit in net.units:
            nn.init.zeros_(unit[0].branch[4].weight)
    return net


pair("zero-init", "conv", lambda f: ConvNet([Residual(_zero_end(preact()) if f else preact()) for _ in range(4)],
     end=bn_relu()), images(), severity="info", where=None, reason="the last convolution starts at zero")  # fmt: skip
pair("zero-init", "token", lambda f: TokenNet([Residual(_zero_end(u.branch) if f else u.branch) for _ in range(3)
     for u in prenorm()]), ids(), severity="info", where=None, reason="the last linear layer is zero")  # fmt: skip
pair("zero-init", "gain", _zero_gain, images(), severity="info", where=None,
     reason="the last BatchNorm's gain starts at zero")  # fmt: skip
healthy("zero-init", "prenorm", prenorm_net, ids(), reason="nothing starts at zero but biases")

# --- decay-on-gates: needs the optimizer ---


def _apart(model: nn.Module, decays: bool, names: Iterable[str], kind: Callable[..., Any], **more: Any) -> Any:
    """An optimizer that decays all, or all but vectors, scalars and what carries one of `names`."""
    names = tuple(names)
    if decays:
        return kind(model.parameters(), weight_decay=0.05, **more)
    gates = [p for n, p in model.named_parameters() if p.ndim < 2 or any(g in n for g in names)]
    kept = [p for p in model.parameters() if not any(p is g for g in gates)]
    groups = [{"params": kept, "weight_decay": 0.05}, {"params": gates, "weight_decay": 0.0}]
    return kind(groups, **more)


pair("decay-on-gates", "rezero", lambda _: TokenNet([ReZero(u.branch) for _ in range(3) for u in prenorm()]), ids(),
     severity="warning", where=None, optimizer=lambda f, m: _apart(m, f, ["alpha"], torch.optim.AdamW, lr=1e-3),
     reason="AdamW over model.parameters()")  # fmt: skip
pair("decay-on-gates", "layer_scale", lambda _: TokenNet([Scaled(u.branch, 0.1) for _ in range(3) for u in prenorm()]),
     ids(), severity="warning", where=None,
     optimizer=lambda f, m: _apart(m, f, ["gamma"], torch.optim.SGD, lr=0.1, momentum=0.9),
     reason="SGD decays LayerScale")  # fmt: skip
pair("decay-on-gates", "norm_gain", lambda _: ConvNet([Residual(conv_bn()) for _ in range(4)]), images(),
     severity="warning", where=None, optimizer=lambda f, m: _apart(m, f, [], torch.optim.SGD, lr=0.1),
     reason="the gain of the last BatchNorm scales the branch")  # fmt: skip
healthy("decay-on-gates", "no_decay", lambda: TokenNet([ReZero(u.branch) for _ in range(3) for u in prenorm()]), ids(),
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3), reason="no decay at all")  # fmt: skip
healthy("decay-on-gates", "no_optimizer", lambda: TokenNet([ReZero(u.branch) for _ in range(3) for u in prenorm()]),
        ids(), reason="no optimizer given: nothing can be said")  # fmt: skip

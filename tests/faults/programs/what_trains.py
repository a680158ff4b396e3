"""Programs some of whose weights are never trained: the model does not hold them, does not run them, or no optimizer
has them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from torch import nn

from faults.case import healthy, pair
from faults.nets import Residual, TokenNet, conv, ids, images, mlp, preact, prenorm, prenorm_net

if TYPE_CHECKING:
    from collections.abc import Callable

# --- unregistered-weights: they take part, and PyTorch does not find them ---


class Held(nn.Module):
    """Stem, units, head; `hold` says in what the units are kept."""

    def __init__(self, hold: Callable[[list[nn.Module]], object], branch: Callable[[], nn.Module] = preact) -> None:
        super().__init__()
        self.stem = conv(3, 16)
        self.units = hold([Residual(branch()) for _ in range(4)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for unit in self.units.values() if hasattr(self.units, "values") else self.units:
            x = unit(x)
        return self.head(x.relu().mean((2, 3)))


def _named(units: list[nn.Module]) -> dict[str, nn.Module]:
    return {f"unit{k}": unit for k, unit in enumerate(units)}


class Gained(nn.Module):
    """x + g·F(x), where g is a tensor that needs a gradient."""

    def __init__(self, gain: torch.Tensor) -> None:
        super().__init__()
        self.norm, self.branch, self.gain = nn.LayerNorm(32), mlp(), gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.branch(self.norm(x))


class MadeAnew(nn.Module):
    """x + F(norm(x)), where forward makes the norm."""

    def __init__(self, *, anew: bool) -> None:
        super().__init__()
        self.norm, self.branch, self.anew = nn.LayerNorm(32), mlp(), anew

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = nn.LayerNorm(x.shape[-1]) if self.anew else self.norm
        return x + self.branch(norm(x))


class Watched(nn.Module):
    """A net beside a teacher in a list, whose result it takes without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher = prenorm_net(2), [prenorm_net(2)]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher[0](tokens)
        return self.net(tokens) - target


class Late(nn.Module):
    """x + F(norm(x)), where the first call of forward makes the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "norm"):
            self.norm = nn.LayerNorm(x.shape[-1])
        return x + self.branch(self.norm(x))


class Past(nn.Module):
    """A net and a further block, which is set past PyTorch's bookkeeping."""

    def __init__(self, *, past: bool) -> None:
        super().__init__()
        self.net = prenorm_net(2)
        (object if past else nn.Module).__setattr__(self, "more", Residual(nn.Linear(50, 50)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.more(self.net(tokens))


class Frozen(Held):
    def __init__(self) -> None:
        super().__init__(tuple)
        for unit in self.units:
            unit.requires_grad_(False)


pair("unregistered-weights", "list", lambda f: Held(list if f else nn.ModuleList), images(), severity="error",
     where=None, reason="blocks in a Python list")  # fmt: skip
pair("unregistered-weights", "dict", lambda f: Held(_named if f else lambda u: nn.ModuleDict(_named(u))), images(),
     severity="error", where=None, reason="blocks in a dict")  # fmt: skip
pair("unregistered-weights", "moved", lambda f: TokenNet([
        Gained(nn.Parameter(torch.full((32,), 0.5)) * 0.2 if f else nn.Parameter(torch.full((32,), 0.1)))
        for _ in range(3)
     ]), ids(), severity="error", where="layers", reason="a multiplied parameter is none")  # fmt: skip
pair("unregistered-weights", "tensor", lambda f: TokenNet([
        Gained(torch.full((32,), 0.1, requires_grad=True) if f else nn.Parameter(torch.full((32,), 0.1)))
        for _ in range(3)
     ]), ids(), severity="error", where="layers", reason="a tensor that trains, and no parameter")  # fmt: skip
pair("unregistered-weights", "anew", lambda f: TokenNet([MadeAnew(anew=f) for _ in range(3)]), ids(),
     severity="error", where="layers", reason="forward makes its norm at each call")  # fmt: skip
pair("unregistered-weights", "past", lambda f: Past(past=f), ids(), severity="warning", where=None,
     reason="a block set by object.__setattr__")  # fmt: skip
healthy("unregistered-weights", "teacher", Watched, ids(), reason="a teacher in a list, run under no_grad")
healthy("unregistered-weights", "late", lambda: TokenNet([Late() for _ in range(3)]), ids(),
        reason="the first call makes the norms, and the model holds them from then on")  # fmt: skip
healthy("unregistered-weights", "frozen", Frozen, images(), reason="units in a tuple that need no gradient")

# --- idle-block: built, and never run ---


class Loop(nn.Module):
    """Embedding, units in the order that `order` gives, head."""

    def __init__(self, order: Callable[[Loop], object], units: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(Residual(nn.Sequential(nn.LayerNorm(32), mlp())) for _ in range(units))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50)
        self.order = order

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for k in self.order(self):
            x = self.layers[k](x)
        return self.head(self.norm(x))


class Experts(nn.Module):
    """A net that sends the whole batch through one of four units, which the batch itself chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = prenorm_net(1)
        self.experts = nn.ModuleList(Residual(nn.Sequential(nn.LayerNorm(50), nn.Linear(50, 50))) for _ in range(4))
        self.router = nn.Linear(50, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.first(tokens)
        return self.experts[int(self.router(x.mean((0, 1))).argmax())](x)


class Tasks(nn.Module):
    """A net with a block for each task, of which an argument names one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = prenorm_net(1)
        self.tasks = nn.ModuleDict({name: Residual(nn.Linear(50, 50)) for name in ("one", "two", "three")})

    def forward(self, tokens: torch.Tensor, task: str = "two") -> torch.Tensor:
        return self.tasks[task](self.net(tokens))


class Dropping(Loop):
    """Each unit is left out with probability 1/2 in training, and counts twice when it is not."""

    def __init__(self) -> None:
        super().__init__(lambda net: range(len(net.layers)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            if not self.training:
                x = layer(x)
            elif random.random() < 0.5:
                x = x + 2 * layer.branch(x)
        return self.head(self.norm(x))


pair("idle-block", "last", lambda f: Loop(lambda _: range(5 if f else 6)), ids(), severity="warning", where="layers.5",
     reason="range(depth - 1)")  # fmt: skip
pair("idle-block", "every_other", lambda f: Loop(lambda _: range(0, 6, 2 if f else 1)), ids(), severity="warning",
     where="layers.1", reason="a loop that steps over blocks")  # fmt: skip
healthy("idle-block", "dropped", Dropping, ids(), reason="blocks dropped by chance run in eval mode")
healthy("idle-block", "experts", Experts, ids(), reason="the batch chooses one of the experts")
healthy(
    "idle-block", "one_for_all", lambda: Loop(lambda _: [0] * 4, units=1), ids(), reason="one block, run four times"
)

# --- not-optimized: needs the optimizer ---


def _early(model: nn.Module, early: bool, change: Callable[[nn.Module], None]) -> torch.optim.Optimizer:
    """An optimizer built before or after the model is changed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    change(model)
    return optimizer if early else torch.optim.SGD(model.parameters(), lr=0.1)


def _new_head(model: nn.Module) -> None:
    model.head = nn.Linear(32, 50)


def _new_weights(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))


def _matrices(model: nn.Module, only: bool) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.ndim > 1 or not only]
    return torch.optim.AdamW(weights, lr=1e-3, weight_decay=0.0)


def _half_frozen() -> nn.Module:
    net = prenorm_net(2)
    net.layers[0].requires_grad_(False)
    return net


pair("not-optimized", "head", lambda _: prenorm_net(2), ids(), severity="warning", where="head",
     optimizer=lambda f, m: _early(m, f, _new_head), reason="a new head after the optimizer")  # fmt: skip
pair("not-optimized", "another", lambda _: prenorm_net(2), ids(), severity="error", where=None,
     optimizer=lambda f, m: _early(m, f, _new_weights), reason="all parameters replaced since")  # fmt: skip
pair("not-optimized", "groups", lambda _: TokenNet([u for _ in range(2) for u in prenorm()]), ids(),
     severity="warning", where=None, optimizer=lambda f, m: _matrices(m, f), reason="vectors in no group")  # fmt: skip
healthy("not-optimized", "frozen", _half_frozen, ids(),
        optimizer=lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.1),
        reason="what is left out is frozen")  # fmt: skip
healthy("not-optimized", "own_copies", lambda: prenorm_net(2).to(torch.bfloat16), ids(),
        optimizer=lambda m: torch.optim.SGD([nn.Parameter(p.detach().float()) for p in m.parameters()], lr=0.1),
        reason="float32 copies of a bfloat16 model")  # fmt: skip
healthy("not-optimized", "no_optimizer", lambda: prenorm_net(2), ids(), reason="no optimizer given")

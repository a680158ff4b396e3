"""A twin of a model that computes the same and whose class names, module names and parameter names say nothing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["erased"]


def erased(model: nn.Module) -> nn.Module:
    """A copy with modules named m0, m1 …, parameters p0, p1 …, buffers b0, b1 …, and classes all called M."""
    twin = copy.deepcopy(model)
    for module in list(twin.modules()):
        _erase(module)
    return twin


def _erase(module: nn.Module) -> None:
    aliases: dict[str, str] = {}
    for table, letter in ((module._modules, "m"), (module._parameters, "p"), (module._buffers, "b")):
        for i, (name, value) in enumerate(list(table.items())):
            aliases[name] = f"{letter}{i}"
            del table[name]
            table[f"{letter}{i}"] = value
    module._non_persistent_buffers_set = {aliases.get(n, n) for n in module._non_persistent_buffers_set}
    base = type(module)

    def get(self: nn.Module, name: str) -> Any:
        return base.__getattr__(self, aliases.get(name, name))

    def put(self: nn.Module, name: str, value: Any) -> None:
        base.__setattr__(self, aliases.get(name, name), value)

    module.__class__ = type("M", (base,), {"__getattr__": get, "__setattr__": put, "__module__": "m"})

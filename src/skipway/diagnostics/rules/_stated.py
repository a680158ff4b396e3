"""Whether a model's own code says that its branch ends start at a size that depends on depth.

Read are the functions that initialise: ``__init__`` and what it calls of the model's own, and ``_init_weights``, which
Transformers calls. A statement is a root of twice a number of layers, or of a layer's own number, that goes into a call
which draws or rescales weights: ``normal_(w, std=0.02 / math.sqrt(2 * config.n_layer))``, ``w.div_(scale)``.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["Statement", "stated"]

_DEPTH: Final = re.compile(r"(n|num)?_?(hidden|decoder|encoder)?_?(layers?|blocks?)(_id|_idx)?|depth|L", re.IGNORECASE)
_FIRST: Final = ("__init__", "_init_weights")
_SETS: Final = re.compile(r"init|normal_$|uniform_$|^(div|mul)_$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """What code says of the size of branch ends.

    Args:
        where: the function that says it.
        start: the standard deviation that is divided by the root of depth; None where drawn weights are divided.
    """

    where: str
    start: float | None


def stated(module: nn.Module) -> Statement | None:
    """What the code that initialises a module says, where it is not switched off by the module's configuration."""
    functions = _functions(type(module))
    if not any(_may_say(function.__code__) for function in functions.values()):
        return None  # known without reading the source
    pending, seen = list(_FIRST), set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        reader = _Reader(module)
        reader.read(functions[name])
        for value, rescales in reader.statements():
            start = reader.numerator(value)
            if start is not None or rescales:
                return Statement(f"{type(module).__name__}.{name}", start)
        pending += reader.calls
    return None


def _functions(cls: type[nn.Module]) -> dict[str, FunctionType]:
    """The functions that initialise, and all of the module's own that they name."""
    found: dict[str, FunctionType] = {}
    pending = list(_FIRST)
    while pending:
        name = pending.pop()
        function = getattr(cls, name, None)
        if name in found or not inspect.isfunction(function) or function.__module__.startswith("torch."):
            continue
        found[name] = function
        pending += function.__code__.co_names
    return found


def _may_say(code: CodeType) -> bool:
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    root = "sqrt" in code.co_names or any(part in (0.5, -0.5) for part in code.co_consts if isinstance(part, float))
    return (root and 2 in code.co_consts) or any(map(_may_say, inner))


class _Reader(ast.NodeVisitor):
    """What runs in a function: calls, and values by name; a branch that is switched off is passed over."""

    def __init__(self, module: nn.Module) -> None:
        self.calls: list[str] = []
        self._module = module
        self._sets: list[ast.Call] = []
        self._named: dict[str, ast.expr] = {}

    def read(self, function: FunctionType) -> None:
        """Read a function's source, if there is one (not in a compiled file)."""
        try:
            self.visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
        except (OSError, TypeError, SyntaxError):
            return

    def visit_If(self, node: ast.If) -> None:
        """Only what may run: a test of a setting that is off, or of an argument that nobody kept, is not passed."""
        if self._may_pass(node.test):
            for child in node.body:
                self.visit(child)
        for child in node.orelse:
            self.visit(child)

    def visit_Assign(self, node: ast.Assign) -> None:
        """A value by its name."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._named[target.id] = node.value
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Calls that set weights, and calls of the module's own methods."""
        if _SETS.search(_last_name(node.func)):
            self._sets.append(node)
        for part in (node.func, *node.args):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                self.calls.append(part.attr)
        self.generic_visit(node)

    def statements(self) -> Iterator[tuple[ast.expr, bool]]:
        """Values that depend on depth and go into calls that set weights; whether the call divides what was drawn."""
        for call in self._sets:
            rescales = _last_name(call.func) == "div_"
            for argument in (*call.args, *(k.value for k in call.keywords)):
                names = [n.id for n in ast.walk(argument) if isinstance(n, ast.Name)]
                for value in (argument, *(self._named[n] for n in names if n in self._named)):
                    if any(_is_root_of_depth(part) for part in ast.walk(value)):
                        yield value, rescales

    def numerator(self, value: ast.expr) -> float | None:
        """What is divided by the root of depth, if it is a number here."""
        for part in ast.walk(value):
            if (
                isinstance(part, ast.BinOp)
                and isinstance(part.op, (ast.Div, ast.Mult))
                and _is_root_of_depth(part.right)
            ):
                known = self._known(part.left)
                if isinstance(known, (int, float)):
                    return float(known)
        return None

    def _may_pass(self, test: ast.expr) -> bool:
        if isinstance(test, ast.BoolOp):
            passes = [self._may_pass(value) for value in test.values]
            return all(passes) if isinstance(test.op, ast.And) else any(passes)
        if isinstance(test, (ast.Name, ast.Attribute)):
            return bool(self._known(test))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            known = self._known(test.operand)
            return known is not None and not known
        return True  # which module it is, or which of its parameters

    def _known(self, value: ast.expr) -> Any:
        """A constant, or an attribute of the module or of its configuration; None where it cannot be known."""
        if isinstance(value, ast.Constant):
            return value.value
        if isinstance(value, ast.Name):
            return getattr(self._module, "config", None) if value.id == "config" else None
        if isinstance(value, ast.Attribute):
            if isinstance(value.value, ast.Name) and value.value.id == "self":
                return getattr(self._module, value.attr, None)
            return getattr(self._known(value.value), value.attr, None)
        return None


def _is_root_of_depth(value: ast.AST) -> bool:
    if isinstance(value, ast.Call) and _last_name(value.func) == "sqrt" and len(value.args) == 1:
        return _is_twice_depth(value.args[0])
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Pow):
        power = value.right.operand if isinstance(value.right, ast.UnaryOp) else value.right
        half = isinstance(power, ast.Constant) and isinstance(power.value, float) and math.isclose(power.value, 0.5)
        return half and _is_twice_depth(value.left)
    return False


def _is_twice_depth(value: ast.expr) -> bool:
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return False
    sides = (value.left, value.right)
    if not any(isinstance(side, ast.Constant) and side.value == 2 for side in sides):
        return False
    return any(_DEPTH.fullmatch(_last_name(part)) or _is_number_of_layer(part) for s in sides for part in ast.walk(s))


def _is_number_of_layer(value: ast.AST) -> bool:
    """Whether it is ``k + 1``, whatever the name."""
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and isinstance(value.left, ast.Name)
        and isinstance(value.right, ast.Constant)
        and value.right.value == 1
    )


def _last_name(value: ast.AST) -> str:
    return value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""

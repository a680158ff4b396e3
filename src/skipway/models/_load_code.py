"""``pkg.mod:factory`` and ``path/to/file.py:factory``: somebody's own code, whose own errors stay visible."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from skipway.errors import ModelRunError, SkipwayError, UnknownNameError, suggest
from skipway.models._load_types import Batch, LoadedModel, Mode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["import_object", "load_code"]


def load_code(name: str, prefixes: tuple[str, ...]) -> LoadedModel:
    """Call the factory named by ``pkg.mod:factory`` or ``file.py:factory``; a class of module is such a factory.

    Args:
        name: where the factory is.
        prefixes: the prefixes that name libraries, for suggestions.

    Raises:
        SkipwayError: there is no such factory, it wants arguments, or returns no module.
        ModelRunError: the code fails; its own error is chained.
    """
    target, _, _attribute = name.rpartition(":")
    with _importable(target):
        factory = import_object(name, prefixes)
        model = factory if isinstance(factory, nn.Module) else _call(name, factory)
    source = "file" if target.endswith(".py") else "module"
    mode: Mode = "train" if model.training else "eval"
    return LoadedModel(model=model, label=name, source=source, mode=mode, batch=_example(model))


def import_object(name: str, prefixes: tuple[str, ...] = ()) -> Any:
    """The object named by ``pkg.mod:attribute`` or ``file.py:attribute``.

    Raises:
        SkipwayError: no such file, module or attribute.
        ModelRunError: the file or module fails to import; its own error is chained.
    """
    target, _, attribute = name.rpartition(":")
    if not target:
        target, attribute = attribute, ""
    with _importable(target):
        module = _import_file(target, attribute) if target.endswith(".py") else _import_module(target, prefixes)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise UnknownNameError("name", attribute, public, f"a factory or class of {target}, as {target}:NAME")
        found = getattr(found, part)
    return found


def _import_file(target: str, attribute: str) -> ModuleType:
    path = Path(target).expanduser()
    if not path.is_file():
        neighbours = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        close = suggest(path.name, neighbours)
        expected = f"did you mean {str(path.with_name(close[0]))!r}?" if close else "path/to/file.py:factory"
        raise SkipwayError(f"there is no file {target!r}", expected)
    if not attribute:
        defined = ", ".join(_defined(path)) or "nothing"
        raise SkipwayError(f"{target!r} names no factory", f"{target}:FACTORY; the file defines {defined}")
    # Under a name of its own: a file random.py is not to stand in for Python's module.
    place = hashlib.blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()
    name = f"skipway_user_{path.stem}_{place}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SkipwayError(f"{target!r} cannot be imported as Python code", "path/to/file.py:factory")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        _put_back(name, before)
        raise ModelRunError(f"{target} fails to import: {type(error).__name__}: {error}") from error
    return module


def _put_back(name: str, before: ModuleType | None) -> None:
    if before is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = before


def _import_module(target: str, prefixes: tuple[str, ...]) -> ModuleType:
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if target != missing and not target.startswith(f"{missing}."):
            raise ModelRunError(f"{target} fails to import: {type(error).__name__}: {error}") from error
        if close := suggest(target, prefixes):
            expected = "did you mean " + " or ".join(repr(f"{c}:") for c in close) + "?"
            raise SkipwayError(f"unknown prefix {target + ':'!r}, and no module of that name", expected) from None
        raise SkipwayError(
            f"there is no module {missing!r}", "pkg.mod:factory, importable from here, or path/to/file.py:factory, "
            f"or a prefix: {', '.join(f'{p}:' for p in prefixes)}",
        ) from None  # fmt: skip
    except (Exception, SystemExit) as error:
        raise ModelRunError(f"{target} fails to import: {type(error).__name__}: {error}") from error


def _call(name: str, factory: Any) -> nn.Module:
    if not callable(factory):
        raise SkipwayError(
            f"{name} is not callable: it is of type {type(factory).__name__}",
            "a function or class that takes no arguments and gives a torch.nn.Module",
        )
    needed = _required(factory)
    if needed:
        raise SkipwayError(
            f"{name} needs arguments: {', '.join(needed)}", "a factory without arguments",
            f"def build(): return {name.rpartition(':')[2]}({', '.join(f'{p}=…' for p in needed)})",
        )  # fmt: skip
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise ModelRunError(f"{name}() fails: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise SkipwayError(f"{name}() gives {type(model).__name__}, no model", "a factory that gives a torch.nn.Module")
    return model


def _required(factory: Any) -> list[str]:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin tells no signature
        return []
    skipped = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in skipped]


def _example(model: nn.Module) -> Batch | None:
    """The input that the model itself names, as Lightning modules and timm models do."""
    example = getattr(model, "example_input_array", None)
    if isinstance(example, Tensor | tuple | dict):
        return example
    return None


def _defined(path: Path) -> list[str]:
    """Names of the top-level functions and classes of a file, read without running it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return []
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


@contextmanager
def _importable(target: str) -> Iterator[None]:
    """Let the code import its neighbours: a file those of its folder, a module those of the working directory."""
    place = str(Path(target).expanduser().resolve().parent) if target.endswith(".py") else os.getcwd()  # noqa: PTH109
    if place in sys.path:
        yield
        return
    sys.path.insert(0, place)
    try:
        yield
    finally:
        if place in sys.path:
            sys.path.remove(place)

"""A package imports only from packages above it; read from the source, not from what happens to run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "skipway"
ORDER = [
    "errors", "cores", "registry", "form", "parts", "spec", "report", "blocks", "designs", "models", "data", "trace",
    "units", "diagnostics", "train", "study", "integrations", "cli",
]  # fmt: skip
# They serve any nn.Module and so know nothing of ours.
OURS = {"blocks", "designs", "models"}
BANNED = {"trace": OURS, "units": OURS, "diagnostics": OURS}
NO_TORCH = {"errors", "cores", "registry", "form", "parts", "spec", "report"}
FILES = sorted(SOURCE.rglob("*.py"))


def layer(path: Path) -> str:
    inside = path.relative_to(SOURCE)
    return inside.parts[0].removesuffix(".py")


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(tree: ast.AST) -> set[str]:
    """Dotted names that a file imports when it runs, also inside functions; not what type checkers alone see."""
    found: set[str] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if for_types_only(node):
            assert isinstance(node, ast.If)
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))
    return found


def test_there_is_something_to_read() -> None:
    assert len(FILES) > 10
    assert {layer(f) for f in FILES} - {"__init__", "__main__"} <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_layers(path: Path) -> None:
    own = layer(path)
    if own in ("__init__", "__main__"):
        return  # the public surface; its imports are lazy and tested by `--help` without torch
    found = imports(ast.parse(path.read_text(encoding="utf-8")))
    used = {name.split(".")[1] for name in found if name.startswith("skipway.")}
    allowed = set(ORDER[: ORDER.index(own) + 1])
    assert used & set(ORDER) <= allowed, f"{own} imports {sorted(used & set(ORDER) - allowed)}, which come after it"
    assert not used & BANNED.get(own, set()), f"{own} serves any module and may not import {BANNED[own]}"
    if own in NO_TORCH:
        assert not {n for n in found if n.split(".")[0] in ("torch", "torchvision", "numpy")}


def test_the_reader_sees_what_it_should() -> None:
    code = "import a.b\nfrom skipway.form import Op\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import c\n"
    assert imports(ast.parse(code)) == {"a.b", "skipway.form", "skipway.form.Op", "c"}

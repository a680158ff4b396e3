"""A post-norm unit made pre-norm: its branch reads the stream through the norm that followed the merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from skipway.errors import SkipwayError
from skipway.trace.batch import Batch, call_arguments, copied
from skipway.trace.preserve import preserved
from skipway.units.intercept import Plan, Run, bare, intercepted, shows_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from skipway.trace.graph import Address
    from skipway.units.describe import Described
    from skipway.units.locate import Located
    from skipway.units.stages import Stage
    from skipway.units.streams import Held

__all__ = ["NormReads"]

_FUNCTIONS = frozenset({"layer_norm", "rms_norm", "group_norm"})


class NormReads:
    """Gives N(x) to each torch function call of a branch that reads x.

    Args:
        path: the unit's path.
        unit: the unit.
        stage: the norm after its merge.
        held: where x is kept during a run.
        located: where it was recorded.
        batch: what it was recorded on.

    Raises:
        SkipwayError: the norm cannot be called by itself, or the branch reads x in another shape.
    """

    def __init__(self, path: str, unit: Described, stage: Stage, held: Held, located: Located, batch: Batch) -> None:
        self.path, self.unit, self.stage, self.held, self.located = path, unit, stage, held, located
        self.addresses = self._find_reads()
        self._norm = self._module() or self._function(batch)

    def __call__(
        self,
        run: Run,
        go_on: Callable[..., Any],
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a call with N(x) in place of x."""
        x = self.held.get(run)
        normed = run.held.get(self)
        if normed is None:
            with run.aside():
                normed = run.held[self] = self._norm(x)
        count = 0

        def swapped(value: Any) -> Any:
            nonlocal count
            if isinstance(value, torch.Tensor) and shows_same(value, x):
                count += 1
                return normed
            if type(value) in (tuple, list):
                return type(value)(swapped(v) for v in value)
            return value

        args = tuple(swapped(a) for a in args)
        kwargs = {k: swapped(v) for k, v in kwargs.items()}
        if not count:
            raise SkipwayError(
                f"the norm of unit {self.path!r} cannot be moved into the branch: "
                f"{getattr(func, '__name__', 'a call')}() reads the stream in another form",
                "a branch that reads x itself",
            )
        return go_on(*args, **kwargs)

    def forget(self, run: Run, _result: Any) -> None:
        """When the branch has joined, keep x and N(x) no longer."""
        run.held.pop(self, None)
        self.held.drop(run)

    # ---- where the branch reads x

    def _find_reads(self) -> list[Address]:
        """The calls outside the shortcut that take x and lead to a branch's end."""
        links, candidate = self.located.links, self.unit.candidate
        shape = links.nodes[candidate.join].shape
        found: dict[Address, None] = {}
        pending, seen = [candidate.base], {candidate.base}
        while pending:
            value = pending.pop()
            for c in sorted(links.consumers[value]):
                if c in seen or not links.alive[c]:
                    continue
                node = links.nodes[c]
                view = links.strip(c) == candidate.base
                if c in candidate.adds or self._on_shortcut(c) or (view and node.caller is None):
                    if view:
                        seen.add(c)
                        pending.append(c)
                    continue
                if not any(c == t.node or links.descends(t.node, c) for t in candidate.branches):
                    continue
                address = self.located.graph.address(node)
                if address is None or links.nodes[value].shape != shape:
                    raise SkipwayError(
                        f"the norm of unit {self.path!r} cannot be moved into the branch: "
                        + ("no torch function reads x" if address is None else "the branch reads x in another shape"),
                        "a branch that reads x itself",
                    )
                found[address] = None
        if not found:
            raise SkipwayError(
                f"the norm of unit {self.path!r} cannot be moved into the branch: nothing was seen to read x",
                "a branch that reads x itself",
            )
        return list(found)

    def _on_shortcut(self, node: int) -> bool:
        candidate, links = self.unit.candidate, self.located.links
        route = {candidate.shortcut.node, *self.unit.shortcut_nodes}
        return node in route or node == candidate.x or links.descends(candidate.x, node)

    # ---- the norm

    def _module(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The module that is the norm and nothing else, if one is."""
        graph, nodes = self.located.graph, self.located.links.nodes
        around_join = graph.chain(nodes[self.unit.candidate.join].call)
        chains = [graph.chain(nodes[i].call) for i in self.stage.nodes]
        shared = [call for call in chains[0] if all(call in c for c in chains) and call not in around_join]
        if not shared:
            return None
        modules = dict(self.located.model.named_modules(remove_duplicate=False))
        module = modules.get(graph.calls[shared[-1]].path)
        return None if module is None else lambda x: _once_counted(module, x)

    def _function(self, batch: Batch) -> Callable[[torch.Tensor], torch.Tensor]:
        """A norm that is called as a function: the call, with other data."""
        made = self.located.made(self.stage.end)
        name = made.address.function if made is not None and made.address is not None else ""
        if made is None or made.address is None or name not in _FUNCTIONS or len(self._callers()) != 1:
            raise SkipwayError(
                f"the norm of unit {self.path!r} cannot be moved into the branch: it is no module and no call of "
                + ", ".join(sorted(_FUNCTIONS)),
                "a norm that is a module of its own",
            )
        calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

        def note(
            _run: Run,
            go_on: Callable[..., Any],
            func: Callable[..., Any],
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
        ) -> Any:
            calls.append((func, args[1:], kwargs))
            return go_on(*args, **kwargs)

        model = self.located.model
        with preserved(model, parameters=self.located.writes_parameters), torch.no_grad(), bare(model):
            given, named = copied(call_arguments(batch))
            with intercepted(model, Plan({made.address: [note]})):
                model(*given, **named)
        func, rest, options = calls[0]
        owned = {id(t) for t in (*model.parameters(), *model.buffers())}
        tensors = [t for t in (*rest, *options.values()) if isinstance(t, torch.Tensor)]
        if "input" in options or any(id(t) not in owned for t in tensors):
            raise SkipwayError(
                f"the norm of unit {self.path!r} cannot be moved into the branch: its gain is computed anew each time",
                "a norm that is a module of its own",
            )
        return lambda x: func(x, *rest, **options)

    def _callers(self) -> set[Any]:
        nodes = self.located.links.nodes
        return {nodes[i].caller for i in self.stage.nodes}


def _once_counted(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A norm applied beside its own call: the model calls it, too, and then counts the batch."""
    count = getattr(module, "num_batches_tracked", None)
    before = count.clone() if isinstance(count, torch.Tensor) else None
    out: torch.Tensor = module(x)
    if isinstance(count, torch.Tensor) and before is not None:
        with torch.no_grad():
            count.copy_(before)
    return out

"""Blocks of a net without residual units, each replaced by the identity: as layers of a plain net are deleted."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from skipway.errors import SkipwayError, UnknownNameError
from skipway.trace.attributes import named_modules
from skipway.trace.batch import call_arguments, copied, describe, failed_on
from skipway.trace.modules import eager
from skipway.trace.preserve import preserved
from skipway.units.lesion.influence import Influence
from skipway.units.lesion.prefix import standing_in
from skipway.units.lesion.sites import Site
from skipway.units.lesion.swap import content_of_block
from skipway.units.lesion.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from skipway.trace.batch import Batch
    from skipway.units.lesion.record import What

__all__ = ["BlockSites"]

_FEWEST: Final = 2
_IMAGES: Final = 4  # dimensions
_CONVOLUTION: Final = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class _Called:
    """What was seen of a module's first call."""

    order: int
    before: tuple[int, ...] | None
    after: tuple[int, ...] | None
    gives: str

    @property
    def keeps(self) -> bool:
        return self.before is not None and self.before == self.after


class BlockSites:
    """Modules that map a tensor to one of the same shape.

    Args:
        model: any module.
        batch: what it is called with.
        blocks: module paths; or ``"auto"``: siblings of one class that run in a row, of which at least two and at least
            half keep their shape; the outermost such rows.

    Raises:
        UnknownNameError: a path is none of a module.
        SkipwayError: a module did not run, or no rows are found.
    """

    what: What = "block"

    def __init__(self, model: nn.Module, batch: Batch, blocks: str | Sequence[str]) -> None:
        self._model, self._modules = model, dict(named_modules(model))
        self.writes_parameters = False
        called = self._record(batch)
        if isinstance(blocks, str) and blocks == "auto":
            paths = self._rows("", model, called)
            if not paths:
                raise SkipwayError(
                    f"blocks='auto': no equal modules in a row that keep their shape in {type(model).__name__}",
                    "paths of modules that map a tensor to one of the same shape",
                    'blocks=["features.3", "features.5"]',
                )
        else:
            paths = [blocks] if isinstance(blocks, str) else list(blocks)
        for path in paths:
            if path not in self._modules or not path:
                raise UnknownNameError("block", path, [p for p in self._modules if p])
            if path not in called:
                raise SkipwayError(f"block {path!r} did not run on {describe(batch)}", "a module that runs")
        ordered = sorted(dict.fromkeys(paths), key=lambda p: called[p].order)
        self.sites = {path: self._site(path, called) for path in ordered}

    def _site(self, path: str, called: dict[str, _Called]) -> Site:
        seen, kept = called[path], ""
        if isinstance(self._modules[path], torch.jit.ScriptModule):
            kept = "it is scripted"
        elif seen.before is None or seen.after is None:
            kept = f"it gives {seen.gives}" if seen.after is None else "its first argument is no tensor"
        elif not seen.keeps:
            kept = f"it changes the shape, {seen.before} to {seen.after}"
        return Site(
            path,
            changes_shape=not seen.keeps,
            kept=kept,
            content=content_of_block(self._modules[path]),
            influence=Influence(dim=1 if self._reads_channels_first(path, called) else -1),
        )

    def _reads_channels_first(self, path: str, called: dict[str, _Called]) -> bool:
        """Whether a block takes images, or what it takes is what a convolution in it takes."""
        given = called[path].before or ()
        inside = [p for p, m in self._modules.items() if isinstance(m, _CONVOLUTION) and f"{p}.".startswith(f"{path}.")]
        return len(given) == _IMAGES or any(p in called and called[p].before == given for p in inside)

    def _record(self, batch: Batch) -> dict[str, _Called]:
        called: dict[str, _Called] = {}
        args, kwargs = call_arguments(batch)

        def see(path: str) -> Any:
            def hook(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
                given = inputs[0] if inputs else None
                if path not in called:
                    called[path] = _Called(len(called), _shape(given), _shape(output), type(output).__name__)

            return hook

        with preserved(self._model) as snapshot, eager(), ExitStack() as stack:
            for path, module in self._modules.items():
                stack.callback(module.register_forward_hook(see(path)).remove)
            try:
                with Writes(snapshot):
                    self._model(*copied(args), **copied(kwargs))
            except Exception as error:
                raise failed_on(batch, error) from error
            self.writes_parameters = snapshot.parameters_written
        return called

    def _rows(self, path: str, module: nn.Module, called: dict[str, _Called]) -> list[str]:
        children = {f"{path}.{name}" if path else name: child for name, child in module.named_children()}
        ran = sorted((p for p in children if p in called), key=lambda p: called[p].order)
        found: list[str] = []
        for _, row in groupby(ran, key=lambda p: type(children[p])):
            members = list(row)
            keeping = sum(called[p].keeps for p in members)
            if (
                keeping >= _FEWEST
                and 2 * keeping >= len(members)
                and any(True for p in members for _ in children[p].children())
            ):
                found += members
            else:
                for member in members:
                    found += self._rows(member, children[member], called)
        for p in (p for p in children if p not in called):  # a list of modules does not run itself
            found += self._rows(p, children[p], called)
        return found

    @contextmanager
    def without(self, paths: Sequence[str]) -> Iterator[None]:
        """Some blocks replaced by the identity."""
        with ExitStack() as stack:
            for path in paths:
                stack.enter_context(standing_in(self._modules[path], _identity))
            yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What goes into each block and comes out of it looked at."""

        def watch(site: Site, forward: Any) -> Any:
            def watched(x: Any, *args: Any, **kwargs: Any) -> Any:
                before = x.detach().clone()  # the block may write into it
                output = forward(x, *args, **kwargs)
                site.influence.add(before, output)
                return output

            return watched

        with ExitStack() as stack:
            for path, site in self.sites.items():
                module = self._modules[path]
                if not site.kept:
                    stack.enter_context(standing_in(module, watch(site, module.forward)))
            yield


def _identity(x: Any, *_args: Any, **_kwargs: Any) -> Any:
    return x


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None

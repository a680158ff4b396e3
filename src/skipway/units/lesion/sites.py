"""What can be taken out of a model: its residual units, or blocks that keep their shape."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from skipway.errors import SkipwayError, UnknownNameError
from skipway.trace import ops
from skipway.units.alteration import Alteration
from skipway.units.intercept import Plan, intercepted
from skipway.units.kinds import kinds, levels
from skipway.units.lesion.influence import Influence, Seen
from skipway.units.lesion.swap import Content, content_of_unit
from skipway.units.links import members
from skipway.units.locate import locate
from skipway.units.streams import made_x
from skipway.units.what_if import plan_alterations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from skipway.trace.batch import Batch
    from skipway.units.describe import Described
    from skipway.units.lesion.record import What
    from skipway.units.links import Links
    from skipway.units.locate import Located

__all__ = ["NoUnitsError", "Site", "Sites", "UnitSites"]

_GONE: Final = Alteration(branch=0.0)


class NoUnitsError(SkipwayError):
    """A model has no residual units."""


@dataclass
class Site:
    """One unit or block.

    Args:
        path: module path.
        changes_shape: whether the stream has another shape behind it.
        kept: why it cannot be deleted; empty where it can.
        content: the modules that hold its weights.
        influence: what has been seen of its influence so far.
    """

    path: str
    changes_shape: bool
    kept: str = ""
    content: Content = ()
    influence: Influence = field(default_factory=Influence)


class Sites(Protocol):
    """All that can be taken out of one model, in order of execution."""

    what: What
    sites: dict[str, Site]
    writes_parameters: bool
    """Whether the model writes to its parameters in forward."""

    def without(self, paths: Sequence[str]) -> AbstractContextManager[None]:
        """Within it every call of the model runs without some of them."""

    def watched(self) -> AbstractContextManager[None]:
        """Within it a call of the model adds to what is seen of their influence."""


class UnitSites:
    """The residual units of the main stream, found and proved on a batch.

    Args:
        model: any module.
        batch: what it is called with.

    Raises:
        NoUnitsError: the model has no units.
    """

    what: What = "unit"

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self.located, self.batch = locate(model, batch, proofs=True), batch
        self.writes_parameters = self.located.writes_parameters
        self._units = self.located.units()
        described = list(self._units.values())
        of_kind = kinds(described, self.located.links)
        level = levels(described, of_kind)
        chosen = [p for p, k, n in zip(self._units, of_kind, level, strict=True) if n == 0 and k in ("unit", "merge")]
        if not chosen:
            raise NoUnitsError(
                f"no residual units were found in {type(self.located.model).__name__} on {self.located.batch}",
                "a model with units, or blocks= for modules to replace by the identity",
                'skipway.lesion(model, batch, blocks="auto")',
            )
        self.sites = {path: self._site(path, self._units[path]) for path in chosen}

    def _site(self, path: str, unit: Described) -> Site:
        nodes = self.located.links.nodes
        kept = ""
        try:
            plan_alterations(self.located, {path: _GONE}, self.batch)
        except UnknownNameError:
            raise
        except SkipwayError as error:
            kept = error.given
        if unit.candidate.merge == "multiply":
            kept = "it multiplies the stream by its branch, and a branch × 0 leaves nothing"
        return Site(
            path=path,
            changes_shape=nodes[unit.candidate.x].shape != nodes[unit.end].shape,
            kept=kept,
            content=content_of_unit(unit, self.located),
            influence=Influence(dim=1 if _reads_channels_first(unit, self.located.links) else -1),
        )

    @contextmanager
    def without(self, paths: Sequence[str]) -> Iterator[None]:
        """The branches of some units multiplied by 0."""
        plan = plan_alterations(self.located, dict.fromkeys(paths, _GONE), self.batch)
        with intercepted(self.located.model, plan):
            yield

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The stream before and behind each unit looked at."""
        looks: defaultdict[Any, list[Any]] = defaultdict(list)
        starts: list[Any] = []
        for path, site in self.sites.items():
            unit = self._units[path]
            ends = made_x(unit, self.located), _made_end(unit, self.located)
            if site.changes_shape or ends[0] is None or ends[1] is None:
                continue
            pair = _Pair(site.influence)
            for (_, made), give in zip((e for e in ends if e is not None), (pair.before, pair.after), strict=True):
                seen = Seen(made.part, give)
                if made.address is None:
                    starts.append(seen.start)
                else:
                    looks[made.address].append(seen)
        with intercepted(self.located.model, Plan(looks=looks, starts=starts, alters=False)):
            yield


def _reads_channels_first(unit: Described, links: Links) -> bool:
    """Whether a branch convolves or pools the stream as it lies; one that turns tokens to pixels first does not."""
    x = unit.candidate.x
    for i in unit.candidate.region:
        node = links.nodes[i]
        data = links.data_inputs(node) if node.op in ops.CONVOLUTION | ops.POOL else []
        if data and len(links.nodes[data[0]].shape) == len(links.nodes[x].shape):
            ways = (links.nodes[j].op for j in members(links.between(x, data[0])) if j != x)
            if not any(op in ops.TURNS for op in ways):
                return True
    return False


class _Pair:
    """Holds the stream before a unit till that behind it is made."""

    def __init__(self, influence: Influence) -> None:
        self._influence = influence
        self._before: torch.Tensor | None = None

    def before(self, tensor: torch.Tensor) -> None:
        self._before = tensor

    def after(self, tensor: torch.Tensor) -> None:
        if self._before is not None:
            self._influence.add(self._before, tensor)
        self._before = None


def _made_end(unit: Described, located: Located) -> tuple[int, Any] | None:
    made = located.made(unit.end)
    return None if made is None else (unit.end, made)

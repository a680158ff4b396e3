"""Find the units of a model on a batch, and where in a later run their tensors are made: one recording, then addresses.

What lesions, what-if runs, path spectra and monitors start from::

    located = locate(model, batch)                # one forward run, the model is left as it was
    for path, unit in located.units().items():    # "layer1.0" -> Described
        located.made(unit.candidate.x)            # where a later run makes x: an Address, or an input of the model
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from skipway.errors import SkipwayError
from skipway.trace.batch import Batch, describe, failed_on, unwrapped
from skipway.trace.record import record
from skipway.units.describe import Described
from skipway.units.describe import describe as described_units
from skipway.units.find import Found, find
from skipway.units.intercept import bare
from skipway.units.naming import paths
from skipway.units.prove import Proof, prove

if TYPE_CHECKING:
    from torch import nn

    from skipway.trace.graph import Address, Graph
    from skipway.units.links import Links

__all__ = ["Located", "Made", "locate"]

_NOT_ASKED: Final = "not asked for"


@dataclass(frozen=True, slots=True)
class Made:
    """Where a run makes a value.

    Args:
        address: the torch function call whose result it is; None where it is the model's own input.
        part: which tensor of the result, where there are several; of the model's inputs, which of them.
    """

    address: Address | None
    part: int = 0


@dataclass(frozen=True)
class Located:
    """The units of a model on a batch.

    Args:
        model: the inner module (wrappers opened): the one whose calls have the recorded addresses.
        batch: what it was recorded on, in words.
        found: the recorded graph (`found.links.graph`), its relations and the joins that are no units.
        described: the units in order of execution, as `skipway.inspect` finds them.
        paths: their paths, as `skipway.inspect` prints them.
        proofs: for each unit its proof, or one that says that it was not asked for.
        writes_parameters: whether the model writes to its parameters in forward.
    """

    model: nn.Module
    batch: str
    found: Found
    described: list[Described]
    paths: list[str]
    proofs: list[Proof]
    writes_parameters: bool
    _last: dict[tuple[int, str, int], int] = field(default_factory=dict, repr=False)

    @property
    def links(self) -> Links:
        """Relations of the recorded graph."""
        return self.found.links

    @property
    def graph(self) -> Graph:
        """The recorded graph."""
        return self.found.links.graph

    def units(self) -> dict[str, Described]:
        """Units by path, in order of execution; where proofs were asked for (and there were numbers), those proved."""
        asked = not all(p.reason == _NOT_ASKED or p.reason.startswith("no numbers") for p in self.proofs)
        return {
            path: unit
            for path, unit, proof in zip(self.paths, self.described, self.proofs, strict=True)
            if proof.holds or not asked
        }

    def made(self, node: int) -> Made | None:
        """Where a later run makes the value of a node; None where it is no torch function's own result.

        The interior of scripted code, of custom autograd functions and of composite functions
        (``multi_head_attention_forward``) has no address; what is no more than a view of a result counts as the result.
        """
        links = self.links
        value = links.nodes[node]
        if value.op == "input":
            leaves = [n.id for n in links.nodes if n.op == "input"]
            return Made(None, leaves.index(node))
        if value.caller is None:
            return None
        if not self._last:
            self._last.update({n.caller: n.id for n in links.nodes if n.caller is not None})
        final = links.nodes[self._last[value.caller]]
        address = self.graph.address(value)
        if "part" in value.attrs:
            same = value.source == final.source and value.ordinal == final.ordinal
            return Made(address, int(value.attrs["part"])) if same else None
        if node == final.id or links.strip(final.id) == links.strip(node) or final.attrs.get("extra", False):
            return Made(address)
        return None


def locate(model: nn.Module, batch: Batch, *, proofs: bool = False) -> Located:
    """Record a model once on a copy of a batch and find its residual units; the model is left exactly as it was.

    Within a what-if run the model is recorded as it is without it, so that addresses are the same inside and outside.

    Args:
        model: any module; DataParallel, DDP and compiled wrappers are opened. It runs eagerly, in the mode it is in.
        batch: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        proofs: prove the units, too (one more forward run or a few), as `skipway.inspect` does; without it each
            proof says that it was not asked for, and units are candidates.

    Raises:
        SkipwayError: the model or the batch is of the wrong kind.
        ModelRunError: the model raised; its own error is the cause.
    """
    inner = unwrapped(model)
    with torch.inference_mode(mode=False), bare(inner):
        try:
            trace = record(inner, batch)
        except SkipwayError:
            raise
        except (Exception, SystemExit) as error:
            raise failed_on(batch, error) from error
        found = find(trace.graph)
        described = described_units(found)
        shown = [Proof(reason=_NOT_ASKED) for _ in described]
        if proofs:
            shown, _ = prove(inner, batch, described, found.links, keep_parameters=trace.writes_parameters)
    return Located(
        model=inner,
        batch=describe(batch),
        found=found,
        described=described,
        paths=paths(described, found.links),
        proofs=shown,
        writes_parameters=trace.writes_parameters,
    )

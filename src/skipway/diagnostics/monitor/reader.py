"""What a monitor reads in a training call: the numbers of an inspection, of the first samples of the batch.

Shapes: N samples, C channels, H height, W width, T tokens, D width of the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from skipway.diagnostics.taps import Reader, Scalars, Tap, norm, plan_taps, tap_inputs
from skipway.trace.batch import output_tensors
from skipway.units.intercept import Plan, shows_same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skipway.trace.graph import Node
    from skipway.units.describe import Described
    from skipway.units.intercept import Edit, Run
    from skipway.units.links import Links

__all__ = ["WANTED", "Sample", "reading_plan"]

WANTED: Final = frozenset({"stream_rms", "branch_rms", "shortcut_rms", "out_rms", "grad_stream", "similarity"})
_LARGEST: Final = "largest"


class Sample(Scalars):
    """Scalars of the first samples of a batch; what goes wrong in taking them is kept, not raised.

    Args:
        batch: number of samples in the batch, N.
        samples: how many of them are looked at.
    """

    wanted = WANTED | {_LARGEST}

    def __init__(self, batch: int, samples: int) -> None:
        super().__init__()
        self._batch, self._samples = batch, samples
        self.failure: Exception | None = None
        self._last: tuple[torch.Tensor, int, torch.Tensor] | None = None

    def attempt(self, action: Callable[..., object], *args: Any) -> None:
        """Do something, unless something went wrong before."""
        if self.failure is None:
            try:
                action(*args)
            except Exception as error:  # noqa: BLE001  # measuring must not stop a training; the monitor says it later
                self.failure = error

    def gradient(self, unit: int, name: str, gradient: torch.Tensor) -> None:
        """Keep the norm of a gradient that came by."""
        self.attempt(super().gradient, unit, name, gradient)

    def size(self, x: torch.Tensor) -> torch.Tensor:
        """L2 norm; the stream behind a unit, the next unit's x and its shortcut are often one tensor, and cost once."""
        if self._last is not None and self._last[1] == x._version and shows_same(self._last[0], x):
            return self._last[2]
        found = norm(x)
        self._last = (x, x._version, found)
        return found

    def read(self) -> dict[int, dict[str, float]]:
        """All scalars, by unit and name; one transfer from the device."""
        self._last = None
        return super().read()

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """The first samples: along the dimension that is N long, or where samples lie behind each other in rows."""
        if self._samples >= self._batch or x.dim() == 0:
            return x
        dims = [d for d, size in enumerate(x.shape) if size == self._batch]
        if dims:
            return x.narrow(dims[0], 0, self._samples)
        if x.shape[0] and x.shape[0] % self._batch == 0:
            return x[: x.shape[0] // self._batch * self._samples]
        return x


class _Reader(Reader):
    """Reads in batches of any size, and the largest magnitude where the dtype's range is small."""

    def __init__(self, links: Links, sample: Sample) -> None:
        super().__init__(links, sample)
        self._sample = sample

    def read(self, tap: Tap, tensor: torch.Tensor) -> None:
        """Reduce one tensor, and its gradient when it comes."""
        super().read(tap, tensor)
        self.roots.clear()  # they are for a backward run of one's own
        if tap.role in ("x", "end"):
            self._size(tap.owner, self._sample.narrow(tensor.detach()))

    def read_again(self, planned: list[Tap], out: Any) -> None:
        """In a re-entrantly checkpointed part only what is computed again has gradients."""
        for tap in planned:
            if tap.role == "x" and tap.owner in self.constant:
                result = self.matching(out, self._nodes[tap.node])
                if result is not None and result.requires_grad:
                    self.constant.discard(tap.owner)
                    self.read(tap, result)

    def compare(self, owner: int, shortcut: torch.Tensor, branch: torch.Tensor) -> None:
        """Sizes of shortcut and branch."""
        super().compare(owner, shortcut, branch)
        self._size(owner, branch)

    def matching(self, out: Any, node: Node) -> torch.Tensor | None:
        """As recorded; in a batch of another size, the first tensor with as many dimensions."""
        found = super().matching(out, node)
        if found is not None:
            return found
        tensors = output_tensors(out)
        part = node.attrs.get("part")
        if part is not None:
            tensors = tensors[part : part + 1]
        return next((t for t in tensors if t.dim() == len(node.shape)), None)

    def _size(self, owner: int, x: torch.Tensor) -> None:
        if x.dtype == torch.float16 and x.numel():
            with torch.no_grad():
                smallest, largest = x.aminmax()
                self._sample.put(owner, _LARGEST, torch.maximum(-smallest.float(), largest.float()))


def reading_plan(described: Sequence[Described], links: Links, sample: Sample) -> Plan:
    """What to do in a training call: read into `sample`."""
    reader = _Reader(links, sample)

    def start(run: Run, tensors: list[torch.Tensor]) -> None:
        if not run.again:
            sample.attempt(tap_inputs, reader, described, links, tensors)

    plan = plan_taps(described, [], links)
    return Plan(
        edits={address: [_edit(planned, reader, sample)] for address, planned in plan.items()},
        starts=[start],
        alters=False,
    )


def _edit(planned: list[Tap], reader: _Reader, sample: Sample) -> Edit:
    def edit(
        run: Run, go_on: Callable[..., Any], _func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if run.again:
            out = go_on(*args, **kwargs)
            with run.aside():
                sample.attempt(reader.read_again, planned, out)
            return out
        with run.aside():
            sample.attempt(reader.before, planned, args, kwargs)
        out = go_on(*args, **kwargs)
        with run.aside():
            sample.attempt(reader.after, planned, out)
        return out

    return edit

"""The inspection of a net at the start and at the end of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skipway.diagnostics.inspect import inspect
from skipway.errors import SkipwayError
from skipway.report.files import write_json
from skipway.train.evaluate import cross_entropy as mean_cross_entropy
from skipway.train.modes import trained

if TYPE_CHECKING:
    from torch import Tensor, nn

    from skipway.data import Dataset
    from skipway.train.folder import RunFolder
    from skipway.train.listen import Listener

__all__ = ["look"]

SAMPLES: Final = 32


def look(when: str, net: nn.Module, data: Dataset, folder: RunFolder, listener: Listener) -> None:
    """Inspect a net in train mode, under the loss it is trained with, and keep what was seen.

    Args:
        when: ``"start"`` or ``"end"``.
        net: is left as it was.
        data: fixed samples without augmentation come from it.
        folder: of the run.
        listener: is told if the net cannot be inspected; a training may well work all the same.
    """
    x, y = data.sample(min(SAMPLES, data.info.train_size))
    dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), x.dtype)
    if x.is_floating_point():
        x = x.to(dtype)  # as Fabric does when all of a net computes in another precision

    def cross_entropy(output: Any) -> Tensor:
        return mean_cross_entropy(output, y)

    try:
        with trained(net):
            seen = inspect(net, x, cross_entropy, name=folder.read_spec().model)
    except SkipwayError as error:
        listener.noted(f"not inspected at the {when}: {error}")
        return
    write_json(folder.inspection_path(when), seen.to_dict())

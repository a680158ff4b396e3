"""All programs with a known fault; importing this fills `faults.case.CASES`."""

from faults.programs import (
    placement_norm,
    placement_path,
    scale_init,
    scale_number,
    scale_signal,
    the_add,
    the_ancestor,
    the_shape,
    the_unit,
    training_time,
    what_trains,
)

__all__ = [
    "placement_norm",
    "placement_path",
    "scale_init",
    "scale_number",
    "scale_signal",
    "the_add",
    "the_ancestor",
    "the_shape",
    "the_unit",
    "training_time",
    "what_trains",
]

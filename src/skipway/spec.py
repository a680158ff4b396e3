"""Frozen records of what is asked for: data, optimiser, schedule, recipe, run. No tensors here.

Each record goes to plain values with `to_dict` and comes back with `from_dict`, which names what it does not know.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Union, get_args, get_origin, get_type_hints

from skipway.errors import SkipwayError, UnknownNameError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "COMPILE_MODES", "MEMORY_MODES", "Compile", "DataSpec", "Memory", "OptimizerSpec", "RecipeSpec", "RunSpec",
    "ScheduleSpec",
]  # fmt: skip

Memory = Literal["keep", "recompute", "checkpoint", "reversible", "auto"]
# From the fastest to the smallest; "auto" is one of them. "reversible" is there for designs that have an inverse.
MEMORY_MODES: Final[tuple[Memory, ...]] = ("keep", "recompute", "checkpoint", "reversible")
Compile = Literal["none", "units", "model"]
COMPILE_MODES: Final[tuple[Compile, ...]] = ("none", "units", "model")

SPEC_VERSION: Final = "1.0"
MOST_SEED: Final = 2**32 - 1  # of NumPy's generator
MOST_THREADS: Final = 1024  # the OpenMP library ends the process when the system refuses it a thread


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(what, str(value), known)


def _at_least(what: str, value: int, least: int, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most is not None and value > most):
        raise SkipwayError(f"{what}={value!r}", f"an integer from {least}" + ("" if most is None else f" to {most}"))


def _fits(value: object, wanted: Any) -> bool:
    """Whether a value read from a file is of the type that a field is declared with."""
    inside = get_args(wanted)
    if get_origin(wanted) in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if get_origin(wanted) is Literal:
        return isinstance(value, str)  # which one is the record's own check
    if get_origin(wanted) is tuple:
        fits_length = inside[-1] is Ellipsis or (isinstance(value, tuple) and len(value) == len(inside))
        return isinstance(value, tuple) and fits_length and all(_fits(v, inside[0]) for v in value)
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, int | float if wanted is float else wanted)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the records have in common: to and from plain values."""

    _what: ClassVar[str] = "record"

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read a record back.

        Raises:
            UnknownNameError: a key that the record does not have.
            SkipwayError: a value of another type or that the record refuses, a key that is missing.
        """
        if not isinstance(values, dict):
            raise SkipwayError(f"a {cls._what} that is {values!r}", "keys and values")
        missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in values]
        if missing:
            raise SkipwayError(f"a {cls._what} without {', '.join(missing)}", "all that has no default")
        hints = get_type_hints(cls)
        known = {f.name: hints[f.name] for f in fields(cls)}
        read: dict[str, Any] = {}
        for key, value in values.items():
            if key not in known:
                raise UnknownNameError(f"key of a {cls._what}", key, known)
            wanted = known[key]
            if is_dataclass(wanted) and isinstance(wanted, type) and issubclass(wanted, Record):
                read[key] = wanted.from_dict(value)
            else:
                read[key] = tuple(value) if isinstance(value, list) else value
                if not _fits(read[key], wanted):
                    # Python 3.10 takes tuple[float, float] for a class.
                    name = getattr(wanted, "__name__", "") if get_origin(wanted) is None else str(wanted)
                    raise SkipwayError(f"{key}={value!r} in the {cls._what}", f"a value of type {name}")
        return cls(**read)


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(Record):
    """An optimiser and its base values, which a design may multiply per group of parameters.

    Args:
        name: ``"sgd"`` or ``"adamw"``.
        lr: peak learning rate, dimensionless.
        weight_decay: decoupled for AdamW, L2 for SGD.
        momentum: of SGD.
        nesterov: whether SGD's momentum is Nesterov's.
        betas: of Adam.
        eps: of Adam.
        decay: what is decayed: ``"all"`` parameters, as He et al. do, or ``"matrices"``, those of two and more
            dimensions (no bias, no gain of a norm), as for transformers.
    """

    _what: ClassVar[str] = "optimizer"

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    weight_decay: float = 1e-4
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: Literal["all", "matrices"] = "all"

    def __post_init__(self) -> None:
        _one_of("optimizer", self.name, ("sgd", "adamw"))
        _one_of("decay", self.decay, ("all", "matrices"))
        if not all(0 <= value < math.inf for value in (self.lr, self.weight_decay, self.eps)):
            raise SkipwayError(
                f"lr={self.lr}, weight_decay={self.weight_decay}, eps={self.eps}", "finite, and none of them negative"
            )
        if not 0 <= self.momentum < math.inf or not all(0 <= beta < 1 for beta in self.betas):
            raise SkipwayError(f"momentum={self.momentum}, betas={self.betas}", "momentum from 0, betas in [0, 1)")
        if self.nesterov and self.momentum <= 0:
            raise SkipwayError(f"nesterov with momentum={self.momentum}", "a momentum above 0")


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec(Record):
    """How the learning rate runs over a training; all lengths are shares of its steps, so that a budget scales it.

    Args:
        name: ``"constant"``, ``"steps"``, ``"cosine"``, or ``"one-cycle"`` (up to the peak in the warm-up, then
            linearly to 0).
        warmup: share of the steps that are warm-up, in [0, 1).
        warmup_from: learning rate at the first step of the warm-up, as a share of the peak.
        warmup_shape: ``"linear"`` up to the peak, or ``"constant"`` at `warmup_from`, as He et al. 2015 for 110 layers.
        milestones: for ``"steps"``: after which shares of the steps the rate is multiplied by `gamma`.
        gamma: for ``"steps"``.
        final: for ``"cosine"``: the last rate, as a share of the peak.
    """

    _what: ClassVar[str] = "schedule"

    name: Literal["constant", "steps", "cosine", "one-cycle"] = "steps"
    warmup: float = 0.0
    warmup_from: float = 0.0
    warmup_shape: Literal["linear", "constant"] = "linear"
    milestones: tuple[float, ...] = (0.5, 0.75)
    gamma: float = 0.1
    final: float = 0.0

    def __post_init__(self) -> None:
        _one_of("schedule", self.name, ("constant", "steps", "cosine", "one-cycle"))
        _one_of("warmup_shape", self.warmup_shape, ("linear", "constant"))
        if not 0 <= self.warmup < 1 or not 0 <= self.warmup_from <= 1:
            raise SkipwayError(f"warmup={self.warmup}, warmup_from={self.warmup_from}", "shares from 0 to 1")
        if list(self.milestones) != sorted(self.milestones) or not all(0 < m <= 1 for m in self.milestones):
            raise SkipwayError(f"milestones={self.milestones}", "shares of the steps, rising, in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class RecipeSpec(Record):
    """How a net is trained.

    Args:
        name: what the recipe is called.
        optimizer: and its base values.
        schedule: of the learning rate.
        steps: optimiser steps.
        batch_size: samples in a step, over all devices.
        clip_norm: the gradient's L2 norm is clipped to this; None for no clipping.
        label_smoothing: of the cross-entropy.
        normalize: how the recipe normalises images: ``"channel"`` or ``"pixel"``, as in `DataSpec`.
        source: where it is from.
    """

    _what: ClassVar[str] = "recipe"

    name: str = "custom"
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    steps: int = 1000
    batch_size: int = 128
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    normalize: Literal["channel", "pixel"] = "channel"
    source: str = ""

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 1)
        _at_least("batch_size", self.batch_size, 1)
        _one_of("normalize", self.normalize, ("channel", "pixel"))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise SkipwayError(f"clip_norm={self.clip_norm}", "a number above 0, or None for no clipping")
        if not 0 <= self.label_smoothing < 1:
            raise SkipwayError(f"label_smoothing={self.label_smoothing}", "a number in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class DataSpec(Record):
    """A data set, and how its samples are made.

    Args:
        name: ``"digits"``, ``"cifar10"``, ``"cifar100"``, ``"fashion_mnist"``, ``"imagenet"``, ``"text"``,
            ``"reverse"``, or the path of a folder of class folders.
        root: folder in which the files lie; None for the usual places.
        image_size: side in pixels that images are resized to; None for the set's own.
        train_size: training samples to use, drawn once with a fixed seed and balanced by class; None for all.
        test_size: test samples likewise.
        augment: ``"crop-flip"`` (pad, crop, mirror, drawn for each image), ``"crop"``, ``"none"``, or ``"auto"``:
            what is usual for the set.
        normalize: ``"channel"``: mean and deviation by channel; ``"pixel"``: the mean image is subtracted
            (He et al. 2015) and the whole divided by one deviation.
        context: tokens in a sample, for text.
        download: whether missing files may be fetched.
    """

    _what: ClassVar[str] = "data spec"

    name: str = "digits"
    root: str | None = None
    image_size: int | None = None
    train_size: int | None = None
    test_size: int | None = None
    augment: Literal["auto", "crop-flip", "crop", "none"] = "auto"
    normalize: Literal["channel", "pixel"] = "channel"
    context: int = 128
    download: bool = False

    def __post_init__(self) -> None:
        _one_of("augment", self.augment, ("auto", "crop-flip", "crop", "none"))
        _one_of("normalize", self.normalize, ("channel", "pixel"))
        for name in ("image_size", "train_size", "test_size"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        _at_least("context", self.context, 2)


@dataclass(frozen=True, kw_only=True)
class RunSpec(Record):
    """One training: with the same spec, the same machine and the same versions it gives the same bits.

    Args:
        model: a name, as `skipway.load_model` reads it.
        data: what it is trained on.
        recipe: how.
        seed: of initialisation, order of the data, augmentation and dropout.
        precision: Fabric's, or ``"auto"``: bf16 autocast where the hardware computes in it, else float32.
        channels_last: layout of images; None: wherever the model has convolutions.
        memory: ``"keep"`` activations, ``"recompute"`` those that follow from others in one pass over memory,
            ``"checkpoint"``: run several units at a time again, ``"reversible"``: compute inputs back from outputs,
            with designs that have an inverse, or ``"auto"``: the fastest that fits into the device's free memory; of
            our own models.
        residual_in_fp32: under autocast, keep the stream of our own models in float32 while branches run in 16 bits;
            None: with designs that are reversible.
        compile: ``"none"``, ``"units"``: one graph for each kind of unit of our own models, or the whole ``"model"``.
        accelerator: Fabric's.
        devices: number of devices, or of processes on the CPU.
        strategy: Fabric's: ``"auto"``, ``"ddp"``, or ``"fsdp2"`` for `ModelParallelStrategy`.
        threads: of the processor, for each process; None for PyTorch's own choice.
        checkpoint_every: steps between checkpoints; 0 for one at the end only.
        log_every: steps between lines of metrics, each the mean over them.
        test_every: steps between tests; 0 for one at the end only.
        inspect: whether the net is inspected at the start and at the end.
    """

    _what: ClassVar[str] = "run spec"

    model: str
    data: DataSpec = DataSpec()
    recipe: RecipeSpec = RecipeSpec()
    seed: int = 0
    precision: str = "auto"
    channels_last: bool | None = None
    memory: Memory = "keep"
    residual_in_fp32: bool | None = field(default=None, metadata={"later": True})
    compile: Compile = "none"
    accelerator: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    threads: int | None = None
    checkpoint_every: int = 500
    log_every: int = 10
    test_every: int = 0
    inspect: bool = True
    version: str = field(default=SPEC_VERSION)

    def __post_init__(self) -> None:
        if self.version != SPEC_VERSION:
            raise SkipwayError(f"a run spec of version {self.version!r}", f"version {SPEC_VERSION!r}")
        _at_least("seed", self.seed, 0, MOST_SEED)
        _at_least("devices", self.devices, 1)
        _at_least("log_every", self.log_every, 1)
        _at_least("checkpoint_every", self.checkpoint_every, 0)
        _at_least("test_every", self.test_every, 0)
        _one_of("memory", self.memory, (*MEMORY_MODES, "auto"))
        _one_of("compile", self.compile, COMPILE_MODES)
        if self.residual_in_fp32 and self.precision.endswith("16-true"):
            raise SkipwayError(
                f"residual_in_fp32 with precision {self.precision}, whose weights read no float32 stream",
                "16 bits by autocast",
                f"precision {self.precision.replace('true', 'mixed')}",
            )
        if self.threads is not None:
            _at_least("threads", self.threads, 1, MOST_THREADS)

    def digest(self) -> str:
        """Sixteen hexadecimal digits that stand for the whole spec.

        A field that came later counts where it is asked for, so that folders from before keep their names.
        """
        values = self.to_dict()
        for one in fields(self):
            if one.metadata.get("later") and values[one.name] == one.default:
                del values[one.name]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

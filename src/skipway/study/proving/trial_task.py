"""A task for anybody's model: what it is trained on to see whether a fix mends it.

Shapes: N samples, T tokens, D width, C channels, H height, W width of an image, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skipway.data import open_data
from skipway.errors import SkipwayError
from skipway.spec import DataSpec
from skipway.trace.batch import call_arguments, copied, describe, failed_on, output_tensors, tensors_of
from skipway.trace.preserve import preserved

if TYPE_CHECKING:
    from skipway.trace.batch import Batch

__all__ = ["Task", "task_for"]

_TOKENS: Final = 8
_CLASSES: Final = 10
Layout = Literal["ids", "stream", "images", "vectors"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model is trained on.

    Args:
        words: the task, in words.
        chance: loss of guessing.
        fit: puts what the task needs around a model (embeddings, a head); the model is a part of what comes back, its
            parameters are shared.
        batches: endless batches ``(inputs, targets)`` for a seed.
        loss: ``loss(output, targets)``, a scalar.
    """

    words: str
    chance: float
    fit: Callable[[nn.Module], nn.Module]
    batches: Callable[[int], Iterator[tuple[Any, Tensor]]]
    loss: Callable[[Any, Tensor], Tensor]


def task_for(model: nn.Module, batch: Batch, *, batch_size: int) -> Task:
    """A task that a model can be trained on without anybody's data, found from what it takes and gives.

    Models of tokens (integers, or streams (N, T, D)) get the task of reversing eight tokens, chance loss ln 8; where a
    token sees none that comes after it, the eight are followed by eight blanks, at which they are to be said. Models of
    images and vectors get scikit-learn's digits, as large and with as many channels as the batch, chance loss ln 10.

    Args:
        model: the model; it is called, and left as it was.
        batch: what it is called with.
        batch_size: samples in a batch of the task.

    Raises:
        SkipwayError: no task fits what the model takes or gives.
        ModelRunError: the model raised; its own error is the cause.
    """
    probe = _Probe(model, batch)
    if probe.layout in ("ids", "stream"):
        return _reversal(probe, batch_size)
    return _digits(probe, batch_size)


class _Probe:
    """What a model takes and gives, seen in a few forward runs."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self.model, self.batch = model, batch
        args, kwargs = call_arguments(batch)
        tensors = tensors_of((args, kwargs))
        if not tensors:
            raise _no_task(batch, "a batch with a tensor")
        self.first = tensors[0]
        self.output = self._run(self.first)
        shape = self.first.shape
        if not self.first.is_floating_point():
            self.layout: Layout = "ids"
        elif len(shape) == 4:
            self.layout = "images"
        elif len(shape) == 3:
            self.layout = "stream"
        elif len(shape) == 2:
            self.layout = "vectors"
        else:
            raise _no_task(batch, "tokens (N, T), a stream (N, T, D), images (N, C, H, W) or vectors (N, D)")
        if self.layout in ("ids", "stream") and (len(shape) < 2 or self.output.dim() != 3):
            raise _no_task(batch, "an output (N, T, K) for tokens")

    def call(self, model: nn.Module, first: Tensor) -> Any:
        """Call a model with another first tensor in place of the batch's."""
        args, kwargs = call_arguments(self.batch)
        replaced = False

        def other(tensor: Tensor) -> Tensor:
            nonlocal replaced
            if not replaced:
                replaced = True
                return first
            return tensor.clone()

        args, kwargs = copied((args, kwargs), other)
        return model(*args, **kwargs)

    def _run(self, first: Tensor) -> Tensor:
        # It is the caller's own model, and nothing has told yet whether its forward writes to its weights.
        with preserved(self.model, parameters=True), torch.no_grad():
            self.model.eval()
            torch.manual_seed(0)
            try:
                output = self.call(self.model, first)
            except SkipwayError:
                raise
            except Exception as error:
                raise failed_on(self.batch, error) from error
            return _floating(output, self.batch)

    def depends(self, on: int, dim: int, output_dim: int) -> Tensor:
        """Which places of the output along `output_dim` change when place `on` of the input along `dim` does."""
        changed = self.first.clone()
        part = changed.select(dim, on)
        if self.layout == "ids":
            part.copy_((part + 1) % max(int(self.first.max()) + 1, 2))
        else:
            part.add_(torch.randn(part.shape, generator=torch.Generator().manual_seed(0)).to(part) + 1)
        other = self._run(changed)
        rest = [d for d in range(self.output.dim()) if d != output_dim]
        different: Tensor = (other - self.output).abs().amax(rest) > 1e-6 * self.output.abs().amax()
        return different

    @property
    def batch_dim(self) -> int:
        """The dimension of a stream along which samples lie: places there do not see each other."""
        if self.first.shape[0] > 1 and int(self.depends(0, 0, 0).sum()) <= 1:
            return 0
        if self.first.dim() > 1 and self.first.shape[1] > 1 and int(self.depends(0, 1, 1).sum()) <= 1:
            return 1
        return 0

    @property
    def causal(self) -> bool:
        """Whether the first token's output is blind for the last token."""
        tokens = 1 - self.batch_dim
        return self.first.shape[tokens] > 1 and not bool(self.depends(self.first.shape[tokens] - 1, tokens, tokens)[0])


class _Fitted(nn.Module):
    """A model with what the task puts before and behind it."""

    def __init__(self, model: nn.Module, probe: _Probe, before: nn.Module | None, head: nn.Module | None) -> None:
        super().__init__()
        self.model, self.before, self.head = model, before, head
        self._call, self._swapped = probe.call, probe.layout == "stream" and probe.batch_dim == 1
        self._batch = probe.batch

    def forward(self, x: Tensor) -> Tensor:
        if self.before is not None:
            x = self.before(x)
        if self._swapped:
            x = x.transpose(0, 1)
        out = _floating(self._call(self.model, x), self._batch)
        if self._swapped:
            out = out.transpose(0, 1)
        return out if self.head is None else self.head(out)


class _Embedding(nn.Module):
    """Token plus position, each of standard deviation 1: (N, T) to (N, T, D)."""

    def __init__(self, tokens: int, length: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)

    def forward(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.token(ids) + self.position.weight
        return embedded


class _Pooled(nn.Module):
    """A linear classifier on the mean over all places of an image: (N, C, H, W) to (N, K)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(2).mean(2) if x.dim() > 2 else x)
        return logits


def _reversal(probe: _Probe, batch_size: int) -> Task:
    causal = probe.causal
    length = 2 * _TOKENS if causal else _TOKENS
    width = probe.output.shape[-1]
    embeds = [m for m in probe.model.modules() if isinstance(m, nn.Embedding)]
    vocabulary = max((m.num_embeddings for m in embeds), default=0)
    if probe.layout == "ids" and vocabulary <= _TOKENS:
        raise _no_task(probe.batch, f"a vocabulary of more than {_TOKENS} tokens, not {vocabulary}")
    others = [t for t in tensors_of(call_arguments(probe.batch)) if t is not probe.first]
    if others:
        raise _no_task(probe.batch, "a model that is called with one tensor")

    def fit(model: nn.Module) -> nn.Module:
        before = _Embedding(_TOKENS + 1, length, probe.first.shape[-1]) if probe.layout == "stream" else None
        head = nn.Linear(width, _TOKENS) if probe.layout == "stream" or width != vocabulary else None
        return _Fitted(model, probe, before, head).to(probe.first.device)

    def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        data = open_data(DataSpec(name="reverse"), device=probe.first.device)
        for ids, reverse in data.train(batch_size=batch_size, seed=seed):
            if causal:
                yield torch.cat([ids, torch.full_like(ids, _TOKENS)], 1), reverse
            else:
                yield ids, reverse

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        logits = output[:, -_TOKENS:, :_TOKENS]
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    said = "eight tokens to be said in reverse order" + (" behind them" if causal else "")
    return Task(words=f"synthetic: {said}", chance=math.log(_TOKENS), fit=fit, batches=batches, loss=loss)


def _digits(probe: _Probe, batch_size: int) -> Task:
    images = probe.layout == "images"
    given = probe.output
    enough = given.dim() == 2 and given.shape[1] >= _CLASSES

    def fit(model: nn.Module) -> nn.Module:
        before = None if images else nn.Sequential(nn.Flatten(), nn.Linear(64, probe.first.shape[1]))
        head = None if enough else _Pooled(given.shape[1])
        return _Fitted(model, probe, before, head).to(probe.first.device)

    def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        data = open_data(DataSpec(name="digits"), device=probe.first.device)
        for x, y in data.train(batch_size=batch_size, seed=seed):
            if not images:
                yield x, y
                continue
            _, channels, height, width = probe.first.shape
            sized = F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
            yield sized.expand(-1, channels, -1, -1).contiguous(), y

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output[:, :_CLASSES].float(), targets)

    size = f" at {probe.first.shape[2]}×{probe.first.shape[3]} pixels" if images else ""
    return Task(
        words=f"stand-in: scikit-learn's digits{size}", chance=math.log(_CLASSES), fit=fit, batches=batches, loss=loss
    )


def _floating(output: Any, batch: Batch) -> Tensor:
    found = output
    if isinstance(output, Mapping) and "logits" in output:
        found = output["logits"]
    tensors = [t for t in output_tensors(found) if t.is_floating_point() and t.dim() >= 2]
    if not tensors:
        raise _no_task(batch, "a floating output of two or more dimensions")
    return tensors[0]


def _no_task(batch: Batch, expected: str) -> SkipwayError:
    return SkipwayError(
        f"no task of our own fits a model that is called with {describe(batch)}",
        expected,
        "your own data: skipway.prove(…, data=batches, loss=loss), where batches gives (inputs, targets)",
    )

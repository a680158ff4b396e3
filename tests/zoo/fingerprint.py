"""A hash of everything that an inspection must leave alone, made independently of how the product keeps it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from torch.utils._pytree import tree_leaves

__all__ = ["differences", "state"]

_HOOKS = [name for name in vars(nn.Module()) if "hook" in name]
_GLOBAL_HOOKS = [name for name in vars(global_hooks) if name.startswith("_global") and "hook" in name]
_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def _tensor(tensor: Tensor) -> str:
    """Bits, layout, identity of the memory, and what autograd keeps with it."""
    digest = hashlib.sha256()
    plain = tensor.detach()
    digest.update(repr((tensor.dtype, tuple(tensor.shape), tensor.device, tensor.requires_grad)).encode())
    if plain.layout is torch.strided:
        digest.update(repr((plain.stride(), plain.data_ptr())).encode())
    if plain.device.type != "meta":
        # Bytes rather than values: NaN payloads and signed zeros count.
        digest.update(plain.contiguous().flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
        digest.update(repr(sorted(map(id, (hooks or {}).values()))).encode())
    return digest.hexdigest()


def _value(value: Any, depth: int = 0) -> str:
    """An attribute: bits of tensors, contents of containers, value of simple things, identity of the rest."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, _SIMPLE):
        return repr(value)
    if depth < 4 and isinstance(value, Mapping):
        # The order of hooks is the order in which they run; keys may be anything.
        return repr([(str(k), _value(v, depth + 1)) for k, v in value.items()])
    if depth < 4 and isinstance(value, (list, tuple, set, frozenset)):
        return repr([_value(v, depth + 1) for v in value])
    return f"{type(value).__name__}@{id(value)}"


def _entries(model: nn.Module) -> Iterator[tuple[str, str]]:
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, torch.jit.ScriptModule):
            yield f"{path}: training", repr(module.training)
            continue
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                yield f"{path}: names in {key}", repr([(k, id(v)) for k, v in value.items()])
            elif key in _HOOKS and isinstance(value, Mapping):
                yield f"{path}: {key}", repr([(k, id(v)) for k, v in value.items()])
            else:
                yield f"{path}: attribute {key}", _value(value)
        yield f"{path}: order of attributes", repr(list(vars(module)))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield f"{name}: parameter", _tensor(parameter)
        yield f"{name}: gradient", "none" if parameter.grad is None else _tensor(parameter.grad)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield f"{name}: buffer", _tensor(buffer)


def state(model: nn.Module, batch: Any = None) -> dict[str, str]:
    """What must stay, by name: the model's, the batch's, the generators', and PyTorch's own switches."""
    found = dict(_entries(model))
    for i, leaf in enumerate(t for t in tree_leaves(batch) if isinstance(t, Tensor)):
        found[f"batch {i}"] = _tensor(leaf)
        found[f"batch {i}: gradient"] = "none" if leaf.grad is None else _tensor(leaf.grad)
    found["generator of torch"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    found["generator of random"] = repr(random.getstate())
    found["generator of numpy"] = repr(np.random.get_state(legacy=False))  # noqa: NPY002  # the global one is meant
    for name in _GLOBAL_HOOKS:
        hooks = getattr(global_hooks, name)
        found[f"global {name}"] = repr(sorted(hooks)) if isinstance(hooks, Mapping) else repr(hooks)
    found["switches"] = repr(
        (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            torch.backends.mha.get_fastpath_enabled(),
            torch.get_num_threads(),
            torch.backends.mkldnn.enabled,
        )
    )
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Names of what was changed, added or lost."""
    return sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))

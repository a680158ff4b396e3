"""ONNX: our models as one file that other runtimes read.

Written by PyTorch's exporter over `torch.export` (``dynamo=True``), which wants onnx and onnxscript; the older one,
over TorchScript, is deprecated.

Shapes: N batch; the other sizes of the input are fixed at what they are in the batch that the model is exported with.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn

from skipway.errors import MissingPackageError, ModelRunError, SkipwayError
from skipway.models import FeatureNet, Net
from skipway.models.fold import fold
from skipway.report.files import write_atomically

if TYPE_CHECKING:
    import os

__all__ = ["check_onnx_packages", "check_onnx_target", "export_onnx", "onnx_difference"]

_LARGEST: Final = 2**31  # bytes of a protobuf message, which an ONNX file is
_MOST: Final = 2**31 - 1  # samples of a batch; older PyTorch wants to know that they are not as many as integers
# Where each operation stands in the source: paths of the machine that exported, and half of the file.
_TRACES: Final = "pkg.torch.onnx.stack_trace"


def export_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    batch: Tensor | None = None,
    dynamic_batch: bool = True,
    folded: bool = True,
) -> Path:
    """Write a model in eval mode as an ONNX file: input ``input``, output ``output`` (``stage0`` … for feature maps).

    Args:
        model: a net of `create_model`; any other module of one tensor with ``folded=False``. It is not changed.
        path: of the file, ``….onnx``; it is written whole or not at all.
        batch: what the model is called with; None for the batch that our own nets name. It fixes every size but N.
        dynamic_batch: whether the file takes any N, or only that of `batch`.
        folded: whether batch norms are folded first (`skipway.fold`).

    Returns:
        The path.

    Raises:
        MissingPackageError: onnx or onnxscript is not installed.
        SkipwayError: no such file can be written, there is no batch, the model cannot be folded, or is too large.
        ModelRunError: the exporter cannot follow the model; its own error is chained.
    """
    check_onnx_packages()
    target = check_onnx_target(path)
    inner = fold(model) if folded else copy.deepcopy(model).eval()
    inner = inner.cpu()
    size = sum(tensor.numel() * tensor.element_size() for tensor in inner.state_dict().values())
    if size >= _LARGEST:
        raise SkipwayError(f"weights of {size / 2**30:.1f} GiB", "less than 2 GiB, the most that an ONNX file holds")
    proto = _exported(inner, _example(inner, batch, dynamic_batch), dynamic_batch)
    write_atomically(target, lambda temporary: temporary.write_bytes(proto.SerializeToString()))
    return target


def onnx_difference(model: nn.Module, path: str | os.PathLike[str], batch: Tensor) -> float:
    """The largest difference between a model and an ONNX file, relative to the model's largest output; dimensionless.

    0 where both return nothing but zeros.

    Args:
        model: run in eval mode on the batch's device, and put back into its mode.
        path: of the file; run by onnxruntime on the processor.
        batch: for both.

    Raises:
        MissingPackageError: onnxruntime is not installed.
        SkipwayError: the outputs are not of one shape.
    """
    _need("onnxruntime")
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            output = model.eval()(batch)
    finally:
        for module, training in modes.items():
            module.training = training
    ours = [tensor.cpu().double() for tensor in (output if isinstance(output, list | tuple) else [output])]
    theirs = [torch.from_numpy(array).double() for array in session.run(None, {"input": batch.cpu().numpy()})]
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (theirs, ours)]
        raise SkipwayError(f"{path} returns {shapes[0]}", f"{shapes[1]}, as the model does")
    return max(_relative(float((a - b).abs().max()), float(a.abs().max())) for a, b in zip(ours, theirs, strict=True))


def _relative(difference: float, largest: float) -> float:
    """Infinite where the model returns nothing but zeros and the file does not."""
    if largest == 0:
        return 0.0 if difference == 0 else math.inf
    return difference / largest


def check_onnx_packages() -> None:
    """Say what to install.

    Raises:
        MissingPackageError: onnx or onnxscript is not installed.
    """
    for package in ("onnx", "onnxscript"):
        _need(package)


def check_onnx_target(path: str | os.PathLike[str]) -> Path:
    """Refuse what cannot be written, before the work is done.

    Raises:
        SkipwayError: it is a folder, or its name does not end in ``.onnx``.
    """
    target = Path(path)
    if target.is_dir():
        raise SkipwayError(f"{target} is a folder", "the name of a file", str(target / "model.onnx"))
    if target.suffix != ".onnx":
        raise SkipwayError(f"{target} is no name of an ONNX file", "one that ends in .onnx", f"{target}.onnx")
    return target


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingPackageError(package, "ONNX", "onnx")


def _example(model: nn.Module, batch: Tensor | None, dynamic: bool) -> Tensor:
    if batch is None:
        if not isinstance(model, Net | FeatureNet):
            raise SkipwayError(
                f"a {type(model).__name__} that does not say what it is called with", "a batch",
                "export_onnx(model, path, batch=torch.zeros(2, 3, 224, 224))",
            )  # fmt: skip
        cfg = model.default_cfg
        batch = torch.zeros(2, *cfg["input_size"], dtype=getattr(torch, cfg["input_dtype"]))
    if not isinstance(batch, Tensor):
        raise SkipwayError(f"a batch of type {type(batch).__name__}", "one tensor")
    if batch.is_floating_point():
        batch = batch.to(next((p.dtype for p in model.parameters()), batch.dtype))
    # One sample alone would be taken for a size that never changes.
    return torch.cat((batch, batch)).cpu() if dynamic and len(batch) == 1 else batch.cpu()


def _exported(model: nn.Module, batch: Tensor, dynamic: bool) -> Any:
    outputs = [f"stage{i}" for i in range(len(model.taps))] if isinstance(model, FeatureNet) else ["output"]
    shapes = ({0: torch.export.Dim("batch", min=1, max=_MOST)},) if dynamic else None
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                model, (batch,), dynamo=True, input_names=["input"], output_names=outputs, dynamic_shapes=shapes,
                verbose=False,
            )  # fmt: skip
    except torch.onnx.OnnxExporterError as error:
        raise ModelRunError("the model could not be exported to ONNX", "a model that torch.export follows") from error
    proto = cast("torch.onnx.ONNXProgram", program).model_proto
    if dynamic and not proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise SkipwayError(
            f"a model whose code fixes the number of samples at {len(batch)}", "sizes read from shapes, not by len()",
            "dynamic_batch=False",
        )  # fmt: skip
    for node in (node for part in (proto.graph, *proto.functions) for node in part.node):
        for entry in [entry for entry in node.metadata_props if entry.key == _TRACES]:
            node.metadata_props.remove(entry)
    return proto

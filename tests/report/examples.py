"""Hand-made inspections for the tests of the report: numbers chosen by hand, no model involved."""

from __future__ import annotations

from dataclasses import replace

from skipway.diagnostics.finding import Finding
from skipway.diagnostics.inspection import Inspection
from skipway.form import Op, UnitForm
from skipway.units.passage import Passage
from skipway.units.unit import StreamNumbers, Unexplained, Unit

BN, RELU, LN = Op("norm", "batch"), Op("activation", "relu"), Op("norm", "layer")


def conv(window: str) -> Op:
    return Op("weight", f"conv{window}")


def bottleneck(stride: int = 1, *, projected: bool = False) -> UnitForm:
    step = f"/{stride}" if stride > 1 else ""
    return UnitForm(
        shortcut=(Op("projection", f"1x1{step}"), BN) if projected else (),
        branch=(conv("1x1"), BN, RELU, conv(f"3x3{step}"), BN, RELU, conv("1x1"), BN),
        after=(RELU,),
    )


def unit(index: int, path: str, form: UnitForm, shape: tuple[int, ...], **numbers: float) -> Unit:
    return Unit(
        index=index, path=path, kind="unit", level=0, form=form, proof_error=0.5 + index / 4, closed=True, shape=shape,
        dtype="float32", parameters=1000, flops=2000, activation_bytes=4096, numbers=StreamNumbers(**numbers),
    )  # fmt: skip


def resnet50() -> Inspection:
    units = []
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            index = len(units)
            first = block == 0
            units.append(
                unit(
                    index, f"layer{stage + 1}.{block}", bottleneck(2 if first and stage else 1, projected=first),
                    (2, 256 << stage, 56 >> stage, 56 >> stage),
                    stream_rms=0.8 + index / 10, branch_rms=1.0, shortcut_rms=1.5, cosine=-0.01 * index, out_rms=1.7,
                    grad_stream=2e-3 / (index + 1), grad_branch=1e-3, similarity=0.2,
                )
            )  # fmt: skip
    return Inspection(
        model="tv:resnet50", mode="train", batch="float32[2,3,224,224]",
        loss="random projection of the output (seed 0)", profile="default", units=units,
        findings=[
            Finding(
                "stream-growth", "info", "layer4.2", {"growth": 1.62, "units": 16}, "none needed below 100 units",
                "arXiv 1603.05027", "the stream grows with depth",
            )
        ],
        unexplained=[Unexplained("avgpool", "add", "both sides come from the input of another branch")],
        slopes={"stream_rms": 0.05, "grad_stream": -0.07, "similarity": 0.001},
        totals={"parameters": 25_557_032, "flops": 16_400_000_000, "activation_bytes": 350 << 20, "operations": 320},
        runs={"trace": 1, "measure": 1, "prove": 3}, notes=["attention was not looked at: the model has none"],
        environment={"torch": "2.6"}, seconds=3.21,
    )  # fmt: skip


def transitions(units: int = 12, every: int = 4) -> Inspection:
    """Clean units with a downsampling layer before every fourth, which something from elsewhere joins at the last."""
    found = []
    for index in range(units):
        one = unit(index, f"stages.{index // every}.{index % every}", bottleneck(), (2, 64), stream_rms=1.0 + index)
        passed = None
        if index and index % every == 0:
            closed = index + every < units
            passed = Passage(path=f"stages.{index // every}.<down>", ops=(LN, conv("2x2/2")), closed=closed)
        found.append(replace(one, before=passed, form=replace(one.form, after=())))
    return replace(resnet50(), model="transitions", units=found, findings=[])


def post_norm(units: int = 120) -> Inspection:
    attention = UnitForm(branch=(Op("weight", "attention"), Op("weight", "linear")), after=(LN,))
    mlp = UnitForm(branch=(Op("weight", "linear"), Op("activation", "gelu"), Op("weight", "linear")), after=(LN,))
    made = [
        unit(
            i, f"layers.{i // 2}#{i % 2 + 1}", mlp if i % 2 else attention, (2, 16, 32),
            stream_rms=1.0, branch_rms=0.3, shortcut_rms=1.0, cosine=0.0, grad_stream=0.5 ** (units - i),
        )
        for i in range(units)
    ]  # fmt: skip
    return Inspection(
        model="post-norm", mode="train", batch="int64[2,16]", loss="mean", profile="default", units=made,
        findings=[], unexplained=[],
    )  # fmt: skip


def nothing() -> Inspection:
    return Inspection(
        model="Sequential", mode="eval", batch="float32[2,8]", loss="mean", profile="default, structure only", units=[],
        findings=[], unexplained=[], notes=["no two tensors with a common ancestor are added"],
    )  # fmt: skip

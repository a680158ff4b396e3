"""skipway builds, trains and X-rays residual networks.

Names are imported when first used, so that ``import skipway`` loads no torch.
"""

from __future__ import annotations

import importlib
import random
from typing import Any, Final

__version__ = "0.1.0"

_WHERE: Final = {
    "Alteration": "skipway.units.alteration",
    "Design": "skipway.designs",
    "DesignInfo": "skipway.designs",
    "FeatureNet": "skipway.models",
    "Inspection": "skipway.diagnostics.inspection",
    "Lesion": "skipway.units.lesion.record",
    "Monitor": "skipway.diagnostics.monitor",
    "Net": "skipway.models",
    "Op": "skipway.form",
    "Proof": "skipway.study.proving.proof",
    "PathSpectrum": "skipway.diagnostics.path_spectrum.result",
    "SkipwayError": "skipway.errors",
    "Stack": "skipway.models",
    "Unit": "skipway.models",
    "UnitForm": "skipway.form",
    "Comparison": "skipway.study.comparison.comparison",
    "DataSpec": "skipway.spec",
    "OptimizerSpec": "skipway.spec",
    "RecipeSpec": "skipway.spec",
    "Run": "skipway.train.run",
    "RunSpec": "skipway.spec",
    "ScheduleSpec": "skipway.spec",
    "StudyOutcome": "skipway.study.outcome",
    "compare": "skipway.study.compare",
    "conduct": "skipway.study.conduct",
    "create_model": "skipway.models",
    "Findings": "skipway.study.examine",
    "examine": "skipway.study.examine",
    "export_onnx": "skipway.integrations.onnx",
    "fit": "skipway.train.plan",
    "fold": "skipway.models.fold",
    "load_comparison": "skipway.study.comparison.comparison",
    "load_run": "skipway.train.run",
    "prove": "skipway.study.prove",
    "path_spectrum": "skipway.diagnostics.path_spectrum",
    "resume": "skipway.train.fit",
    "inspect": "skipway.diagnostics.inspect",
    "lesion": "skipway.units.lesion",
    "list_designs": "skipway.models",
    "list_models": "skipway.models",
    "load_model": "skipway.models.load",
    "load_torchvision_state_dict": "skipway.models",
    "what_if": "skipway.units.what_if",
}
__all__ = [
    "Alteration", "Comparison", "DataSpec", "Design", "DesignInfo", "FeatureNet", "Findings", "Inspection", "Lesion",
    "Monitor", "Net", "Op", "OptimizerSpec", "PathSpectrum", "Proof", "RecipeSpec", "Run", "RunSpec", "ScheduleSpec",
    "SkipwayError", "Stack", "StudyOutcome", "Unit", "UnitForm", "__version__", "compare", "conduct", "create_model",
    "examine", "export_onnx", "fit", "fold", "inspect", "lesion", "list_designs", "list_models", "load_comparison",
    "load_model", "load_run", "load_torchvision_state_dict", "path_spectrum", "prove", "resume", "what_if",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'skipway' has no attribute {name!r}")
    state = random.getstate()  # some libraries draw from it when they are imported
    try:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    finally:
        random.setstate(state)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

"""Models: the only depth loop, stems and heads, the zoo as data."""

from skipway.models.create import build, create_model, list_designs, list_models, parse_name
from skipway.models.net import FeatureNet, Net
from skipway.models.stack import PlannedStack, Stack
from skipway.models.torchvision_weights import load_torchvision_state_dict
from skipway.models.unit import PlannedUnit, Unit
from skipway.models.zoo import FITS

__all__ = [
    "FITS", "FeatureNet", "Net", "PlannedStack", "PlannedUnit", "Stack", "Unit", "build", "create_model",
    "list_designs", "list_models", "load_torchvision_state_dict", "parse_name",
]  # fmt: skip

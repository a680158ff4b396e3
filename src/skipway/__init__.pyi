from skipway.designs import Design as Design
from skipway.designs import DesignInfo as DesignInfo
from skipway.diagnostics.inspect import inspect as inspect
from skipway.diagnostics.inspection import Inspection as Inspection
from skipway.errors import SkipwayError as SkipwayError
from skipway.form import Op as Op
from skipway.form import UnitForm as UnitForm
from skipway.models import FeatureNet as FeatureNet
from skipway.models import Net as Net
from skipway.models import Stack as Stack
from skipway.models import Unit as Unit
from skipway.models import create_model as create_model
from skipway.models import list_designs as list_designs
from skipway.models import list_models as list_models
from skipway.models import load_torchvision_state_dict as load_torchvision_state_dict
from skipway.models.load import load_model as load_model
from skipway.spec import DataSpec as DataSpec
from skipway.spec import OptimizerSpec as OptimizerSpec
from skipway.spec import RecipeSpec as RecipeSpec
from skipway.spec import RunSpec as RunSpec
from skipway.spec import ScheduleSpec as ScheduleSpec
from skipway.train.fit import resume as resume
from skipway.train.plan import fit as fit
from skipway.train.run import Run as Run
from skipway.train.run import load_run as load_run

__version__: str

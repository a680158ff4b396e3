"""A run that lies in a folder: its spec, metrics, result, inspections and weights. Reading it needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skipway.errors import SkipwayError
from skipway.train.folder import RunFolder, read_json, there

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from skipway.data.preparation import Preparation
    from skipway.diagnostics.inspection import Inspection
    from skipway.spec import RunSpec

__all__ = ["Run", "load_run"]


class Run:
    """What is known of a training.

    Args:
        path: its folder.

    Raises:
        SkipwayError: no run lies there.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(path)
        self.path = self.folder.path
        self.spec: RunSpec = self.folder.read_spec()

    @property
    def status(self) -> str:
        """``"finished"``, ``"diverged"``, ``"stopped"`` (with a checkpoint) or ``"begun"``."""
        if self.folder.finished:
            return str(self.result["status"])
        return "stopped" if self.folder.checkpoint_path.exists() else "begun"

    @property
    def result(self) -> dict[str, Any]:
        """What came out of a run that is over; empty before.

        ``status``, ``test_error`` in percent, ``test_loss`` and ``train_loss`` (mean of the last 50 steps, of a short
        run of its last fifth) in nats,
        ``seconds``, ``steps`` …
        """
        return self.folder.read_result() if self.folder.finished else {}

    @property
    def environment(self) -> dict[str, Any]:
        """What it ran on and with."""
        return self.folder.read_environment()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of the outputs; empty where the data has none."""
        return tuple(self.environment["data"].get("classes", ()))

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics, in order."""
        return self.folder.read_metrics()

    def inspection(self, when: str = "end") -> Inspection | None:
        """The inspection at the ``"start"`` or the ``"end"``; None where there is none."""
        from skipway.diagnostics.inspection import Inspection

        path = self.folder.inspection_path(when)
        return Inspection.from_dict(read_json(path)) if path.exists() else None

    def model(self, module: nn.Module | None = None) -> nn.Module:
        """The trained model in eval mode.

        Args:
            module: to load the weights into; needed only where the run was given a module rather than a name.

        Raises:
            SkipwayError: the run has no final weights, was given a module, or its weights do not fit.
        """
        from skipway.models._load_weights import load_weights
        from skipway.models.load_for import load_for_run

        if not self.folder.weights_path.exists():
            raise SkipwayError(
                f"the run in {self.path} is {self.status} and has no final weights",
                "a finished run",
                f"skipway train --resume {self.path}",
            )
        if module is None:
            if self.spec.model.startswith("module:"):
                raise SkipwayError(
                    f"the run in {self.path} was given a module, {self.spec.model.removeprefix('module:')}",
                    "such a module, to load the weights into",
                    "load_run(DIR).model(MyNet())",
                )
            facts = self.environment["data"]
            module = load_for_run(self.spec, num_classes=facts["num_classes"], input_shape=tuple(facts["input_shape"]))
        try:
            load_weights(module, self.folder.weights_path)
        except SkipwayError as error:
            raise SkipwayError(error.given, "such a module as was trained") from error
        return module.eval()

    def transform(self) -> Preparation:
        """What makes inputs of images for this net: ``run.model()(run.transform()("cat.png"))``.

        Sizes, mean and deviation are those of the data that it was trained on, which need not be here.

        Raises:
            SkipwayError: it was not trained on images, or by a version that did not keep these.
        """
        from skipway.train.inputs import load_preparation

        if not there(self.folder.inputs_path):
            task = self.environment["data"].get("task", "image")
            if task != "image":
                raise SkipwayError(f"the run in {self.path} was trained on data of the kind {task!r}", "on images")
            raise SkipwayError(
                f"the run in {self.path} has no {self.folder.inputs_path.name}", "the file as the run wrote it",
                "skipway.data.open_data(run.spec.data).preparation, where the data is",
            )  # fmt: skip
        return load_preparation(self.folder.inputs_path)

    def __repr__(self) -> str:
        spec = self.spec
        return f"Run({str(self.path)!r}: {spec.model} on {spec.data.name}, seed {spec.seed}, {self.status})"


def load_run(path: str | Path) -> Run:
    """The run in a folder.

    Raises:
        SkipwayError: no run lies there, or one of another version.
    """
    return Run(path)

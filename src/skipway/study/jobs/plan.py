"""What a comparison is asked for: models, seeds, and the settings that all its runs share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from skipway.errors import SkipwayError
from skipway.spec import RunSpec
from skipway.train.plan import safe_name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ComparisonPlan", "check_models", "seeds_from", "tests_along"]

_SCHEMA: Final = "skipway.comparison-plan/1.0"


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """Models × seeds under one budget.

    Args:
        models: names; the first is the reference that the others are compared with.
        seeds: one run of each model for each.
        settings: of every run; its model and seed are not used.
        workers: runs at a time.
    """

    models: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: RunSpec
    workers: int = 1

    @property
    def reference(self) -> str:
        """What the others are compared with."""
        return self.models[0]

    def spec(self, model: str, seed: int) -> RunSpec:
        """Of one run."""
        return replace(self.settings, model=model, seed=seed)

    def pairs(self) -> list[tuple[str, int]]:
        """Models and seeds of all runs, seed by seed, so that early results can be compared."""
        return [(model, seed) for seed in self.seeds for model in self.models]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values."""
        settings = self.settings.to_dict()
        del settings["model"], settings["seed"]
        runs = [{"model": m, "seed": s, "folder": f"{safe_name(m)}/seed-{s}"} for m, s in self.pairs()]
        return {
            "schema": _SCHEMA, "models": list(self.models), "seeds": list(self.seeds), "workers": self.workers,
            "settings": settings, "runs": runs,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ComparisonPlan:
        """Read a plan back.

        Raises:
            SkipwayError: another schema, or what a plan does not hold.
        """
        if values.get("schema") != _SCHEMA:
            raise SkipwayError(f"a comparison of schema {values.get('schema')!r}", repr(_SCHEMA))
        lists = {"models": str, "seeds": int}
        try:
            for key, kind in lists.items():
                found = values[key]
                if not isinstance(found, list) or not found or not all(isinstance(v, kind) for v in found):
                    raise SkipwayError(f"a comparison with {key} {found!r}", "comparison.json as it was written")
            if not isinstance(values["settings"], dict):
                raise SkipwayError(f"a comparison with settings {values['settings']!r}", "keys and values")
            return cls(
                models=tuple(values["models"]),
                seeds=tuple(values["seeds"]),
                workers=values["workers"],
                settings=RunSpec.from_dict({**values["settings"], "model": "", "seed": 0}),
            )
        except KeyError as error:
            raise SkipwayError(f"a comparison without {error}", "comparison.json as it was written") from None

    def differences(self, other: ComparisonPlan) -> list[str]:
        """Settings in which another plan differs, as ``steps 100, was 200``."""
        return _differences(other.settings.to_dict(), self.settings.to_dict(), skip=("model", "seed"))


def _differences(now: dict[str, Any], before: dict[str, Any], skip: tuple[str, ...] = ()) -> list[str]:
    found: list[str] = []
    for key, value in now.items():
        if key in skip or value == before[key]:
            continue
        if isinstance(value, dict):
            found += _differences(value, before[key])
        else:
            found.append(f"{key} {value}, was {before[key]}")
    return found


def tests_along(steps: int) -> int:
    """Steps between tests where nobody asks for others: ten tests along the way, for the learning curves."""
    return -(-steps // 10)


def check_models(models: Sequence[str]) -> tuple[str, ...]:
    """The names of the models, if they can stand side by side.

    Raises:
        SkipwayError: none, something else than names, or one twice.
    """
    if isinstance(models, str):
        raise SkipwayError(f"models={models!r}", "a list of names", f'compare([{models!r}, "resnet56"])')
    for model in models:
        if not isinstance(model, str):
            raise SkipwayError(
                f"a model of type {type(model).__name__}", "names, since each run builds its own in another process",
                '"path/to/file.py:factory" for a model of your own',
            )  # fmt: skip
    names = tuple(model.strip() for model in models)
    if not names:
        raise SkipwayError("no models", "at least one name", "skipway compare plain56 resnet56")
    by_folder: dict[str, str] = {}
    for name in names:
        folder = safe_name(name)
        before = by_folder.get(folder)
        if before == name:
            raise SkipwayError(f"{name} is named twice", "each model once; --seeds K trains it K times")
        if before is not None:
            raise SkipwayError(f"{before} and {name} would share the folder {folder}", "names that differ more")
        by_folder[folder] = name
    return names


def seeds_from(seeds: int, base_seed: int) -> tuple[int, ...]:
    """So many seeds, counted up from the first.

    Raises:
        SkipwayError: no seeds, or a negative one.
    """
    for name, value, least in (("seeds", seeds, 1), ("base_seed", base_seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SkipwayError(f"{name}={value!r}", f"an integer from {least}")
    return tuple(range(base_seed, base_seed + seeds))

"""A comparison as a tree of parts: the question and the answer first, then what they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skipway.parts import FindingPart, Part, Section, Skipped, Text
from skipway.report import signal_map, stream_profiles
from skipway.report.numbers import counted
from skipway.study.comparison.answer import answer, question
from skipway.study.comparison.tables import cost_table, result_table
from skipway.study.curves import learning_curves
from skipway.study.jobs.command import command_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from skipway.diagnostics.inspection import Inspection
    from skipway.spec import RunSpec
    from skipway.study.comparison.comparison import Comparison
    from skipway.train.run import Run

__all__ = ["comparison_parts", "comparison_report", "environment_lines", "figures", "recipe_line"]


def comparison_parts(comparison: Comparison) -> tuple[Part, ...]:
    """The parts for a terminal: question, answer, two tables."""
    return (
        Text(text=f"skipway · {question(comparison)}", tone="title"),
        *answer(comparison),
        *_tables(comparison),
    )


def comparison_report(comparison: Comparison) -> tuple[Part, ...]:
    """The parts of the report with figures."""
    groups = {model: list(runs.values()) for model, runs in comparison.runs.items() if runs}
    tables = _tables(comparison)
    return (
        Text(text=question(comparison), tone="title"),
        Section(title="The answer", parts=tuple(answer(comparison))),
        *((Section(title="The comparison", parts=tables),) if tables else ()),
        *figures(groups),
        Section(title="How it was done", parts=tuple(_how(comparison))),
    )


def _tables(comparison: Comparison) -> tuple[Part, ...]:
    """Two that fit a terminal and a phone; none before the first run is over."""
    over = any(summary.n for summary in comparison.summaries.values())
    return (result_table(comparison), cost_table(comparison)) if over else ()


def figures(groups: Mapping[str, Iterable[Run]]) -> tuple[Section, ...]:
    """Learning curves, profiles, maps and findings of groups of runs.

    Args:
        groups: runs by name; of the inspections those of the first run that has one are shown.
    """
    runs = {name: list(members) for name, members in groups.items()}
    seen = {when: _inspections(runs, when) for when in ("start", "end")}
    sections = [Section(title="Learning curves", parts=learning_curves(runs))]
    if not seen["start"] and not seen["end"]:
        missing = Skipped(what="the signal by depth and the stream map", why="no net of these runs was inspected")
        sections.append(Section(title="The signal by depth", parts=(missing,)))
    words = {"start": "before the first step", "end": "after the last step"}
    for when, inspections in seen.items():
        title = f"The signal by depth, {words[when]}"
        sections.append(Section(title=title, parts=stream_profiles(inspections)))
    maps = {name: signal_map(inspection, title=name) for name, inspection in seen["start"].items()}
    sections.append(Section(title="The stream", parts=tuple(m for m in maps.values() if m is not None)))
    sections.append(Section(title="Findings", parts=tuple(_findings(seen))))
    return tuple(section for section in sections if section.parts)


def _inspections(groups: Mapping[str, list[Run]], when: str) -> dict[str, Inspection]:
    found = {}
    for name, runs in groups.items():
        inspection = next((seen for run in runs if (seen := run.inspection(when)) is not None), None)
        if inspection is not None:
            found[name] = inspection
    return found


def _findings(seen: Mapping[str, Mapping[str, Inspection]]) -> list[Part]:
    """Of each net at the start and the end; what is found at both is said once."""
    parts: list[Part] = []
    for name in dict.fromkeys(name for inspections in seen.values() for name in inspections):
        by_rule: dict[tuple[str, str], tuple[FindingPart, list[str]]] = {}
        for when, inspections in seen.items():
            for f in inspections[name].findings if name in inspections else ():
                part = FindingPart(
                    rule=f.rule, severity=f.severity, path=f.path, message=f.message, evidence=dict(f.evidence),
                    fix=f.fix, source=f.source,
                )  # fmt: skip
                by_rule.setdefault((f.rule, f.path), (part, []))[1].append(when)
        found = [replace(p, message=f"at the {' and the '.join(when)}: {p.message}") for p, when in by_rule.values()]
        parts.append(
            Section(title=name, parts=tuple(found) or (Text(text="no findings at start and end", tone="good"),))
        )
    return parts


def _how(comparison: Comparison) -> list[Text]:
    plan = comparison.plan
    lines = [f"command: {command_of(comparison.plan)}", recipe_line(plan.settings)]
    first = next((r for runs in comparison.runs.values() for r in runs.values()), None)
    if first is not None and first.folder.environment_path.exists():
        lines += environment_lines(first.environment)
    lines.append(f"{counted(plan.workers, 'run')} at a time")
    return [Text(text="\n".join(lines), tone="muted")]


def recipe_line(spec: RunSpec) -> str:
    """How a net is trained, in one line."""
    recipe, optimizer = spec.recipe, spec.recipe.optimizer
    source = f" ({recipe.source})" if recipe.source else ""
    return (
        f"recipe {recipe.name}{source}: {recipe.steps} steps of {recipe.batch_size}, {optimizer.name}, "
        f"learning rate {optimizer.lr:g} ({recipe.schedule.name}), weight decay {optimizer.weight_decay:g}"
    )


def environment_lines(facts: Mapping[str, Any]) -> list[str]:
    """Data, hardware and versions of a run in lines of text."""
    data = facts["data"]
    layout = ", channels-last" if facts["channels_last"] else ""
    where = facts["processor"] if str(facts["device"]).startswith("cpu") else f"{facts['device']}, {facts['processor']}"
    versions = ", ".join(f"{name} {facts[name]}" for name in ("skipway", "torch", "torchvision", "numpy", "python"))
    size = f"{data['train_size']} training and {data['test_size']} test samples"
    shape = "×".join(map(str, data["input_shape"]))
    threads = counted(facts["threads"], "thread")
    return [
        f"data: {data['name']}, {size} of {shape}, {data['num_classes']} classes; {data['note']}",
        f"hardware: {where}, {facts['cores']} cores; each run {threads}, {facts['precision']}{layout}",
        f"versions: {versions}, on {facts['platform']}",
    ]

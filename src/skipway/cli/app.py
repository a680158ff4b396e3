"""The commands: each a few lines over the public API. Nothing heavy is imported before a command runs."""

import re
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from skipway.cli.claims import claims_command
from skipway.cli.compare import compare_command
from skipway.cli.complete import (
    LOSSES,
    PROFILES,
    SEVERITIES,
    complete_list,
    complete_loss,
    complete_model,
    complete_profile,
    complete_rule,
    complete_severity,
)
from skipway.cli.export import export_command
from skipway.cli.failures import FAULT, INTERRUPTED, USAGE, report_failure
from skipway.cli.lesion import lesion_command
from skipway.cli.predict import predict_command
from skipway.cli.report import report_command
from skipway.cli.study import study_command
from skipway.cli.train import train_command
from skipway.errors import SkipwayError, suggest

__all__ = ["app", "run"]

app = typer.Typer(
    name="skipway",
    help="Build, train and X-ray residual networks.",
    epilog="Exit codes of inspect: 0 clean, 1 findings at or above --fail-on, 2 model not loaded or not run, 3 usage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_NAMES = "ours (resnet110@preact), tv:NAME, timm:NAME, hf:FOLDER, hf:TYPE, pkg.mod:factory or path/to/file.py:factory"


def _version(asked: bool) -> None:  # typer hands over the flag by position
    if asked:
        from importlib.metadata import version

        print(f"skipway {version('skipway')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # handled by its callback
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Build, train and X-ray residual networks."""


@app.command("list")
def list_command(
    what: Annotated[
        str,
        typer.Argument(help="models, designs, rules, recipes, data, studies or claims", autocompletion=complete_list),
    ],
    pattern: Annotated[
        str | None, typer.Argument(help="part of a name, or a shell pattern; 'tv:*' lists torchvision's models")
    ] = None,
) -> int:
    """List models, designs, rules, recipes, data sets, studies or claims."""
    from skipway.cli.catalog import list_names

    return list_names(what, pattern)


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help=f"a model: {_NAMES}; or a design", autocompletion=complete_model)],
    batch: Annotated[
        int,
        typer.Option(
            min=1,
            help="Samples for which it is said what each memory mode keeps; of models that are not ours, for which "
            "FLOPs and bytes are counted.",
        ),
    ] = 2,
) -> int:
    """Show a model: parameters, FLOPs, activation bytes, residual units and their forms; or a design."""
    from skipway.cli.show import run_show

    return run_show(name, batch)


@app.command("rules")
def rules_command(
    rule: Annotated[str | None, typer.Argument(help="a rule id", autocompletion=complete_rule)] = None,
) -> int:
    """Explain the rules: what each finds, by which evidence, and where its threshold comes from."""
    from skipway.cli.catalog import show_rules

    return show_rules(rule, None)


@app.command("inspect")
def inspect_command(  # noqa: PLR0913, PLR0917  # one parameter for each option of the command line
    model: Annotated[str, typer.Argument(help=_NAMES, autocompletion=complete_model)],
    input_: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="SHAPE",
            help="[NAME=][KIND:]D,D,… joined by ';', for example 2,3,224,224 or 'input_ids=ids:2,16'. Kinds: float "
            "(noise, the default), unit (0 to 1), ids (below the embedding's size), ids1000 (below 1000), ones, zeros, "
            "mask (all true). Default: what the model asks for.",
        ),
    ] = None,
    batch: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Inputs from a .safetensors file (names are keyword arguments) or a .pt file."
        ),
    ] = None,
    kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="Further keyword arguments of the model's forward.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Load .safetensors or .pt weights, all or none; measured in eval mode."),
    ] = None,
    loss: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(LOSSES)}, pkg.mod:function or file.py:function: output -> scalar.",
            autocompletion=complete_loss,
        ),
    ] = "projection",
    train: Annotated[
        bool | None,
        typer.Option(
            "--train/--eval", help="Mode to measure in. Default: train for fresh weights, eval for loaded ones."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps …")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, float64, bfloat16 or float16.")] = None,
    amp: Annotated[str | None, typer.Option(help="Run under autocast: bfloat16 or float16.")] = None,
    structure_only: Annotated[bool, typer.Option("--structure-only", help="Find the units; measure nothing.")] = False,
    profile: Annotated[
        str, typer.Option(metavar="|".join(PROFILES), help="How much to measure.", autocompletion=complete_profile)
    ] = "default",
    paths: Annotated[
        bool, typer.Option("--paths", help="Also measure the gradient by path length, exactly, with its checks.")
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="K", help="With --paths: the longest length that stands by itself; by default at most 32."
        ),
    ] = None,
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Train copies as they are and under each fix, and say which fix mends a finding."),
    ] = False,
    fix: Annotated[
        str | None,
        typer.Option(metavar="FACTORY", help="With --prove: the changed model, pkg.mod:factory or file.py:factory."),
    ] = None,
    prove_steps: Annotated[int, typer.Option(min=1, metavar="N", help="With --prove: steps of each run.")] = 150,
    json: Annotated[
        bool, typer.Option("--json", help="Print the JSON report to standard output, nothing else.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report with its figures as one HTML file.")
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="|".join(SEVERITIES), help="Exit code 1 from this severity on.", autocompletion=complete_severity
        ),
    ] = "error",
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Leave a rule out; may be repeated.", autocompletion=complete_rule),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An earlier --json report of the model: findings in it are known."),
    ] = None,
) -> int:
    """Find and prove the residual units of any PyTorch model, measure the signal, and say what is wrong."""
    from skipway.cli.inspect import Request, run_inspect

    return run_inspect(
        Request(
            model=model, input=input_, batch=batch, kwargs=kwargs, weights=weights, loss=loss,
            mode=None if train is None else "train" if train else "eval", device=device, dtype=dtype, amp=amp,
            structure_only=structure_only, profile=profile, paths=paths, max_length=max_length, prove=prove,
            fix=fix, prove_steps=prove_steps, json=json, html=html, fail_on=fail_on,
            ignore=tuple(ignore or ()), baseline=baseline,
        )
    )  # fmt: skip


app.command("train")(train_command)
app.command("compare")(compare_command)
app.command("report")(report_command)
app.command("lesion")(lesion_command)
app.command("predict")(predict_command)
app.command("export")(export_command)
app.command("study")(study_command)
app.command("claims")(claims_command)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        arguments: what stands behind ``skipway``; by default what the process was started with.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show λ gets a question mark instead of a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = app(args=arguments, prog_name="skipway", standalone_mode=False)
    except SystemExit as end:
        # The reader of a pipe has gone. Click and rich then end with 1, which stands for findings or divergence here.
        if isinstance(end.__context__, BrokenPipeError):
            return 0
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # the outermost place: every error becomes a text and an exit code
        return _failed(error)
    return code if isinstance(code, int) else 0


def _failed(error: Exception) -> int:
    if isinstance(error, SkipwayError):
        return report_failure(error)
    if isinstance(error, _USAGE):
        return _usage(error)
    traceback.print_exception(error)
    print("error: this is a fault of skipway itself, not of the model", file=sys.stderr)
    return FAULT


# Whichever click typer uses or carries inside, this is its usage error.
_USAGE: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")


def _usage(error: Exception) -> int:
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if not message:  # `skipway` alone: the help was printed
        return 0
    typo = re.match(r"No such command '(.+)'\.$", message)  # older typer leaves the suggestion to us
    if typo and (close := suggest(typo[1], [str(command.name) for command in app.registered_commands])):
        message += f" Did you mean '{close[0]}'?"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "skipway"
    print(f"error: {message}\ntry: {path} --help", file=sys.stderr)
    return USAGE

"""``memdiag profile``: run a model in a child process and show its memory, phase by phase."""

from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from memdiag.cli.arguments import budget as budget_of
from memdiag.cli.arguments import command_line, dimension_sizes, given_inputs, pairs
from memdiag.cli.choices import LoadFrom, Plotly, Verify
from memdiag.cli.declarations import (
    DIM_HELP,
    INPUT_HELP,
    INPUTS_HELP,
    LOAD_FROM_HELP,
    MEMORY_LIMIT_HELP,
    PLOTLY_HELP,
    QUIET_HELP,
    RUNS_HELP,
    SESSION_OPTION_HELP,
    THREADS_HELP,
    TIMEOUT_HELP,
    VERIFY_HELP,
)
from memdiag.errors import UsageError
from memdiag.units import parse_size


class _Xray(StrEnum):
    steady = "steady"
    phases = "phases"
    none = "none"


class _Format(StrEnum):
    console = "console"
    json = "json"
    markdown = "markdown"
    github = "github"


_INPUTS = "Inputs"
_SESSION = "Session"
_LIMITS = "Limits"
_XRAY = "X-ray"
_BUDGET = "Budget"
_OUTPUT = "Output"


def command(
    model: Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)],
    runs: Annotated[int, typer.Option(help=RUNS_HELP, rich_help_panel=_INPUTS)] = 10,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run",
            help="Run the model, or stop after session creation.",
            rich_help_panel=_INPUTS,
        ),
    ] = True,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N,…",
            help=DIM_HELP,
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE.npy", help=INPUT_HELP, rich_help_panel=_INPUTS),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help=INPUTS_HELP, rich_help_panel=_INPUTS),
    ] = None,
    session_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help=SESSION_OPTION_HELP,
            rich_help_panel=_SESSION,
        ),
    ] = None,
    optimization_level: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="Graph optimizations: disable_all, basic, extended, layout or all.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    disable_optimizer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A graph transformer to disable; can be repeated.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=0, help=THREADS_HELP, rich_help_panel=_SESSION)
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An execution provider; can be repeated, the preferred one first.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An environment variable of the child process; can be repeated.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    load_from: Annotated[
        LoadFrom,
        typer.Option(help=LOAD_FROM_HELP, rich_help_panel=_SESSION),
    ] = LoadFrom.path,
    telemetry: Annotated[
        bool,
        typer.Option(
            "--telemetry",
            help="Leave onnxruntime's telemetry on, as it is by default since 1.29.",
            rich_help_panel=_SESSION,
        ),
    ] = False,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="Another Python interpreter that has onnxruntime.",
            rich_help_panel=_SESSION,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help=TIMEOUT_HELP, rich_help_panel=_LIMITS),
    ] = 1800.0,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=MEMORY_LIMIT_HELP,
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    xray: Annotated[
        _Xray,
        typer.Option(
            help="When to identify the owner of every resident byte: at steady state, also at the"
            " end of each phase, or never.",
            rich_help_panel=_XRAY,
        ),
    ] = _Xray.steady,
    verify: Annotated[
        Verify,
        typer.Option(help=VERIFY_HELP, rich_help_panel=_XRAY),
    ] = Verify.full,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE=SIZE,…",
            help="Limits of figures, e.g. peak=1.2GB,copies=1.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Baseline file to compare with.", rich_help_panel=_BUDGET
        ),
    ] = None,
    update_baseline: Annotated[
        bool,
        typer.Option(
            "--update-baseline",
            help="Write the baseline file instead of comparing with it.",
            rich_help_panel=_BUDGET,
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of processes to run when a budget is exceeded or a baseline is written;"
            " medians are used.",
            rich_help_panel=_BUDGET,
        ),
    ] = 3,
    pin: Annotated[
        bool,
        typer.Option(
            "--pin/--no-pin",
            help="With a budget or baseline, make malloc release freed memory, so that figures"
            " are reproducible.",
            rich_help_panel=_BUDGET,
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the record and its reports to this folder (default: reports/MODEL).",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    plotly: Annotated[
        Plotly,
        typer.Option(
            help=PLOTLY_HELP,
            rich_help_panel=_OUTPUT,
        ),
    ] = Plotly.inline,
    format: Annotated[
        _Format,
        typer.Option(
            help="What to print: a summary, the JSON record, a Markdown report, or GitHub"
            " annotations and a job summary.",
            rich_help_panel=_OUTPUT,
        ),
    ] = _Format.console,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help=QUIET_HELP, rich_help_panel=_OUTPUT)
    ] = False,
) -> int:
    """Run a model in a child process and show when it allocates memory, and how much.

    Writes profile.json, report.html, report.md and timeline.png. Exit codes: 0; 1 if a budget or
    a baseline is exceeded; 2 if the model could not be loaded or run to the end (the profile up to
    that point is saved).

    The rules of memdiag check are compared with the measurement; select, ignore and min-bytes in
    [tool.memdiag] of pyproject.toml choose among them.
    """
    import msgspec

    from memdiag.api.budget import Held, hold, pinned, refuse_other_configuration
    from memdiag.api.check import DEFAULT_MIN_BYTES
    from memdiag.api.configuration import read_configuration
    from memdiag.api.profile import Interrupted
    from memdiag.api.profile import profile as run_profile
    from memdiag.cli.display import ProgressLine
    from memdiag.cli.output import Destination
    from memdiag.cli.profile_output import print_result
    from memdiag.records.budget import Budget
    from memdiag.records.codec import escaped

    settings = read_configuration()
    least_bytes = settings.least_bytes
    destination = Destination(out or Path("reports") / model.stem, plotly=plotly.value)
    wanted = budget_of("--budget", budget)
    is_judged = wanted is not None or baseline is not None
    if baseline is None and update_baseline:
        raise UsageError("--update-baseline needs a file. Add --baseline FILE.")
    if baseline is not None and not update_baseline and not baseline.exists():
        raise UsageError(f"{baseline}: no such file. Create it with --update-baseline.")
    variables = pairs("--env", env or ())
    with ProgressLine(model.name, runs) as line:
        once = partial(
            run_profile,
            model,
            runs=runs,
            run=run,
            dims=dimension_sizes("--dim", dim or ()),
            inputs=given_inputs(input or (), inputs),
            session_options=pairs("--session-option", session_option or ()),
            optimization_level=optimization_level,
            disabled_optimizers=disable_optimizer or (),
            threads=threads,
            providers=provider or ("CPUExecutionProvider",),
            environment=pinned(variables) if is_judged and pin else variables,
            load_from=load_from.value,
            python=python,
            timeout_s=timeout,
            memory_limit_bytes=parse_size(memory_limit) if memory_limit else None,
            telemetry=telemetry,
            verify=verify.value,
            select=settings.select,
            ignore=settings.ignore,
            min_bytes=DEFAULT_MIN_BYTES if least_bytes is None else least_bytes,
            on_progress=line.show,
        )
        when: Literal["steady", "phases", "none"] = xray.value
        try:
            if is_judged:
                held = hold(
                    lambda wished: once(xray=when if wished == "steady" else wished),
                    wanted or Budget(),
                    model=str(model),
                    baseline=baseline,
                    update=update_baseline,
                    processes=processes,
                )
            else:
                held = Held(profile=once(xray=when), judgement=None)
        except Interrupted as interrupted:
            held = Held(profile=interrupted.profile, judgement=None)
            was_interrupted = True
        else:
            was_interrupted = False
    told = msgspec.structs.replace(held.profile, judgement=held.judgement, command=command_line())
    told = escaped(told)
    held = replace(held, profile=told)
    if was_interrupted and told.outcome.status == "completed":
        # Measured, but not yet examined: whoever interrupts that has no time for reports.
        (saved,) = destination.write(told, ("json",))
        raise KeyboardInterrupt(f"The profile, without findings, is at {saved}.")
    written = destination.write(held.profile)
    if baseline is not None and held.update_baseline is not None:
        refuse_other_configuration(baseline, str(model), held.profile)
    return print_result(held, written, format=format.value, quiet=quiet)

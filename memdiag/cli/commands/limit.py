"""``memdiag limit``: find the smallest memory limit under which a model or program works."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.api.options import InputOptions, ModelLimitOptions, SessionAndRunOptions, options_of
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR
from memdiag.cli.options import (
    add_detail,
    add_format,
    add_option,
    add_options,
    add_reports_folder,
    comma_separated_parts,
    read_options,
    refuse_options,
    reports_folder,
)
from memdiag.defaults import DEFAULT_LIMIT_RUNS
from memdiag.detail import Detail
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.cli.progress import StatusLine
    from memdiag.records.limit import MemoryLimit

ARGUMENTS = "{MODEL | -- COMMAND [ARGUMENTS...]}"

_MODEL_LIMIT_OPTIONS = ("runs", *options_of(ModelLimitOptions))
"""Options that have no effect on a program, which has its own work."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", type=Path, help="The model, in ONNX or ORT format."
    )
    # The words after `--`.
    parser.set_defaults(program=())

    group = parser.add_argument_group("Trials")
    add_option(group, "runs", default=DEFAULT_LIMIT_RUNS)
    add_option(
        group,
        "duration_s",
        help="Length of the recording of a program that does not end, such as a server: if it still"
        " runs after this time, it has worked, and is ended (default: wait for its end).",
    )
    group.add_argument(
        "--at",
        metavar="SIZE,…",
        help="Make a trial under each of these limits, such as 512MiB,1GiB, instead of a search.",
    )
    add_option(group, "time_limit_s", end=", with the best result so far")

    add_options(parser.add_argument_group("Inputs"), InputOptions)
    add_options(parser.add_argument_group("Session"), SessionAndRunOptions)

    group = parser.add_argument_group("Output")
    add_reports_folder(group, "reports/MODEL", "memdiag-limit-PID")
    add_format(
        group,
        ("console", "json", "k8s", "compose", "markdown"),
        "What to print: a summary, the JSON record, the resources of a Kubernetes container, a"
        " service of Compose, or a Markdown report.",
    )
    add_detail(group, has_more=False)


def run(options: Namespace) -> int:
    """Find the smallest memory limit under which a model loads and runs, or a program works.

    Each trial is a new process in a new control group with a real limit, and ends when it has taken
    three times as long as without one. The result is the smallest limit that works, the smallest
    without slowdown, the phase in which it is killed below, and a suggestion for the request and
    limit of a container. The output of a program is discarded.

    With --provider CUDAExecutionProvider the memory on the GPU is limited: each trial sets
    gpu_mem_limit, which needs no control group. The result is the smallest that works, and what it
    costs.

    Writes limit.json, limit.html, limit.md and limit.png. Ctrl-C ends the search; the record up to
    then is written. Exit codes: 0; 2 on errors, if the search ended early, and where no control
    group can be created (the suggestion is then by the measured peak and the estimate).
    """
    from memdiag.cli.output import ReportDestination, print_record
    from memdiag.cli.progress import StatusLine
    from memdiag.reports.limit import limit_compose_yaml, limit_kubernetes_yaml
    from memdiag.reports.text import plain

    if (options.model is None) == (not options.program):
        raise UsageError("limit: give either a model, or -- and a program.")
    if options.program:
        folder = reports_folder(options, "PID", os.getpid())
        title = options.program[0]
    else:
        folder = reports_folder(options, "MODEL", options.model.stem)
        title = options.model.name
    destination = ReportDestination(folder)
    with StatusLine(title) as line:
        find_limit = _find_program_limit if options.program else _find_model_limit
        result = find_limit(options, line)

    with destination.written_reports(result) as report_paths:
        print_record(
            result,
            report_paths,
            format=options.format,
            detail=options.detail,
            machine_formats={"k8s": limit_kubernetes_yaml, "compose": limit_compose_yaml},
        )
        if result.message and (options.format != "console" or options.detail is Detail.ANSWER):
            has_trials = result.group_version is not None or result.device is not None
            label = "ended early" if has_trials else "no limit was tried"
            print(f"memdiag: {label}: {plain(result.message)}", file=sys.stderr)
    return EXIT_ERROR if result.message else EXIT_CLEAN


def _find_model_limit(options: Namespace, line: StatusLine) -> MemoryLimit:
    from memdiag.api.limit import limit

    if options.duration_s is not None:
        raise UsageError("--for is for programs: a model is run as often as --runs states.")
    return limit(
        options.model,
        runs=options.runs,
        at_bytes=_trial_limit_bytes(options),
        time_limit_s=options.time_limit_s,
        on_progress=line.show,
        **read_options(options, ModelLimitOptions),
    )


def _find_program_limit(options: Namespace, line: StatusLine) -> MemoryLimit:
    from memdiag.api.limit_program import limit_program

    refuse_options(
        options, configure, _MODEL_LIMIT_OPTIONS, "is for models: a program has its own work."
    )
    return limit_program(
        options.program,
        duration_s=options.duration_s,
        at_bytes=_trial_limit_bytes(options),
        time_limit_s=options.time_limit_s,
        on_progress=line.show,
    )


def _trial_limit_bytes(options: Namespace) -> tuple[int, ...]:
    """Return the limits of ``--at`` in bytes.

    Raises:
        UsageError: a limit is not a size.
    """
    from memdiag.units import parse_size

    return tuple(map(parse_size, comma_separated_parts(options.at)))

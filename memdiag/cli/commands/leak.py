"""``memdiag leak``: run a model many times, or observe a program, and judge its growth."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.api.options import (
    ArrayOptions,
    InterpreterOptions,
    LeakOptions,
    SessionAndRunOptions,
    options_of,
)
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from memdiag.cli.options import (
    add_detail,
    add_dims,
    add_format,
    add_option,
    add_options,
    add_reports_folder,
    comma_separated_parts,
    read_dim_ranges,
    read_options,
    refuse_options,
    reports_folder,
)
from memdiag.defaults import DEFAULT_LEAK_RUNS, MIN_LEAK_RUNS
from memdiag.detail import Detail
from memdiag.errors import UsageError
from memdiag.process_end import end_text

if TYPE_CHECKING:
    from memdiag.cli.progress import StatusLine
    from memdiag.records.growth import Growth

ARGUMENTS = "{MODEL | PID | -- COMMAND [ARGUMENTS...]}"

_MODEL_LEAK_OPTIONS = (
    *("vary", "reload", "dims"),
    *options_of(LeakOptions),
)
"""Options that have no effect on a process whose work memdiag does not choose."""


def starts_no_program(options: Namespace) -> bool:
    """Return whether the command starts no program. A program has to keep the terminal."""
    return not options.program


IN_WORKER = starts_no_program


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "target",
        metavar="MODEL|PID",
        nargs="?",
        help="The ONNX model to run, or the id of a running process to observe.",
    )
    # The words after `--`.
    parser.set_defaults(program=())

    group = parser.add_argument_group("Runs")
    add_option(
        group,
        "runs",
        default=None,
        help=f"Number of runs, or of reloads, {MIN_LEAK_RUNS} or more (default: up to"
        f" {DEFAULT_LEAK_RUNS:,} within a minute). With --for, runs also end after that"
        " time. A program is ended after this number of runs of its sessions.",
    )
    add_option(
        group,
        "duration_s",
        end=" (default: a minute for a model; for a process or program until Ctrl-C, or until it"
        " ends). The first runs of a model show how many fit into that time; there are at least"
        f" {MIN_LEAK_RUNS}. A program is ended after that time, as by Ctrl-C",
    )
    add_option(
        group,
        "pause",
        end=", for some tenths of a second: otherwise the heap of a busy process often cannot be"
        " read. Only for PID",
    )
    group.add_argument(
        "--reload",
        action="store_true",
        help="In each run, create the session, run it once, and release it.",
    )

    group = parser.add_argument_group("Inputs")
    group.add_argument(
        "--vary",
        metavar="KIND,…",
        help="Kinds of variation from run to run: content, shape (the sizes of free dimensions), or"
        " none (default: content; sizes with a range always vary).",
    )
    add_dims(group, ranges=True)
    add_options(group, ArrayOptions)

    add_options(parser.add_argument_group("Session"), SessionAndRunOptions, InterpreterOptions)

    group = parser.add_argument_group("Output")
    add_reports_folder(group, "reports/MODEL", "memdiag-leak-PID")
    add_format(
        group,
        ("console", "json", "github"),
        "What to print: a summary, the JSON record, or GitHub annotations and a job summary.",
    )
    add_detail(group)


def run(options: Namespace) -> int:
    """Find out whether memory grows with each run, what grows, and whether it is a leak.

    Runs a model many times in a child process, each time with new inputs; or observes a running
    process; or starts the program after --. Several times, it reads who owns the memory. The
    verdict is flat, plateau, high_water, patterns, retained, kept, leak or undecided.

    Writes growth.json, growth.html, growth.md and growth.png. Ctrl-C ends the runs and writes the
    record up to then; --for and --runs end a program in the same way. Exit codes: 0; 1 for a leak,
    or if the program keeps values, except during a calibration; 2 on errors, and if the runs ended
    early with no such verdict.
    """
    from memdiag.cli.output import ReportDestination
    from memdiag.cli.progress import StatusLine

    if options.program:
        return _observe_program(options)
    if options.target is None:
        raise UsageError(
            "leak: there is nothing to observe. Give a model, the id of a process, or -- and a"
            " program."
        )
    is_process = options.target.isascii() and options.target.isdecimal()
    if is_process:
        observe, title = _observe_process, f"process {options.target}"
        folder = reports_folder(options, "PID", options.target)
    else:
        observe, title = _observe_model, Path(options.target).name
        folder = reports_folder(options, "MODEL", Path(options.target).stem)
    destination = ReportDestination(folder)
    with StatusLine(title) as line:
        growth = observe(options, line)
    with destination.written_reports(growth) as report_paths:
        return _print_growth_result(growth, report_paths, options)


def _observe_model(options: Namespace, line: StatusLine) -> Growth:
    from memdiag.api.leak import leak
    from memdiag.units import format_size

    if options.pause:
        raise UsageError("--pause is for running processes: a model is read between runs.")
    unit = "reload" if options.reload else "run"
    line.show(f"first {unit}")
    return leak(
        Path(options.target),
        runs=options.runs,
        duration_s=options.duration_s,
        vary=comma_separated_parts(options.vary) or ("content",),  # type: ignore[arg-type] # checked by leak
        reload=options.reload,
        dims=read_dim_ranges(options.dims),
        on_progress=lambda progress: line.show(
            f"{unit} {progress.runs_done:,} of {progress.runs_planned:,}"
            f" · {format_size(progress.resident_bytes)}"
        ),
        **read_options(options, LeakOptions),
    )


def _observe_process(options: Namespace, line: StatusLine) -> Growth:
    from memdiag.api.leak_program import leak_process
    from memdiag.units import format_size

    _refuse_model_options(options)
    if options.runs is not None:
        raise UsageError(
            "--runs does not apply to a running process, whose runs are not known. Use --for TIME."
        )
    line.show("until Ctrl-C" if options.duration_s is None else "observing")

    return leak_process(
        int(options.target),
        duration_s=options.duration_s,
        pause=options.pause,
        on_progress=lambda progress: line.show(format_size(progress.resident_bytes)),
    )


def _observe_program(options: Namespace) -> int:
    """Run the program, which keeps the terminal; the summary goes to standard error."""
    from memdiag.cli.worker import signals_for_main_thread

    with signals_for_main_thread():
        from memdiag.api.leak_program import has_failed, leak_program
    from memdiag.cli.output import ReportDestination, print_wait

    if options.target is not None:
        raise UsageError(
            f"leak: {options.target} and a program after -- cannot both be observed. Give one."
        )
    _refuse_model_options(options)
    if options.pause:
        raise UsageError("--pause is for running processes: a program is read between two runs.")
    if options.format == "json":
        raise UsageError(
            "--format json does not apply to a program, which has the standard output. Read"
            " growth.json in the folder of the reports (--out)."
        )
    destination = ReportDestination(reports_folder(options, "PID", os.getpid()))
    growth, exit_code = leak_program(
        options.program,
        duration_s=options.duration_s,
        runs=options.runs,
        on_wait=print_wait,
    )
    with destination.written_reports(growth) as report_paths:
        code = _print_growth_result(growth, report_paths, options, to_stderr=True)
        if has_failed(exit_code):
            print(f"memdiag: the program {end_text(exit_code)}.", file=sys.stderr)
            code = code or EXIT_ERROR
    return code


def _refuse_model_options(options: Namespace) -> None:
    """Raise UsageError if the user passed an option that applies only to models."""
    reason = "is for models that memdiag runs: a process or program has its own work."
    refuse_options(options, configure, _MODEL_LEAK_OPTIONS, reason)


def _print_growth_result(
    growth: Growth, report_paths: Sequence[Path], options: Namespace, *, to_stderr: bool = False
) -> int:
    """Print `growth` in the chosen format, and return the exit code.

    Raises:
        ReportError: the job summary cannot be written.
    """
    from memdiag.cli.output import append_job_summary, print_record, print_record_summary
    from memdiag.reports import report_of
    from memdiag.reports.github import growth_annotations
    from memdiag.reports.text import plain

    is_summary = options.format == "console" and options.detail is not Detail.ANSWER
    if to_stderr and options.format != "github":
        print_record_summary(growth, report_paths, detail=options.detail, to_stderr=True)
    else:
        print_record(
            growth,
            report_paths,
            format=options.format,
            detail=options.detail,
            machine_formats={"github": growth_annotations},
        )
    if options.format == "github":
        append_job_summary(report_of(growth).render(growth, "markdown").decode())
    if growth.message:
        if not is_summary:
            print(f"memdiag: ended early: {plain(growth.message)}", file=sys.stderr)
        return EXIT_ERROR
    return EXIT_FINDINGS if growth.is_leak_or_kept else EXIT_CLEAN

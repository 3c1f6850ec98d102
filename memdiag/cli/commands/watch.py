"""``memdiag watch``: record the memory of a running process and its descendants."""

import signal
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from memdiag.cli import EXIT_CLEAN
from memdiag.cli.options import (
    add_detail,
    add_list,
    add_option,
    add_reports_folder,
    add_switch,
    reports_folder,
    whole_number_reader,
)

ARGUMENTS = "PID"
IN_WORKER = False
"""A worker is in another process group, which may not read the keys of the terminal."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "pid",
        metavar="PID",
        type=whole_number_reader(1),
        help="Id of a running process, in any language.",
    )
    help_end = " (default: until Ctrl-C, or until the process ends)"
    add_option(parser, "duration_s", end=help_end)
    add_switch(
        parser,
        parser,
        "--xray",
        default=True,
        help="Identify the owners of the memory of each process that uses onnxruntime, at the end"
        " and at peaks that last (the default). With --no-xray only its counters are read.",
    )
    add_list(
        parser,
        "--model",
        metavar="FILE",
        type=Path,
        help="The ONNX model that the process runs, for X-rays; can be repeated. By default the"
        " models whose files the processes use.",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="Show processes and memory on the terminal while they are recorded. Keys: x takes an"
        " X-ray, p pauses the display, s changes the order, q ends the recording.",
    )
    add_reports_folder(parser, "memdiag-watch-PID")
    add_detail(parser)


def run(options: Namespace) -> int:
    """Record the memory of a running process and its descendants.

    Works for processes in any language that memdiag did not start. They are only read and keep
    running. The recording ends with the process, after --for, or at Ctrl-C; a second Ctrl-C skips
    the X-rays at the end. A process that has ended cannot be X-rayed.

    Sessions are not recorded: start the program with memdiag run for these. memdiag xray DIR takes
    an X-ray while the recording is under way.
    """
    from memdiag.api.watch import watch
    from memdiag.cli.output import ReportDestination, print_record_summary
    from memdiag.cli.progress import recording_progress

    folder = reports_folder(options, "PID", options.pid)
    destination = ReportDestination(folder)
    with ExitStack() as stack:
        title = f"memdiag watch {options.pid}"
        progress = recording_progress(
            options, stack, title, lambda view: signal.raise_signal(signal.SIGINT)
        )
        result = watch(
            options.pid,
            duration_s=options.duration_s,
            xray=options.xray,
            models=options.model or None,
            request_folder=folder,
            on_near_limit=destination.save_early,
            **progress,
        )
    with destination.written_reports(result) as report_paths:
        print_record_summary(result, report_paths, detail=options.detail)
    return EXIT_CLEAN

"""``memdiag run``: run a program, and record every onnxruntime session in it."""

import argparse
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.cli import EXIT_CLEAN
from memdiag.cli.options import add_detail, add_reports_folder, add_switch, reports_folder
from memdiag.detail import Detail

if TYPE_CHECKING:
    from memdiag.cli.live import LiveView
    from memdiag.records.run import ProgramRun

ARGUMENTS = "[--] COMMAND [ARGUMENTS...]"
IN_WORKER = False
"""The program keeps the terminal. A worker would be in another process group."""


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs=argparse.REMAINDER,
        default=(),
        help="The program and its arguments, such as python app.py, or gunicorn app:app.",
    )
    add_switch(
        parser,
        parser,
        "--xray",
        default=True,
        help="Identify the owners of the memory of each process with sessions, at its end and at"
        " peaks that last (the default). A process that ends waits up to 20 s for its X-ray, also"
        " after Ctrl-C in a terminal; after a signal to memdiag alone, all processes together wait"
        " up to 4 s. Use --no-xray if the program may be killed soon (docker stop: after 10 s).",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="Show processes, sessions and memory on the terminal while the program runs. Its"
        " standard output and error go to stdout.txt and stderr.txt in the folder of the reports,"
        " and its standard input is empty (/dev/null). Keys: x takes an X-ray, p pauses the"
        " display, s changes the order, q closes the view while the program goes on.",
    )
    add_reports_folder(parser, "memdiag-run-PID", remark=", with memdiag's own process id")
    add_detail(parser)


def run(options: Namespace) -> int:
    """Run a program, and record its processes, its memory and every onnxruntime session in it.

    The program is not modified: it has its own standard input, output and error, and its exit code
    is that of memdiag. Sessions are recorded in every Python process that the program starts. The
    summary goes to standard error.
    """
    from memdiag.cli.worker import signals_for_main_thread

    with signals_for_main_thread():
        from memdiag.api.run import run_program
    from memdiag.cli.output import ReportDestination, print_wait
    from memdiag.cli.progress import recording_progress

    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    folder = reports_folder(options, "PID", os.getpid())
    destination = ReportDestination(folder)
    until_saved = ExitStack()
    with until_saved, ExitStack() as stack:
        title = f"memdiag run {' '.join(words)}"
        leave_view = partial(_leave_live_view, folder=folder)
        result = run_program(
            words,
            takes_xray=options.xray,
            request_folder=folder,
            until_saved=until_saved,
            on_near_limit=destination.save_early,
            program_output_folder=folder if options.live else None,
            **recording_progress(options, stack, title, leave_view),
        )
        stack.close()
        try:
            with destination.written_reports(result, when_saved=until_saved.close) as report_paths:
                _print_summary(result, report_paths, options.detail)
        except KeyboardInterrupt as interrupt:
            print_wait(f"the reports are not complete. {interrupt} memdiag report renders them.")
    return _program_exit_code(result.exit_code)


def _print_summary(result: "ProgramRun", report_paths: Sequence[Path], detail: Detail) -> None:
    """Print the summary on standard error. An error in that does not change the exit code."""
    from memdiag.cli.output import print_record_summary

    # rich ends the program if the reader of a pipe has ended.
    with suppress(OSError, SystemExit, KeyboardInterrupt):
        print_record_summary(result, report_paths, detail=detail, to_stderr=True)


def _leave_live_view(view: "LiveView", folder: Path) -> None:
    """Close the view; the program goes on."""
    from memdiag.cli.output import print_wait

    view.close()
    print_wait(f"the program goes on; its output is in {folder}.")


def _program_exit_code(code: int | None) -> int:
    """Return the exit code of the program; after a signal, the code that a shell reports."""
    if code is None:
        return EXIT_CLEAN
    return 128 - code if code < 0 else code

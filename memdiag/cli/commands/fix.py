"""``memdiag fix``: rewrite a model so that it wastes less, verified and measured."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from memdiag.cli import CLEAN, FINDINGS
from memdiag.cli.options import (
    add_format,
    add_list,
    add_model,
    add_quiet,
    add_reports_folder,
    add_search_options,
    comma_list,
    command_line,
    read_search_options,
)

ARGUMENTS = "MODEL"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser, ort_format=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Write the fixed model to this file (default: NAME.fixed.onnx).",
    )
    add_list(
        parser,
        "--only",
        metavar="RULE",
        help="Try only remedies for what these rules find, separated by commas (names of rules, as"
        " memdiag check MODEL prints them, not of remedies); can be repeated.",
    )
    parser.add_argument(
        "--unverified",
        action="store_true",
        help="Apply remedies even if the model cannot be run here.",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="Only list the remedies that would be tried."
    )
    add_search_options(parser)
    add_list(
        parser,
        "--check-with",
        metavar="PYTHON",
        type=Path,
        help="An interpreter with another onnxruntime to verify on too; can be repeated.",
    )
    add_reports_folder(parser)
    add_format(parser)
    add_quiet(parser)


def run(options: Namespace) -> int:
    """Rewrite a model so that it wastes less memory, verified and measured.

    It searches the model for causes of waste (findings), tries each change that is known to help (a
    remedy) on a copy, compares outputs, memory and latency with the original's in isolated
    processes, and keeps the best combination. The original is not changed.

    Ctrl-C or --time-limit ends the search and writes the best result so far.

    --out DIR writes fix.json, fix.html, fix.md and fix.png. Exit codes: 0 on success; 1 if
    the search ended before every remedy was tried; 2 on errors.
    """
    started = time.monotonic()
    import msgspec

    from memdiag.api.fix import fix
    from memdiag.cli.output import Destination, print_record
    from memdiag.cli.progress import StatusLine

    destination = Destination(options.out)
    with StatusLine(options.model.name) as line:
        result = fix(
            options.model,
            options.output,
            only=comma_list(",".join(options.only)),
            unverified=options.unverified,
            dry_run=options.dry_run,
            check_with=options.check_with,
            on_progress=line.show,
            **read_search_options(options, started),
        )
    result = msgspec.structs.replace(result, command=command_line())
    is_cut_short = any(remedy.status == "untried" for remedy in result.remedies)

    def print_answer(written: Sequence[Path]) -> int:
        print_record(result, written, format=options.format, quiet=options.quiet)
        return FINDINGS if is_cut_short else CLEAN

    return destination.write_and_print(result, print_answer)

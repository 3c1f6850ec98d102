"""What ``memdiag tune`` and ``memdiag optimize`` share: options, and how the result is shown."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memdiag.cli import CLEAN, ERROR, FINDINGS
from memdiag.cli.options import (
    add_format,
    add_list,
    add_load_from,
    add_picture,
    add_quiet,
    add_reports_folder,
    add_search_options,
    comma_list,
    command_line,
    read_search_options,
    sizes_by_name,
    whole_number,
)

if TYPE_CHECKING:
    from memdiag.records.tuning import Tuning


def add_tuning_options(parser: ArgumentParser, further_names: str = "") -> None:
    """Add the options of a search for the options of a session.

    `further_names` is a sentence on what else can be named to be tried.
    """
    parser.add_argument(
        "--budget",
        metavar="FIGURE=SIZE,…",
        help="Limits of memory above the baseline (peak, steady or anonymous), e.g."
        " peak=1.2GB,steady=800MB.",
    )
    add_list(
        parser,
        "--only",
        metavar="NAME",
        help="Try only these options, separated by commas (named as in the table of"
        f" options); can be repeated.{further_names}",
    )
    parser.add_argument(
        "--sessions",
        metavar="N",
        type=whole_number(1),
        default=1,
        help="Number of sessions of the model in one process.",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=whole_number(1),
        default=1,
        help="Number of processes with the model. The search is for the least memory of all"
        " together, and --budget limits the sum.",
    )
    add_load_from(parser)
    parser.add_argument(
        "--telemetry",
        action="store_true",
        help="Measure with onnxruntime's telemetry on, which is its default since 1.29, and try"
        " telemetry-off as an option.",
    )
    add_search_options(parser)
    add_picture(parser)
    parser.add_argument(
        "--all", action="store_true", help="Print every combination, not only the Pareto front."
    )
    add_reports_folder(parser)
    add_format(parser)
    add_quiet(parser)


def run_tuning(
    options: Namespace, search: Callable[..., Tuning], further: Mapping[str, Any] | None = None
) -> int:
    """Call `search` with the options of `add_tuning_options`, show the result, and return the code.

    Args:
        options: the options of the command.
        search: `memdiag.tune` or `memdiag.optimize`.
        further: other arguments for it.
    """
    started = time.monotonic()
    import msgspec

    from memdiag.cli.output import Destination, picture_kind, print_record, save_bytes
    from memdiag.cli.progress import StatusLine
    from memdiag.errors import ReportError
    from memdiag.paths import MODEL_SUFFIXES
    from memdiag.records.files import require_writable
    from memdiag.tuning.points import BUDGETS

    budget = sizes_by_name("--budget", options.budget, BUDGETS)
    destination = Destination(options.out)
    if options.picture is not None:
        require_writable(options.picture)
        if options.picture.suffix.lower() in MODEL_SUFFIXES:
            raise ReportError(
                f"{options.picture}: a picture does not replace a model. Choose a .png file."
            )
    with StatusLine(options.model.name) as line:
        result = search(
            options.model,
            budget=budget,
            only=comma_list(",".join(options.only)),
            sessions=options.sessions,
            processes=options.processes,
            load_from=options.load_from,
            telemetry=options.telemetry,
            on_progress=line.show,
            **read_search_options(options, started),
            **(further or {}),
        )
    result = msgspec.structs.replace(result, command=command_line())
    fits = result.chosen_point is not None and result.chosen_point.fits

    def print_answer(written: Sequence[Path]) -> int:
        print_record(result, written, format=options.format, quiet=options.quiet, every=options.all)
        if result.write_problem:
            return ERROR
        is_answer = fits if budget else result.is_conclusive
        return CLEAN if is_answer else FINDINGS

    code = destination.write_and_print(result, print_answer)
    # Last: if the picture cannot be written, the answer has been printed.
    if options.picture is not None:
        from memdiag.reports.tuning import REPORT

        save_bytes(REPORT.render(result, picture_kind(options.picture)), options.picture)
    return code

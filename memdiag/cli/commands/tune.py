"""``memdiag tune``: find the options with which a model fits a budget."""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from memdiag.cli import CLEAN, FINDINGS
from memdiag.cli.options import (
    add_format,
    add_list,
    add_load_from,
    add_model,
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

ARGUMENTS = "MODEL"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser)
    parser.add_argument(
        "--budget",
        metavar="FIGURE=SIZE,…",
        help="Limits of figures (peak, steady, anonymous), e.g. peak=1.2GB,steady=800MB.",
    )
    add_list(parser, "--only", metavar="NAME", help="Try only these options; can be repeated.")
    parser.add_argument(
        "--rewrite", action="store_true", help="Fix the model first, and tune the result."
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="With --rewrite, write the fixed model to this file (default: NAME.fixed.onnx).",
    )
    parser.add_argument(
        "--sessions",
        metavar="N",
        type=whole_number(1),
        default=1,
        help="Number of sessions of the model in one process.",
    )
    add_load_from(parser)
    parser.add_argument(
        "--telemetry",
        action="store_true",
        help="Measure with onnxruntime's telemetry on, as it is by default since 1.29, and with"
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


def run(options: Namespace) -> int:
    """Find the session options and environment with which a model uses the least memory.

    Measures the memory of every option, compares the latency of options that save memory with
    the defaults, and combines those that help. Ctrl-C or --time-limit ends the search with the best
    result so far. --out DIR writes tune.json, tune.html, tune.md and
    tune.png. Exit codes: 0; 1 if a budget was given and no combination fits it, or if the search
    ended before any option was compared; 2 on errors.
    """
    started = time.monotonic()
    import msgspec

    from memdiag.api.tune import tune
    from memdiag.cli.output import Destination, picture_kind, print_record, save_bytes
    from memdiag.cli.progress import StatusLine
    from memdiag.records.files import require_writable
    from memdiag.reports.tuning import is_conclusive
    from memdiag.tuning.points import BUDGETS

    budget = sizes_by_name("--budget", options.budget, BUDGETS)
    destination = Destination(options.out, plotly=options.plotly)
    if options.picture is not None:
        require_writable(options.picture)
    with StatusLine(options.model.name) as line:
        result = tune(
            options.model,
            budget=budget,
            only=comma_list(",".join(options.only)),
            rewrite=options.rewrite,
            output=options.output,
            sessions=options.sessions,
            load_from=options.load_from,
            telemetry=options.telemetry,
            on_progress=line.show,
            **read_search_options(options, started),
        )
    result = msgspec.structs.replace(result, command=command_line())
    fits = result.chosen_point is not None and result.chosen_point.fits

    def print_answer(written: Sequence[Path]) -> int:
        print_record(result, written, format=options.format, quiet=options.quiet, every=options.all)
        is_answer = fits if budget else is_conclusive(result)
        return CLEAN if is_answer else FINDINGS

    code = destination.write_and_print(result, print_answer)
    # Last: if the picture cannot be written, the answer has been printed.
    if options.picture is not None:
        from memdiag.reports.tuning import REPORT

        save_bytes(REPORT.render(result, picture_kind(options.picture)), options.picture)
    return code

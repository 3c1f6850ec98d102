"""``memdiag fix``: make a model take less memory, verified and measured."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from memdiag.api.options import FixOptions
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from memdiag.cli.options import (
    add_detail,
    add_format,
    add_list,
    add_model,
    add_option,
    add_options,
    add_reports_folder,
    comma_separated_parts,
    command_line_words,
    read_options,
    read_sizes,
    remaining_time_s,
    sizes_by_name,
)
from memdiag.defaults import DEFAULT_MAX_SLOWDOWN, DEFAULT_SIZES

ARGUMENTS = "MODEL"


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="Write the new model to this file (default: NAME.fixed.onnx).",
    )
    add_list(
        parser,
        "--only",
        metavar="NAME",
        help="Try only rewrites (changes of the model), only options (of the session and the"
        " environment), or what these names say: rewrites, optimizers, options, or rules whose"
        " findings are to be fixed; separated by commas; can be repeated.",
    )
    add_option(parser, "time_limit_s", end=", with the best result so far")
    parser.add_argument(
        "--budget",
        metavar="FIGURE=SIZE,…",
        help="Limits of memory above the baseline (peak, steady or anonymous), e.g."
        " peak=1.2GB,steady=800MB. The fastest combination that fits is chosen.",
    )
    parser.add_argument(
        "--max-slowdown",
        metavar="RATIO",
        type=float,
        default=DEFAULT_MAX_SLOWDOWN,
        help="Largest acceptable latency, relative to the original.",
    )
    parser.add_argument(
        "--max-difference",
        metavar="SHARE",
        type=float,
        help="Accept outputs that differ by this share of their largest value, such as 0.02, and"
        " try what changes values as well: weights of 8 and 4 bits (quantize-int8, quantize-int4),"
        " and denormal values as zero.",
    )
    add_options(parser, FixOptions)
    parser.add_argument(
        "--sizes",
        metavar="N,N…",
        help="Other sizes of free dimensions to run as well, such as lengths of sequences"
        " or batches of images. At each, outputs and latency are compared to the original's, and"
        " memory is measured after runs at all of them (default:"
        f" {','.join(map(str, DEFAULT_SIZES))}, or none with --dim).",
    )
    add_reports_folder(parser)
    add_format(parser)
    add_detail(parser)


def run(options: Namespace) -> int:
    """Make a model take less memory: rewrites, optimizers and session options in one search.

    It tries every change that is known to help: rewrites of the model for the waste that it finds,
    the models of installed optimizers, session options and settings of malloc. Each is run in a
    process of its own. What saves memory, keeps the outputs and is as fast as before is kept,
    together. It prints a program to paste, and writes the new model if one is a part of the result.
    The original is not changed.

    With --provider CUDAExecutionProvider the memory is that on the GPU, and the options are those
    that change it.

    Ctrl-C or --time-limit ends the search with the best result so far.

    --out DIR writes fix.json, fix.html, fix.md and fix.png. Exit codes: 0 on success; 1 if
    nothing fits a budget that was given, or if the search ended before anything was compared;
    2 on errors.
    """
    started = time.monotonic()
    import msgspec

    from memdiag.api.fix import fix
    from memdiag.cli.output import ReportDestination, print_record
    from memdiag.cli.progress import StatusLine
    from memdiag.tuning.points import BUDGET_FIGURES

    # Writing the reports takes up to three times as long as these imports, even on a busy machine.
    reports_s = 3 * (time.monotonic() - started) if options.out else 0.0
    budget = sizes_by_name("--budget", options.budget, BUDGET_FIGURES)
    destination = ReportDestination(options.out)
    with StatusLine(options.model.name) as line:
        result = fix(
            options.model,
            options.output,
            only=comma_separated_parts(",".join(options.only)),
            budget=budget,
            max_slowdown=options.max_slowdown,
            max_difference=options.max_difference,
            sizes=None if options.sizes is None else read_sizes(options.sizes),
            time_limit_s=remaining_time_s(options.time_limit_s, started - reports_s),
            on_progress=line.show,
            **read_options(options, FixOptions),
        )
    result = msgspec.structs.replace(result, command=command_line_words())
    with destination.written_reports(result) as report_paths:
        print_record(result, report_paths, format=options.format, detail=options.detail)
    if result.write_problem:
        return EXIT_ERROR
    fits = result.chosen_point is not None and result.chosen_point.fits
    is_answer = fits if budget else result.is_conclusive
    return EXIT_CLEAN if is_answer else EXIT_FINDINGS

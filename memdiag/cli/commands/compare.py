"""``memdiag compare``: versions, optimizers, models or saved profiles side by side."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import get_args

from memdiag.api.options import CompareOptions, ConfigOptions, InputOptions, ProviderOptions
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR
from memdiag.cli.options import (
    add_detail,
    add_format,
    add_option,
    add_options,
    add_reports_folder,
    comma_separated_parts,
    read_options,
    remaining_time_s,
    reports_folder,
    whole_number_reader,
)
from memdiag.defaults import (
    COMPARISON_REPEATS,
    DEFAULT_LEAK_RUNS,
    DEFAULT_RUNS,
    MIN_LEAK_RUNS,
    BisectedMetric,
)

ARGUMENTS = "FILE..."


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "paths",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="One model, several models, or saved profiles: .json files, or their folders.",
    )
    group = parser.add_argument_group("Compared")
    add_option(group, "onnxruntime")
    group.add_argument(
        "--bisect",
        choices=get_args(BisectedMetric),
        help="Find the version in which this figure changed, among all versions or between"
        " those of --onnxruntime. growth: of memory in use over many runs, as memdiag leak judges"
        " it.",
    )
    group.add_argument(
        "--optimizers", metavar="NAME,…", help="Optimizers to apply to the model, or all."
    )
    group = parser.add_argument_group("Measurement")
    add_options(group, InputOptions)
    add_option(
        group,
        "runs",
        default=None,
        end=f" (default: {DEFAULT_RUNS}, and after the first process of each column only until"
        " memory no longer changes). With --bisect growth, the number of runs by which growth is"
        f" judged, {MIN_LEAK_RUNS} or more (default: up to {DEFAULT_LEAK_RUNS:,} within a minute)",
    )
    group.add_argument(
        "--repeats",
        metavar="N",
        type=whole_number_reader(1),
        help="Number of fresh processes for each column, one after another; medians are used"
        f" (default: 2, and up to {COMPARISON_REPEATS} where these do not show clearly whether"
        " memory or load time differs).",
    )
    add_option(group, "time_limit_s", end=", with what was measured until then")
    add_options(group, ConfigOptions, ProviderOptions)
    group = parser.add_argument_group("Output")
    add_reports_folder(group, "reports/NAME.compare")
    add_format(
        group,
        ("console", "json", "markdown"),
        "What to print: a summary, the JSON record, or a Markdown report.",
    )
    add_detail(group)


def run(options: Namespace) -> int:
    """Compare versions of onnxruntime, optimizers, models or saved profiles side by side.

    All columns run in turn with the same inputs, in fresh processes; outputs are compared with
    those of the first column. Differences beyond the spread between runs are listed with their
    causes.

    Writes comparison.json, .html, .md and .png. Exit codes: 0; 2 if nothing could be measured.
    """
    started = time.monotonic()
    from memdiag.api.compare import compare
    from memdiag.cli.output import ReportDestination, print_record
    from memdiag.cli.progress import StatusLine

    destination = ReportDestination(reports_folder(options, "NAME", options.paths[0].stem))
    values = read_options(options, CompareOptions)
    with StatusLine(options.paths[0].name) as line:
        result = compare(
            *options.paths,
            onnxruntime=options.onnxruntime,
            optimizers=comma_separated_parts(options.optimizers),
            bisect=options.bisect,
            runs=options.runs,
            repeats=options.repeats,
            time_limit_s=remaining_time_s(options.time_limit_s, started),
            on_progress=line.show,
            **values,
        )

    with destination.written_reports(result) as report_paths:
        print_record(result, report_paths, format=options.format, detail=options.detail)
    return EXIT_CLEAN if any(column.measured for column in result.columns) else EXIT_ERROR

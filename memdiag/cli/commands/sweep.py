"""``memdiag sweep``: many models on several releases, in a store that says what is done."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memdiag.api.options import ConfigOptions, SweepOptions
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from memdiag.cli.options import (
    add_detail,
    add_dims,
    add_format,
    add_option,
    add_options,
    each_pair,
    read_comma_pairs,
    read_dim_sizes,
    read_folder,
    read_options,
)

if TYPE_CHECKING:
    from memdiag.api.sweep import SweepOutcome

MACHINE_FORMAT_NAMES = ("github", "junit", "smaller-is-better")

ARGUMENTS = "PATH..."


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="Models, folders, patterns such as 'zoo/**/*.onnx', lists (.toml), or URLs.",
    )
    group = parser.add_argument_group("Jobs: every combination")
    help_end = ", such as a release candidate (default: the installed one)"
    add_option(group, "onnxruntime", end=help_end)
    add_dims(group, ranges=True, lists=True)
    add_options(group, ConfigOptions)
    add_option(group, "runs")
    add_option(group, "retry_failed")
    group = parser.add_argument_group("Machines")
    for name in ("on", "processes", "memory_bytes", "timeout_s"):
        add_option(group, name)
    group = parser.add_argument_group("Answers")
    group.add_argument(
        "--budget",
        metavar="FIGURE=SIZE,…",
        help="Limits for each model, e.g. peak=1.2GB, or steady=2x for twice its weights (of at"
        " least 1 MiB).",
    )
    group.add_argument(
        "--against",
        metavar="DIR",
        type=read_folder,
        help="A store to compare with: exit with 1 if a model needs more memory than there, beyond"
        " the noise. It may be the store of this sweep, with the jobs that it had before.",
    )
    group.add_argument(
        "--place",
        metavar="NxSIZE,…",
        help="Which models fit together on machines with this memory, e.g. 4x8GiB,16GiB.",
    )
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--out",
        metavar="DIR",
        type=read_folder,
        default="sweep",
        help="Write the record and its reports to this folder, which is also the store.",
    )
    add_format(
        group,
        ("console", "json", "markdown", *MACHINE_FORMAT_NAMES),
        "What to print: a summary, the JSON record, a Markdown report, GitHub annotations, JUnit"
        " XML, or figures for github-action-benchmark.",
    )
    add_detail(group, has_more=False)


def run(options: Namespace) -> int:
    """Measure many models under several releases of onnxruntime, sizes and session options.

    Each job is what memdiag profile does, with a malloc that releases freed memory. As many jobs
    run at once as fit into the memory, by their estimated peaks. Results are kept in a store: the
    same command does only what is new, and after an interruption it goes on where it was.

    A session option that is given several times with other values is varied, as are sizes such as
    --dim batch=1,4,16. Writes index.html, report.md and sweep.json. Exit codes: 0; 1 if a budget is
    exceeded, or a model needs more memory than in the store of --against; 2 if nothing could be
    measured, or nothing could be compared with that store.
    """
    from memdiag.api.sweep import sweep_answers
    from memdiag.cli.output import ReportDestination, append_job_summary, print_record
    from memdiag.reports import report_of
    from memdiag.reports.github import sweep_annotations
    from memdiag.reports.sweep.machine_formats import junit_xml, smaller_is_better_json
    from memdiag.sweeps.placement import parse_machines
    from memdiag.sweeps.store import check_version
    from memdiag.units import counted

    if options.against is not None:
        check_version(options.against)
    machines = parse_machines(options.place) if options.place else ()
    destination = ReportDestination(options.out)  # checks the folder before anything is measured
    outcome = _measure_sweep(options)
    if outcome.interrupted:
        raise KeyboardInterrupt(
            f"{options.out}: {counted(len(outcome.new_keys), 'new result')}. The same command"
            " measures the rest."
        )
    renderers = (sweep_annotations, junit_xml, smaller_is_better_json)
    answers = sweep_answers(outcome, against=options.against, machines=machines)

    with destination.written_reports(answers) as report_paths:
        print_record(
            answers,
            report_paths,
            format=options.format,
            detail=options.detail,
            machine_formats=dict(zip(MACHINE_FORMAT_NAMES, renderers, strict=True)),
        )
        if options.format == "github":
            append_job_summary(report_of(answers).render(answers, "markdown").decode())
    if not outcome.completed:
        return EXIT_ERROR
    if answers.exceeded or answers.regressions:
        return EXIT_FINDINGS
    return EXIT_ERROR if answers.compares_nothing else EXIT_CLEAN


def _measure_sweep(options: Namespace) -> SweepOutcome:
    """Measure the jobs that the store does not have, and return the outcome."""
    from memdiag.api.sweep import run_sweep
    from memdiag.cli.progress import SweepLine

    with SweepLine() as line:
        return run_sweep(
            options.paths,
            store=options.out,
            dims=read_dim_sizes(options.dims),
            session_options=_session_option_values(options.session_options),
            budget=read_comma_pairs("--budget", options.budget) if options.budget else None,
            on_progress=line.show,
            **read_options(options, SweepOptions),
        )


def _session_option_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each session option; an option may be repeated.

    Raises:
        UsageError: as in `each_pair`.
    """
    values_by_name: dict[str, list[str]] = {}
    for name, value in each_pair("--session-option", texts):
        values_by_name.setdefault(name, []).append(value)
    return values_by_name

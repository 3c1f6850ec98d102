"""``memdiag sweep``: many models on several releases, in a store that says what is done."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.cli import CLEAN, ERROR, FINDINGS
from memdiag.cli.options import (
    add_dims,
    add_list,
    add_quiet,
    add_runs,
    add_session_option,
    add_switch,
    comma_list,
    comma_pairs,
    read_dim_sizes,
    whole_number,
)
from memdiag.defaults import DEFAULT_TIMEOUT_S
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.api.sweep import SweepOutcome

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
    group.add_argument(
        "--onnxruntime",
        metavar="VERSION,…",
        help="Versions of onnxruntime, e.g. 1.24.4,latest; installed where missing (default: the"
        " installed one).",
    )
    add_list(
        group,
        "--environment",
        metavar="PATH",
        type=Path,
        help="A Python interpreter or environment that has onnxruntime, such as a release"
        " candidate; can be repeated.",
    )
    add_dims(group, ranges=True, lists=True)
    add_session_option(group)
    group.add_argument(
        "--do",
        choices=("profile", "check", "estimate", "leak"),
        default="profile",
        help="What to do with each model.",
    )
    add_runs(group)
    add_switch(
        parser,
        group,
        "--pin",
        default=True,
        help="Make malloc release freed memory, so that figures are reproducible.",
    )
    group.add_argument(
        "--label",
        default="",
        help="A label for the jobs, such as a commit or a date. Jobs with another label are"
        " measured again.",
    )
    group.add_argument(
        "--retry-failed", action="store_true", help="Do jobs again that failed before."
    )
    group = parser.add_argument_group("Machines")
    group.add_argument(
        "--jobs",
        metavar="N",
        type=whole_number(1),
        help="Number of jobs at once, as far as they fit into the memory (default: the CPUs).",
    )
    group.add_argument(
        "--alone",
        action="store_true",
        help="Run one job at a time, so that latencies are comparable.",
    )
    group.add_argument(
        "--memory",
        metavar="SIZE",
        help="Memory that all jobs may take together (default: nine tenths of what is available).",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=DEFAULT_TIMEOUT_S,
        help="Stop a child process after this time.",
    )
    group = parser.add_argument_group("Answers")
    group.add_argument(
        "--budget",
        metavar="FIGURE=SIZE,…",
        help="Limits for each model, e.g. peak=1.2GB, or steady=2x for twice its weights.",
    )
    group = parser.add_argument_group("Output")
    group.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default="sweep",
        help="Write the record and its reports to this folder, which is also the store.",
    )
    add_quiet(group)


def run(options: Namespace) -> int:
    """Measure many models under several releases of onnxruntime, sizes and session options.

    Each job is what memdiag profile does. As many jobs run at once as fit into the memory, by their
    estimated peaks. Results are kept in a store: the same command does only what is new, and after
    an interruption it goes on where it was.

    A session option that is given several times with other values is varied, as are sizes such as
    --dim batch=1,4,16. Exit codes: 0; 1 if a budget is exceeded; 2 if nothing could be measured.
    """
    from memdiag.api.sweep import run_sweep
    from memdiag.cli.progress import SweepLine
    from memdiag.units import parse_size

    if options.alone and options.jobs not in (None, 1):
        raise UsageError(f"--alone runs one job at a time. Leave out --jobs {options.jobs}.")
    with SweepLine() as line:
        outcome = run_sweep(
            options.paths,
            store=options.out,
            onnxruntime=comma_list(options.onnxruntime),
            environments=options.environment,
            dims=read_dim_sizes(options.dim),
            session_options=_option_values(options.session_option),
            action=options.do,
            runs=options.runs,
            pin=options.pin,
            label=options.label,
            budget=comma_pairs("--budget", options.budget) if options.budget else None,
            retry_failed=options.retry_failed,
            processes=1 if options.alone else options.jobs,
            memory_bytes=parse_size(options.memory) if options.memory else None,
            timeout_s=options.timeout,
            on_progress=line.show,
        )
    _print(outcome)
    if outcome.interrupted:
        raise KeyboardInterrupt("The same command goes on where it was.")
    if not outcome.completed:
        return ERROR
    return FINDINGS if outcome.exceeded else CLEAN


def _option_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of each session option; an option may be repeated.

    Raises:
        UsageError: a text is not ``KEY=VALUE``.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--session-option: {text!r} is not NAME=VALUE.")
        found.setdefault(name, []).append(value)
    return found


def _print(outcome: SweepOutcome) -> None:
    from memdiag.reports.text import plain

    print(
        f"{len(outcome.keys):,} jobs: {outcome.completed:,} completed, {outcome.failed:,} failed,"
        f" {len(outcome.new_keys):,} new."
    )
    for exceeded in outcome.exceeded:
        job = exceeded.job
        print(plain(f"{job.model} · {job.onnxruntime}: {'; '.join(exceeded.sentences)}"))
    for note in outcome.notes:
        print(plain(note))

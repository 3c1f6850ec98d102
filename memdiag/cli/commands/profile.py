"""``memdiag profile``: run a model in a child process and show its memory, phase by phase."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memdiag.api.options import (
    GenerationOptions,
    GraphOptions,
    InputOptions,
    LimitOptions,
    MeasuringOptions,
    ProcessOptions,
    ProfileOptions,
    SessionAndRunOptions,
)
from memdiag.cli import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS
from memdiag.cli.options import (
    add_detail,
    add_format,
    add_model,
    add_options,
    add_reports_folder,
    command_line_words,
    read_comma_pairs,
    read_options,
    reports_folder,
)
from memdiag.detail import Detail
from memdiag.errors import UsageError

if TYPE_CHECKING:
    from memdiag.api.budget import BudgetResult
    from memdiag.api.profile_config import ProfileConfig
    from memdiag.records.budget import Budget
    from memdiag.records.generation import GenaiConfig
    from memdiag.records.profile import Profile

ARGUMENTS = "MODEL"

_OPTION_GROUPS = {
    "Measurement": (MeasuringOptions, InputOptions),
    "Generation": (GenerationOptions,),
    "Session": (SessionAndRunOptions, GraphOptions, ProcessOptions),
    "Limits": (LimitOptions,),
}


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser, genai=True)

    for title, groups in _OPTION_GROUPS.items():
        add_options(parser.add_argument_group(title), *groups)

    group = parser.add_argument_group("Budget")
    group.add_argument(
        "--budget", metavar="FIGURE=SIZE,…", help="Limits of figures, e.g. peak=1.2GB,copies=1."
    )
    group.add_argument(
        "--baseline", metavar="FILE", type=Path, help="Baseline file to compare with."
    )
    group.add_argument(
        "--update-baseline",
        action="store_true",
        help="Write the baseline file instead of comparing with it.",
    )

    group = parser.add_argument_group("Output")
    add_reports_folder(group, "reports/MODEL")
    add_format(
        group,
        ("console", "json", "markdown", "github"),
        "What to print: a summary, the JSON record, a Markdown report, or GitHub annotations"
        " and a job summary.",
    )
    add_detail(group)


def run(options: Namespace) -> int:
    """Run a model in a child process and show when it allocates memory, and how much.

    Writes profile.json, report.html, report.md and timeline.png. Exit codes: 0; 1 if a budget or
    a baseline is exceeded; 2 if the model could not be loaded or run to the end (the profile up to
    that point is saved).

    With a budget or a baseline, malloc releases freed memory, so that figures are reproducible.

    The rules of memdiag check are compared with the measurement; select, ignore and min-bytes in
    [tool.memdiag] of pyproject.toml choose among them.
    """
    from memdiag.api.budget import refuse_other_configuration
    from memdiag.cli.output import ProfileDestinations
    from memdiag.model.genai_config import named_model

    options.model, genai = named_model(options.model)
    # The decoders of all models of onnxruntime-genai have the same file name.
    name = options.model.stem if genai is None else options.model.parent.resolve().name
    destinations = ProfileDestinations(reports_folder(options, "MODEL", name))
    budget = _chosen_budget(options)
    config = _chosen_profile_config(options, genai, pinned=budget is not None)
    save_early = destinations.early_destination.save_early
    result, interrupted = _measure_profile(options, config, budget, save_early)
    profile = result.profile
    destination = destinations.destination_of(profile)
    if interrupted and profile.outcome.completed:
        # The profile is measured but not fully examined. Whoever interrupts does not want to wait
        # for reports.
        (record_path,) = destination.write(profile, ("json",))
        raise KeyboardInterrupt(f"What was measured and found until then is at {record_path}.")
    with destination.written_reports(profile) as report_paths:
        status = None
        if result.update is not None:
            refuse_other_configuration(result.update.path, str(options.model), profile)
            status = result.update.write()
        return _print_profile_result(
            result, status, report_paths, format=options.format, detail=options.detail
        )


def _chosen_budget(options: Namespace) -> Budget | None:
    """Return the budget to compare with: of ``--budget``, or one without limits for a baseline.

    Raises:
        UsageError: as in `read_budget`, or the baseline file is not named or does not exist.
    """
    from memdiag.records.budget import Budget

    budget, baseline = read_budget(options.budget), options.baseline
    if baseline is None:
        if options.update_baseline:
            raise UsageError("--update-baseline needs a file. Add --baseline FILE.")
        return budget
    if not options.update_baseline and not baseline.exists():
        raise UsageError(f"{baseline}: no such file. Create it with --update-baseline.")
    return budget or Budget()


def _measure_profile(
    options: Namespace,
    config: ProfileConfig,
    budget: Budget | None,
    on_near_limit: Callable[[Profile], None],
) -> tuple[BudgetResult, bool]:
    """Profile the model, and compare it with `budget` and the baseline if `budget` is not None.

    `on_near_limit` is called as by `profile_model`. Returns the result, and whether the user
    interrupted the measurement.
    """
    from memdiag.api.budget import BudgetResult, check_budget
    from memdiag.api.profile import ProfileInterrupted, profile_model
    from memdiag.cli.progress import MeasurementLine

    model = options.model

    def measure(xray: bool) -> Profile:
        run_config = config if xray else config.figures_only()
        return profile_model(model, run_config, on_progress=line.show, on_near_limit=on_near_limit)

    with MeasurementLine(model.name, config.inputs.runs or 0) as line:
        try:
            if budget is None:
                return BudgetResult(profile=measure(True)), False
            result = check_budget(
                measure,
                budget,
                model=str(model),
                baseline=options.baseline,
                update=options.update_baseline,
            )
        except ProfileInterrupted as interrupt:
            return BudgetResult(profile=interrupt.profile), True
    return result, False


def read_budget(text: str | None) -> Budget | None:
    """Return the budget given to ``--budget``; None without one.

    Raises:
        UsageError: as in `read_pairs`, a figure or size is unknown, or there is no figure.
    """
    from memdiag.budgets.parsing import parse_budget

    if text is None:
        return None
    budget = parse_budget(read_comma_pairs("--budget", text), where="--budget")
    if not budget.limits:
        raise UsageError("--budget: no figure was given. Write it like peak=1.2GB,steady=800MB.")
    return budget


def _chosen_profile_config(
    options: Namespace, genai: GenaiConfig | None = None, *, pinned: bool
) -> ProfileConfig:
    from memdiag.api.budget import with_pinned_malloc
    from memdiag.api.profile_config import profile_config
    from memdiag.api.project_settings import read_project_settings

    values = read_options(options, ProfileOptions)
    if pinned:
        values["environment"] = with_pinned_malloc(values["environment"])
    return profile_config(
        values,
        genai=genai,
        rules=read_project_settings().selection(),
        command=command_line_words(),
    )


def _print_profile_result(
    result: BudgetResult,
    baseline_status: str | None,
    report_paths: Sequence[Path],
    *,
    format: str,
    detail: Detail,
) -> int:
    """Print a profile in `format`, and return the exit code.

    If the run did not complete, a sentence on standard error says how it ended.

    Raises:
        ReportError: the job summary cannot be written.
    """
    from memdiag.cli.output import print_record_summary
    from memdiag.records.codec import encode
    from memdiag.reports.text import plain

    profile, judgement = result.profile, result.profile.judgement
    completed = profile.outcome.completed
    if format == "json":
        sys.stdout.buffer.write(encode(profile))
    elif format == "console":
        if completed or detail is not Detail.ANSWER:
            print_record_summary(profile, report_paths, detail=detail)
    else:
        _print_report(profile, format)
    if not completed:
        _print_outcome(profile, report_paths)
        return EXIT_ERROR
    if judgement is None:
        return EXIT_CLEAN
    if format in ("console", "json"):
        _print_judgement(profile, baseline_status, to_stderr=format == "json", detail=detail)
    if result.incomparable and not judgement.budget.limits:
        # There was no other limit to compare with, so nothing has passed.
        message = f"memdiag: {profile.model.path}: {result.incomparable}."
        print(plain(message), file=sys.stderr)
        return EXIT_ERROR
    return EXIT_CLEAN if judgement.is_met else EXIT_FINDINGS


def _print_report(profile: Profile, format: str) -> None:
    from memdiag.cli.output import append_job_summary
    from memdiag.reports import github

    summary = github.job_summary_markdown(profile, profile.judgement)
    if format == "github":
        sys.stdout.write(github.profile_annotations(profile, profile.judgement))
        append_job_summary(summary)
    else:
        sys.stdout.buffer.write(summary.encode())


def _print_outcome(profile: Profile, report_paths: Sequence[Path]) -> None:
    from memdiag.reports.profile import REPORT
    from memdiag.reports.profile.headline import profile_headline
    from memdiag.reports.text import plain

    sentence = profile_headline(profile).first
    path = plain(profile.model.path)
    print(f"memdiag: {path}: {sentence[0].lower()}{sentence[1:]}", file=sys.stderr)
    for file in report_paths:
        if file.name == REPORT.files["json"]:
            print(f"The profile up to then: {plain(str(file))}", file=sys.stderr)


def _print_judgement(
    profile: Profile, baseline_status: str | None, *, to_stderr: bool, detail: Detail
) -> None:
    from memdiag.reports import budget
    from memdiag.reports.console import no_workflow_command
    from memdiag.reports.text import plain

    assert profile.judgement is not None
    stream = sys.stderr if to_stderr else sys.stdout
    has_limits = bool(budget.judgement_verdict(profile.judgement))
    lines = (
        list(budget.judgement_lines(profile.judgement)[: 1 if detail is Detail.ANSWER else None])
        if has_limits
        else []
    )
    if baseline_status:
        lines.append(budget.baseline_status_line(profile.judgement, baseline_status))
    if detail is not Detail.ANSWER and not to_stderr:
        print(file=stream)
    for text in lines:
        # An explanation is indented below its sentence.
        indent = " " * (len(text) - len(text.lstrip(" ")))
        print(no_workflow_command(indent + plain(text)), file=stream)

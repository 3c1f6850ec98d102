"""What ``memdiag profile`` prints: a summary, a record or a report, and the judgement."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from memdiag.api.budget import Held
from memdiag.cli.exit_codes import CLEAN, ERROR, FINDINGS
from memdiag.cli.output import show
from memdiag.errors import ReportError
from memdiag.records.codec import encode
from memdiag.records.profile import Profile
from memdiag.reports.terminal import no_command
from memdiag.reports.views import headline
from memdiag.reports.views import judgement as judgement_view
from memdiag.reports.views.text import plain

_JOB_SUMMARY = "GITHUB_STEP_SUMMARY"
"""GitHub Actions name the file that a step's summary is appended to in this variable."""


def print_result(held: Held, written: Sequence[Path], *, format: str, quiet: bool) -> int:
    """Print what became of a profile in `format`, write its baseline, and return the exit code.

    How a run ended that did not complete is said on standard error as well, in one sentence.

    Raises:
        ReportError: the job summary, or the baseline, cannot be written.
    """
    profile, judgement = held.profile, held.judgement
    baseline = held.update_baseline() if held.update_baseline else None
    completed = profile.outcome.status == "completed"
    if format == "json":
        sys.stdout.buffer.write(encode(profile))
    elif format == "console":
        if completed or not quiet:
            show(profile, written, quiet=quiet)
    else:
        _print_report(held, format)
    if not completed:
        _print_ending(profile, written)
        return ERROR
    if judgement is None:
        return CLEAN
    if format in ("console", "json"):
        _print_judgement(held, baseline, to_stderr=format == "json", quiet=quiet)
    if held.incomparable and not judgement.budget.limits:
        # There was nothing else to hold it to: that is no pass.
        said = f"memdiag: {profile.model.path}: {held.incomparable}."
        print(plain(said), file=sys.stderr)
        return ERROR
    return CLEAN if judgement.holds else FINDINGS


def _print_report(held: Held, format: str) -> None:
    from memdiag.reports import github

    summary = github.summary(held.profile, held.judgement)
    if format == "github":
        sys.stdout.write(github.annotations(held.profile, held.judgement))
        _append_summary(summary)
    else:
        sys.stdout.buffer.write(summary.encode())


def _append_summary(text: str) -> None:
    name = os.environ.get(_JOB_SUMMARY)
    if not name:
        return
    try:
        with open(name, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ReportError(f"{name}: it cannot be appended to ({error.strerror}).") from error


def _print_ending(profile: Profile, written: Sequence[Path]) -> None:
    ending = headline.build(profile).first
    path = plain(profile.model.path)
    print(f"memdiag: {path}: {ending[0].lower()}{ending[1:]}", file=sys.stderr)
    for file in written:
        if file.suffix == ".json":
            print(f"The profile up to then: {plain(str(file))}", file=sys.stderr)


def _print_judgement(held: Held, baseline: str | None, *, to_stderr: bool, quiet: bool) -> None:
    assert held.judgement is not None
    stream = sys.stderr if to_stderr else sys.stdout
    lines = judgement_view.lines(held.judgement)[: 1 if quiet else None]
    settled = [f"baseline {baseline}"] if baseline else []
    if not quiet and not to_stderr:
        print(file=stream)
    for text in (*lines, *settled):
        # An explanation is indented below its sentence.
        indent = " " * (len(text) - len(text.lstrip(" ")))
        print(no_command(indent + plain(text)), file=stream)

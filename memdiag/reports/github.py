"""Output for GitHub Actions: annotations of a run, and a job summary in Markdown.

Annotations are workflow commands ("Workflow commands for GitHub Actions", GitHub's documentation):
``::error file=…,title=…::message``, with line ends and percent signs encoded as in URLs.
"""

from collections.abc import Iterator

from memdiag.records.budget import Judgement
from memdiag.records.growth import Growth
from memdiag.records.profile import Profile
from memdiag.records.sweep import Sweep
from memdiag.reports import budget, profile
from memdiag.reports.findings import finding_text
from memdiag.reports.growth.headline import growth_headline
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.sweep.sentences import (
    failed_jobs_by_sentence,
    step_place,
    step_words,
    sweep_headline,
)
from memdiag.reports.text import plain, plain_lines
from memdiag.units import format_size, some_of

MAX_ANNOTATIONS = 10
"""GitHub prints this many annotations of a kind for each step."""


def profile_annotations(record: Profile, judgement: Judgement | None = None) -> str:
    """Return workflow commands: errors for a breach or a failed run, warnings for findings."""
    return "".join(f"{line}\n" for line in _profile_commands(record, judgement))


def growth_annotations(record: Growth) -> str:
    """Return workflow commands: an error for a leak, kept values or an early end, or a notice."""
    answer = growth_headline(record)
    file = record.subject if record.kind == "model" else ""
    lines = [
        _workflow_command(
            "error" if record.is_leak_or_kept else "notice",
            file,
            "memory growth",
            "\n".join(filter(None, (answer.line, answer.advice))),
        )
    ]
    if answer.ended:
        lines.append(_workflow_command("error", file, "memory growth ended early", answer.ended))
    return "".join(f"{line}\n" for line in lines)


def sweep_annotations(record: Sweep) -> str:
    """Return workflow commands: errors, warnings for failures, and the answer.

    Errors are exceeded budgets and regressions. Errors and warnings are about the jobs that the
    sweep names, the answer is about the whole store.
    """
    lines = []
    for series, point, exceeded in record.over_budget[:MAX_ANNOTATIONS]:
        name = " · ".join(filter(None, (series.model, series.dims, series.options)))
        message = f"{name} · onnxruntime {point.onnxruntime}: {'; '.join(exceeded)}"
        lines.append(_workflow_command("error", series.address, "budget exceeded", message))
    # A regression is a series with its step.
    regressions = sorted(record.regressions, key=lambda regression: -regression[1].bytes)
    for series, step in regressions[:MAX_ANNOTATIONS]:
        sizes = f"{format_size(step.before_bytes)} → {format_size(step.after_bytes)}"
        message = f"{step_words(series, step)} ({sizes}), {step_place(series, step)}"
        lines.append(_workflow_command("error", series.address, "memory regression", message))
    for sentence, jobs in failed_jobs_by_sentence(record.requested_jobs)[:MAX_ANNOTATIONS]:
        names = some_of(list(dict.fromkeys(plain(series.model) for series, _ in jobs)))
        lines.append(_workflow_command("warning", "", "not completed", f"{names}: {sentence}"))
    answer = sweep_headline(record)
    lines.append(
        _workflow_command("notice", "", "memory sweep", "\n".join((answer.first, *answer.lines)))
    )
    return "".join(f"{line}\n" for line in lines)


def job_summary_markdown(record: Profile, judgement: Judgement | None = None) -> str:
    """Return the report in Markdown, with the judgement first, for a job summary or a comment."""
    report = profile.REPORT.render(record, "markdown").decode()
    return report if judgement is None else f"{budget.judgement_markdown(judgement)}\n\n{report}"


def _profile_commands(record: Profile, judgement: Judgement | None) -> Iterator[str]:
    file = record.model.path
    if not record.outcome.completed:
        yield _workflow_command("error", file, "memory profile", profile_headline(record).first)
    if judgement is not None:
        kind = "notice" if judgement.is_met else "error"
        result_line, *further_lines = budget.judgement_lines(judgement)
        title, _, answer = result_line.partition(": ")
        yield _workflow_command(kind, file, title, "\n".join((answer, *further_lines)))
    confirmed = [finding for finding in record.findings if finding.evidence != "refuted"]
    for finding in confirmed[:MAX_ANNOTATIONS]:
        text = finding_text(finding)
        sentences = filter(None, (text.message, text.detail, text.path, text.facts))
        yield _workflow_command("warning", file, text.name, "\n".join(sentences))


def _workflow_command(kind: str, file: str, title: str, message: str) -> str:
    names = {"file": file, "title": title}
    properties = ",".join(
        f"{name}={_command_property(text)}" for name, text in names.items() if text
    )
    return f"::{kind} {properties}::{_command_data(message)}"


def _command_data(text: str) -> str:
    text = "\n".join(plain_lines(text))
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _command_property(text: str) -> str:
    return _command_data(text).replace(":", "%3A").replace(",", "%2C")

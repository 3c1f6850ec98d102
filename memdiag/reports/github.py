"""What GitHub Actions read: annotations of a run, and a job summary in Markdown.

Annotations are workflow commands ("Workflow commands for GitHub Actions", GitHub's documentation):
``::error file=…,title=…::message``, with line ends and percent signs written as URLs do.
"""

from collections.abc import Iterator

from memdiag.records.budget import Judgement
from memdiag.records.profile import Profile
from memdiag.reports import markdown
from memdiag.reports.markdown_text import code, escape, table
from memdiag.reports.views import findings, headline
from memdiag.reports.views import judgement as judgement_view
from memdiag.reports.views.text import plain, plain_lines

_MOST_FINDINGS = 10
"""The service shows so many annotations of a kind for a step."""


def annotations(profile: Profile, judgement: Judgement | None = None) -> str:
    """Return workflow commands: an error for a breach or a failed run, warnings for findings."""
    return "".join(f"{line}\n" for line in _annotations(profile, judgement))


def summary(profile: Profile, judgement: Judgement | None = None) -> str:
    """Return the report in Markdown, the judgement first: a job summary, or a comment."""
    report = markdown.render(profile).decode()
    return report if judgement is None else f"{_judged(judgement)}\n\n{report}"


def _annotations(profile: Profile, judgement: Judgement | None) -> Iterator[str]:
    file = profile.model.path
    if profile.outcome.status != "completed":
        yield _command("error", file, "memory profile", headline.build(profile).first)
    if judgement is not None:
        kind = "notice" if judgement.holds else "error"
        first, *rest = judgement_view.lines(judgement)
        title, _, said = first.partition(": ")
        yield _command(kind, file, title, "\n".join((said, *rest)))
    standing = [one for one in profile.findings if one.evidence != "refuted"]
    for finding in standing[:_MOST_FINDINGS]:
        one = findings.build(finding)
        said = "\n".join(part for part in (one.message, one.detail, one.facts) if part)
        yield _command("warning", file, one.name, said)


def _judged(judgement: Judgement) -> str:
    """Return the judgement as Markdown: the answer, a table of all limits, the reasons."""
    rows = [
        (
            f"**{row.figure}**" if row.is_breach else row.figure,
            row.measured,
            row.budget,
            row.baseline,
            row.over,
        )
        for row in judgement_view.rows(judgement)
    ]
    title = "Memory budget" if judgement.budget.limits else "Memory baseline"
    said = judgement_view.verdict(judgement)
    blocks = [
        f"## {title} of {code(plain(judgement.model))}",
        f"**{escape(said[:1].upper() + said[1:])}.**" if said else "",
        table(("figure", "measured", "budget", "baseline", "over"), rows, left=(0,))
        if rows
        else "",
        "\n".join(f"- {escape(line)}" for line in judgement_view.explanation(judgement)),
    ]
    return "\n\n".join(block for block in blocks if block)


def _command(kind: str, file: str, title: str, message: str) -> str:
    properties = f"file={_property(file)},title={_property(title)}"
    return f"::{kind} {properties}::{_data(message)}"


def _data(text: str) -> str:
    text = "\n".join(plain_lines(text))
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

"""The report for a pull request or a bug report, in GitHub's Markdown."""

from memdiag.records.profile import Profile
from memdiag.reports.checks.markdown import section as findings_section
from memdiag.reports.markdown_text import code, escape, table
from memdiag.reports.views import (
    attribution,
    copies_by_phase,
    facts,
    findings,
    glance,
    headline,
    phase_table,
    runs,
    span_table,
)

FORMAT = "markdown"
FILE_NAME = "report.md"

_MOST_WEIGHTS = 20


def render(profile: Profile) -> bytes:
    """Return the headline, the phases, the spans that mattered, and how and where it was run."""
    answer = headline.build(profile)
    blocks = [
        f"## Memory profile of {code(answer.model)}",
        f"**{escape(answer.first)}** {escape(answer.second)}",
        escape(answer.facts),
        _glance(profile),
        *_phases(profile),
        *_owners(profile),
        *_findings(profile),
        *_spans(profile),
        *_sentences(profile),
        _facts("Model", facts.model(profile)),
        _facts("Session", facts.session(profile)),
        _inputs(profile),
        _facts("Environment", facts.environment(profile)),
        _facts("How it was watched", facts.sampling(profile)),
    ]
    return ("\n\n".join(block for block in blocks if block) + "\n").encode()


def _glance(profile: Profile) -> str:
    shown = glance.build(profile)
    steps = (
        escape(step.text) + (f" {code(step.command)}" if step.command else "")
        for step in shown.steps
    )
    rows = (("Result", escape(shown.wrong)), ("Why", escape(shown.why)))
    return "\n".join(
        [
            *(f"- **{label}:** {text}" for label, text in rows if text),
            *(f"- **What to do:** {text}" for text in steps),
        ]
    )


def _owners(profile: Profile) -> list[str]:
    if profile.attribution is None:
        return []
    trimmed = profile.allocator_retained_bytes or 0
    owned = attribution.build(profile.attribution, trimmed_bytes=trimmed)
    phases = tuple(row.sentence for row in copies_by_phase.build(profile))
    return owners_section(owned, *phases, heading="owner (steady)")


def owners_section(owned: attribution.Owned, *more: str, heading: str = "owner") -> list[str]:
    """Return the owners, the weights with several copies, and remarks, with `more` of these."""
    rows: list[tuple[str, ...]] = [
        (
            code(weight.titled(60), in_table=True),
            escape(row.label),
            f"{row.count:,}",
            row.resident if row.resident_bytes < row.size_bytes else row.size,
            escape(row.backing + (", freed" if row.is_freed else "")),
            escape(row.made_by),
        )
        for weight in owned.repeated[:_MOST_WEIGHTS]
        for row in weight.copies
    ]
    columns: tuple[str, ...] = ("weight", "copy", "copies", "resident", "backing", "made by")
    if not any(row[-1] for row in rows):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    owners = [(row.label, row.size, row.percent, escape(row.sentence)) for row in owned.owners]
    lines = [*owned.remarks, *more]
    return [
        "### Who owns it",
        table((heading, "size", "of all", "what it is"), owners, left=(0, 3)),
        escape(f"{owned.share}."),
        table(columns, rows, left=tuple({0, 1, 4, 5} & {*range(len(columns))})) if rows else "",
        escape(attribution.rest(owned.repeated[_MOST_WEIGHTS:])),
        escape(f"{owned.single}.") if owned.single else "",
        "" if owned.weights else escape(f"{owned.first[:1].upper()}{owned.first[1:]}."),
        "\n".join(f"- {escape(line)}" for line in lines),
    ]


def _findings(profile: Profile) -> list[str]:
    if not profile.findings:
        return []
    answer = f"**{escape(findings.profile_summary(profile))}.**"
    return ["### Findings", answer, *findings_section(profile.findings)]


def _phases(profile: Profile) -> list[str]:
    view = phase_table.build(profile)
    if not view.rows:
        return []
    rows = [
        (
            "&emsp;" * row.level
            + (f"**{row.phase}**" if row.is_peak and row.label == row.phase else row.label),
            row.time,
            row.start,
            f"**{row.peak}**" if row.is_peak else row.peak,
            row.end,
            row.kept,
            code(row.responsible, in_table=True),
        )
        for row in view.rows
    ]
    headings = ("phase", "time", "at start", view.peak_heading, "at end", "kept", "grown by")
    return [table(headings, rows, left=(0, 6)), escape(view.caption)]


def _spans(profile: Profile) -> list[str]:
    rows = [
        f"- {code(row.title)} ({row.phase}): {row.sentence}, in {row.duration}"
        for row in span_table.notable(profile, limit=12)
    ]
    return ["### What moved memory", "\n".join(rows)] if rows else []


def _sentences(profile: Profile) -> list[str]:
    sentence = runs.build(profile).sentence
    lines = [f"Runs: {escape(sentence)}."] if sentence else []
    notes = [f"- {escape(note)}" for note in facts.notes(profile)]
    return [*lines, *(["### Notes", "\n".join(notes)] if notes else [])]


def _inputs(profile: Profile) -> str:
    rows = [
        (
            code(row.name, in_table=True),
            *map(escape, (row.dtype, row.shape, row.source, row.note)),
        )
        for row in facts.inputs(profile)
    ]
    if not rows:
        return ""
    rows_shown = table(("input", "dtype", "shape", "source", "chosen"), rows, left=range(5))
    return _folded("Inputs", rows_shown)


def _facts(title: str, rows: facts.Facts) -> str:
    cells = [(escape(label), code(value, in_table=True)) for label, value in rows]
    return _folded(title, table(("", ""), cells, left=(0, 1)))


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"

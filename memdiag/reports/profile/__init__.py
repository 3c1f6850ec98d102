"""The report of a profile: the answer, why and what to do, the tables, then the details."""

from __future__ import annotations

import shlex

from memdiag.detail import Detail
from memdiag.records.profile import Profile
from memdiag.reports.blocks import (
    NOT_ON_PAGES,
    PAGE_ONLY,
    Block,
    Chart,
    Code,
    Document,
    Facts,
    Figures,
    FindingList,
    Points,
    Sentence,
    notes_block,
)
from memdiag.reports.budget import verdict
from memdiag.reports.estimate.tables import MAX_LIVE
from memdiag.reports.findings import finding_text, profile_summary
from memdiag.reports.phase_table import OPTIONAL_COLUMNS
from memdiag.reports.profile import picture
from memdiag.reports.profile.advice import profile_advice
from memdiag.reports.profile.charts import page_xrays, timeline_data
from memdiag.reports.profile.facts import (
    environment_facts,
    input_table,
    model_facts,
    sampling_facts,
    session_facts,
)
from memdiag.reports.profile.generation import generation_sentences, generation_table
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.profile.phases import (
    copies_by_phase,
    notable_spans,
    phase_table,
    runs_summary,
    span_rows,
    span_table,
)
from memdiag.reports.profile.run_peak import run_peak_sentences, run_peak_table
from memdiag.reports.profile.trace import profile_trace
from memdiag.reports.report import Report
from memdiag.reports.text import capitalized, dim_hint, lowered, plain
from memdiag.reports.xray import owner_blocks, xray_text
from memdiag.units import counted

_MAX_SPANS = 500
_MAX_UNFOLDED_SPANS = 12
_TIMELINE = "timeline.js"


def document(profile: Profile) -> Document:
    """Return the report of `profile`."""
    answer = profile_headline(profile)
    facts = filter(None, (answer.facts, dim_hint(profile.dimensions)))
    return Document(
        subject=answer.model,
        kind="memory profile",
        answer=answer.first,
        line=f"{answer.model}: {lowered(answer.first)}",
        style="bold" if answer.completed else "bold red",
        is_bad=not answer.completed,
        rest=answer.second,
        facts=" · ".join(facts),
        blocks=[
            *_glance(profile),
            *_timeline(profile, f"{answer.first} {answer.second}"),
            Figures(
                title="Phases",
                table=phase_table(profile),
                short_table=phase_table(profile, is_compared=False),
                optional=OPTIONAL_COLUMNS if profile.estimate is not None else (),
            ),
            *_generation(profile),
            *_run_peak(profile),
            *_owners(profile),
            FindingList(
                title="Findings",
                findings=[*map(finding_text, profile.findings)],
                summary=f"{profile_summary(profile)}." if profile.findings else "",
                detail=Detail.ALL,
                short=counted(len(profile.findings), "finding"),
            ),
            *_spans(profile),
            *_runs(profile),
            notes_block(profile.notes),
            Figures(
                title="Inputs", table=input_table(profile), detail=Detail.ALL, short="the inputs"
            ),
            Facts(title="Model", rows=model_facts(profile)),
            Facts(title="Session", rows=session_facts(profile)),
            Facts(title="Environment", rows=environment_facts(profile)),
            Facts(title="Sampling", rows=sampling_facts(profile)),
            Code(
                title="To measure it again",
                text=shlex.join(map(plain, profile.command)),
                language="console",
                formats=PAGE_ONLY,
            ),
        ],
    )


def _glance(profile: Profile) -> list[Block]:
    """Return the result, why, what to do, and what the memory consists of."""
    found = profile_advice(profile)
    budget = verdict(profile.judgement) if profile.judgement else ""
    return [
        Sentence(title="Result", text=found.result, detail=Detail.ANSWER),
        Sentence(title="Why", text=found.reason, detail=Detail.ANSWER),
        Sentence(title="Steady", text=found.steady, detail=Detail.ANSWER),
        *(
            Sentence(
                title="" if number else "What to do",
                text=step.text,
                command=step.command,
                detail=Detail.ANSWER,
            )
            for number, step in enumerate(found.steps)
        ),
        Sentence(title="Budget", text=budget and f"{capitalized(budget)}.", formats=PAGE_ONLY),
        Sentence(title="Run peak", text=" ".join(run_peak_sentences(profile)[:1])),
    ]


def _has_timeline(profile: Profile) -> bool:
    return bool(profile.samples.t_s or profile.spans)


def _timeline(profile: Profile, answer: str) -> list[Block]:
    if not _has_timeline(profile):
        return []
    return [
        Chart(
            title="Timeline",
            name="timeline",
            script=_TIMELINE,
            data=lambda: timeline_data(profile),
            alt=f"Resident memory over time. {answer}",
            hints=(
                "Drag to zoom or, after “pan”, to move; double-click for the whole run. With the"
                " keyboard: arrows, + and −, 0. The lower lanes are the phases and, within them,"
                " the steps of the runtime.",
            ),
            has_ranges=True,
        )
    ]


def _generation(profile: Profile) -> list[Block]:
    return [
        Points(title="Generation", texts=generation_sentences(profile), detail=Detail.ALL),
        Figures(
            title="Growth with the context",
            table=generation_table(profile),
            detail=Detail.ALL,
            short="growth with the context",
        ),
    ]


def _run_peak(profile: Profile) -> list[Block]:
    return [
        Points(
            title="Peak of a run",
            # The first sentence is in the glance.
            texts=run_peak_sentences(profile)[1:],
            detail=Detail.ALL,
        ),
        Figures(
            title="In memory at the peak of a run, as estimated",
            table=run_peak_table(profile, max_tensors=MAX_LIVE),
            detail=Detail.ALL,
            formats=NOT_ON_PAGES,
        ),
        Figures(
            title="In memory at the peak of a run, as estimated",
            table=run_peak_table(profile),
            is_sortable=True,
            formats=PAGE_ONLY,
        ),
    ]


def _owners(profile: Profile) -> list[Block]:
    if profile.attribution is None:
        return []
    trimmed = profile.allocator_retained_bytes or 0
    return owner_blocks(
        xray_text(profile.attribution, trimmed_bytes=trimmed),
        lambda: page_xrays(profile),
        heading="owner (steady)" if profile.generation is None else "owner (last step)",
        further=copies_by_phase(profile),
    )


def _spans(profile: Profile) -> list[Block]:
    spans = span_rows(profile)
    more = len(spans) - _MAX_SPANS
    return [
        Points(
            title="What moved memory",
            texts=[f"{row.title}: {row.sentence}" for row in notable_spans(profile)],
            detail=Detail.ALL,
            formats=NOT_ON_PAGES,
        ),
        Figures(
            title="Graph transformers and steps",
            table=span_table(spans[:_MAX_SPANS]),
            caption=f"{more:,} smaller ones are in the record (JSON) only." if more > 0 else "",
            is_folded=len(spans) > _MAX_UNFOLDED_SPANS,
            formats=PAGE_ONLY,
        ),
    ]


def _runs(profile: Profile) -> list[Block]:
    unit = "run" if profile.generation is None else "token"
    found = runs_summary(profile)
    texts = [capitalized(text) for text in (found.latency, found.growth, found.retained) if text]
    blocks: list[Block] = [Points(title=f"{capitalized(unit)}s", texts=texts, detail=Detail.ALL)]
    if len(profile.runs) > 1 and _has_timeline(profile):
        blocks.append(
            Chart(
                title=f"Each {unit}",
                name="runs",
                script=_TIMELINE,
                data=dict,  # the timeline has it
                alt=f"Latency and resident memory of each {unit}. {found.sentence}",
            )
        )
    return blocks


REPORT = Report[Profile](
    "profile",
    {
        "html": "report.html",
        "issue": "issue.md",
        "json": "profile.json",
        "markdown": "report.md",
        "png": "timeline.png",
        "svg": "timeline.svg",
        "trace": "trace.json",
    },
    document,
    picture.draw,
    profile_trace,
    outlines_letters=True,
)

"""The report of a profile: the answer, why and what to do, the tables, then the details."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from memdiag.detail import Detail
from memdiag.records.profile import Profile
from memdiag.reports.blocks import (
    NOT_ON_PAGES,
    PAGE_ONLY,
    Block,
    BulletBlock,
    ChartBlock,
    CodeBlock,
    Document,
    FactsBlock,
    FindingsBlock,
    SentenceBlock,
    TableBlock,
    notes_block,
)
from memdiag.reports.budget import judgement_verdict
from memdiag.reports.device import (
    device_answer,
    device_blocks,
    device_chart_blocks,
    device_notes,
    device_sum,
)
from memdiag.reports.estimate.tables import MAX_LIVE_TENSORS
from memdiag.reports.findings import finding_text, profile_summary
from memdiag.reports.phase_table import OPTIONAL_PHASE_COLUMNS
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
    profile_phase_table,
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
_TIMELINE_SCRIPT = "timeline.js"


def document(profile: Profile) -> Document:
    """Return the report of `profile`. It starts with the GPU's memory if the session ran there."""
    device = profile.device
    if device is None:
        return _host_document(profile, _advice_blocks(profile))
    blocks = device_blocks(device)
    if device.ledger is None or not profile.outcome.completed:
        return _host_document(profile, [*blocks, *_advice_blocks(profile)])
    host_document = _host_document(profile, ())  # the advice is on the memory of the host
    answer_line = device_answer(
        host_document.subject, device, device.ledger, profile.model.weight_bytes or 0
    )
    return replace(
        host_document,
        answer=capitalized(answer_line.removeprefix(f"{host_document.subject}: ")),
        line=answer_line,
        rest=device_sum(device.ledger),
        seconds=[f"On the host: {lowered(host_document.answer)}"],
        # A terminal prints the host's memory on request.
        blocks=[
            *blocks,
            SentenceBlock(
                title="Host",
                text=host_document.rest,
                detail=Detail.ALL,
                short="the memory of the host",
            ),
            *(replace(block, detail=Detail.ALL) for block in host_document.blocks),
        ],
    )


def _host_document(profile: Profile, first_blocks: Sequence[Block]) -> Document:
    """Return the report on the memory of the host, whose blocks begin with `first_blocks`."""
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
            *first_blocks,
            *_verdict_blocks(profile),
            *_profile_timeline_blocks(profile, f"{answer.first} {answer.second}"),
            TableBlock(
                title="Phases",
                table=profile_phase_table(profile),
                short_table=profile_phase_table(profile, is_compared=False),
                optional=OPTIONAL_PHASE_COLUMNS if profile.estimate is not None else (),
            ),
            *_generation_blocks(profile),
            *_run_peak_blocks(profile),
            *_steady_owner_blocks(profile),
            FindingsBlock(
                title="Findings",
                findings=[*map(finding_text, profile.findings)],
                summary=f"{profile_summary(profile)}." if profile.findings else "",
                detail=Detail.ALL,
                short=counted(len(profile.findings), "finding"),
            ),
            *_span_blocks(profile),
            *_run_blocks(profile),
            notes_block((*profile.notes, *device_notes(profile.device))),
            TableBlock(
                title="Inputs", table=input_table(profile), detail=Detail.ALL, short="the inputs"
            ),
            FactsBlock(title="Model", rows=model_facts(profile)),
            FactsBlock(title="Session", rows=session_facts(profile)),
            FactsBlock(title="Environment", rows=environment_facts(profile)),
            FactsBlock(title="Sampling", rows=sampling_facts(profile)),
            CodeBlock(
                title="To measure it again",
                text=shlex.join(map(plain, profile.command)),
                language="console",
                formats=PAGE_ONLY,
            ),
        ],
    )


def _advice_blocks(profile: Profile) -> list[Block]:
    """Return the result, why, what to do, and what the memory consists of."""
    advice = profile_advice(profile)
    return [
        SentenceBlock(title="Result", text=advice.result, detail=Detail.ANSWER),
        SentenceBlock(title="Why", text=advice.reason, detail=Detail.ANSWER),
        SentenceBlock(title="Steady", text=advice.steady, detail=Detail.ANSWER),
        *(
            SentenceBlock(
                title="" if number else "What to do",
                text=step.text,
                command=step.command,
                detail=Detail.ANSWER,
            )
            for number, step in enumerate(advice.steps)
        ),
    ]


def _verdict_blocks(profile: Profile) -> list[Block]:
    """Return how the profile compares with its budget, and the peak of a run."""
    budget = judgement_verdict(profile.judgement) if profile.judgement else ""
    return [
        SentenceBlock(title="Budget", text=budget and f"{capitalized(budget)}.", formats=PAGE_ONLY),
        SentenceBlock(title="Run peak", text=" ".join(run_peak_sentences(profile)[:1])),
    ]


def _has_timeline(profile: Profile) -> bool:
    return bool(profile.samples.t_s or profile.spans)


def _profile_timeline_blocks(profile: Profile, answer: str) -> list[Block]:
    if not _has_timeline(profile):
        return []
    device = profile.device
    return [
        ChartBlock(
            title="Timeline",
            name="timeline",
            script=_TIMELINE_SCRIPT,
            data=lambda: timeline_data(profile),
            alt=f"Resident memory over time. {answer}",
            hints=(
                "Drag to zoom or, after “pan”, to move; double-click for the whole run. With the"
                " keyboard: arrows, + and −, 0. The lower lanes are the phases and, within them,"
                " the steps of the runtime.",
            ),
            has_ranges=True,
        ),
        *(device_chart_blocks(device, profile.model.weight_bytes) if device is not None else ()),
    ]


def _generation_blocks(profile: Profile) -> list[Block]:
    return [
        BulletBlock(title="Generation", texts=generation_sentences(profile), detail=Detail.ALL),
        TableBlock(
            title="Growth with the context",
            table=generation_table(profile),
            detail=Detail.ALL,
            short="growth with the context",
        ),
    ]


def _run_peak_blocks(profile: Profile) -> list[Block]:
    return [
        BulletBlock(
            title="Peak of a run",
            # `_verdict_blocks` has the first sentence.
            texts=run_peak_sentences(profile)[1:],
            detail=Detail.ALL,
        ),
        TableBlock(
            title="In memory at the peak of a run, as estimated",
            table=run_peak_table(profile, max_tensors=MAX_LIVE_TENSORS),
            detail=Detail.ALL,
            formats=NOT_ON_PAGES,
        ),
        TableBlock(
            title="In memory at the peak of a run, as estimated",
            table=run_peak_table(profile),
            is_sortable=True,
            formats=PAGE_ONLY,
        ),
    ]


def _steady_owner_blocks(profile: Profile) -> list[Block]:
    if profile.attribution is None:
        return []
    trimmed = profile.allocator_retained_bytes or 0
    return owner_blocks(
        xray_text(profile.attribution, trimmed_bytes=trimmed),
        lambda: page_xrays(profile),
        heading="owner (steady)" if profile.generation is None else "owner (last step)",
        further_remarks=copies_by_phase(profile),
    )


def _span_blocks(profile: Profile) -> list[Block]:
    spans = span_rows(profile)
    omitted_count = len(spans) - _MAX_SPANS
    return [
        BulletBlock(
            title="What moved memory",
            texts=[f"{row.title}: {row.sentence}" for row in notable_spans(profile)],
            detail=Detail.ALL,
            formats=NOT_ON_PAGES,
        ),
        TableBlock(
            title="Graph transformers and steps",
            table=span_table(spans[:_MAX_SPANS]),
            caption=f"{omitted_count:,} smaller ones are in the record (JSON) only."
            if omitted_count > 0
            else "",
            is_folded=len(spans) > _MAX_UNFOLDED_SPANS,
            formats=PAGE_ONLY,
        ),
    ]


def _run_blocks(profile: Profile) -> list[Block]:
    unit = "run" if profile.generation is None else "token"
    summary = runs_summary(profile)
    texts = [
        capitalized(text) for text in (summary.latency, summary.growth, summary.retained) if text
    ]
    blocks: list[Block] = [
        BulletBlock(title=f"{capitalized(unit)}s", texts=texts, detail=Detail.ALL)
    ]
    if len(profile.runs) > 1 and _has_timeline(profile):
        blocks.append(
            ChartBlock(
                title=f"Each {unit}",
                name="runs",
                script=_TIMELINE_SCRIPT,
                data=dict,  # the timeline has the data
                alt=f"Latency and resident memory of each {unit}. {summary.sentence}",
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

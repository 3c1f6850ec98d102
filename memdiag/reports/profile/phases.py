"""Phases, spans and runs of a profile: how long each took, and which memory it moved."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from memdiag.defaults import MMAP_THRESHOLD_VARIABLE, PINNED_TEXT
from memdiag.records.generation import Generation
from memdiag.records.phases import RUN_PHASES
from memdiag.records.profile import PeakKind, Phase, PhaseName, Profile, Run, Span
from memdiag.reports.phase_table import (
    ESTIMATED_HEADING,
    PhaseRow,
    arranged_phase_rows,
    phase_row,
    phase_row_table,
)
from memdiag.reports.profile.headline import STATUS_ENDINGS
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import mebibyte_decimals, plain
from memdiag.units import MIB, counted, format_duration, format_size

MIN_RUNS_FOR_P95 = 20
MAX_QUICK_FIRST_RUN = 0.8
"""Share of the median latency below which a first run is notably quicker than later ones."""

_MIN_MOVED_BYTES = MIB
_MIN_NOTABLE_SHARE = 0.05
_TRANSFORMER_PHASES = ("optimize", "constant_fold")


def phase_rows(profile: Profile) -> tuple[PhaseRow, ...]:
    """Return the phases that were reached, each followed by its parts."""
    return arranged_phase_rows(
        [_profile_phase_row(profile, phase) for phase in profile.phases], profile.spans
    )


def profile_phase_table(profile: Profile, *, is_compared: bool = True) -> Table:
    """Return the table of the phases that were reached, with estimated peaks.

    Unless `is_compared` it is shorter: without these, and without phases that moved little memory.
    """
    estimated = ""
    if is_compared and profile.estimate is not None:
        estimated = f"; {ESTIMATED_HEADING}: the peak that memdiag estimate predicts"
        if MMAP_THRESHOLD_VARIABLE not in profile.session.environment:
            estimated += f" for a malloc that keeps no freed blocks (--env {PINNED_TEXT})"
    rows = phase_rows(profile)
    if not is_compared:
        rows = tuple(replace(row, estimated_bytes=None) for row in rows if _is_notable_phase(row))
    table = phase_row_table(
        rows,
        decimals=mebibyte_decimals(profile.peak_rss_bytes),
        caption=f"MiB of the whole process{estimated}",
        heading="phase" if is_compared else "phase (MiB)",
        explains_samples=is_compared,
    )
    return table if is_compared else replace(table, caption=table.caption.partition("; ")[2])


def _is_notable_phase(row: PhaseRow) -> bool:
    """Return whether the row belongs in a short table."""
    if row.is_peak or row.ending or row.phase in RUN_PHASES:
        return True
    return row.level == 0 and row.phase != "start" and abs(row.net_bytes) >= MIB


def _profile_phase_row(profile: Profile, phase: Phase) -> PhaseRow:
    latencies = [run.latency_s for run in profile.runs]
    is_steady = phase.name in ("steady", "decode") and bool(latencies)
    grown = responsible_span(profile, phase.name)
    outcome = profile.outcome
    ended_here = not outcome.completed and phase.name == outcome.phase
    return replace(
        phase_row(phase),
        label=f"{phase.name} ×{len(latencies)}" if is_steady else phase.name,
        median_run_s=statistics.median(latencies) if is_steady else None,
        responsible=grown.name if grown else "",
        is_peak=phase.name == profile.peak_phase,
        estimated_bytes=profile.estimated_peak_bytes(phase.name),
        ending=f"{STATUS_ENDINGS[outcome.status]} here" if ended_here else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """A span in figures.

    Attributes:
        step, modified: as in the span.
        peak_growth_bytes: the peak of the span above the memory at its start.
        net_bytes: the memory at its end minus that at its start.
        alternatives: the number of other spans that may have had the peak instead.
    """

    name: str
    phase: PhaseName
    step: int | None
    modified: bool | None
    duration_s: float
    peak_growth_bytes: int
    peak_kind: PeakKind
    net_bytes: int
    alternatives: int = 0

    @property
    def title(self) -> str:
        """The name with the step: ``ConstantFolding, step 1``."""
        title = self.name if self.step is None else f"{self.name}, step {self.step}"
        return f"{title}, or one of {self.alternatives} others" if self.alternatives else title

    @property
    def sentence(self) -> str:
        """Growth and remaining memory of the span: ``+1000 MiB at its peak, +500 MiB kept``."""
        if self.peak_growth_bytes == 0 and self.net_bytes < 0:
            return f"{format_size(-self.net_bytes)} released"
        kind = " (sampled)" if self.peak_kind == "sampled" else ""
        peak = f"{format_size(self.peak_growth_bytes, signed=True)} at its peak{kind}"
        if self.net_bytes > 0:
            return f"{peak}, {format_size(self.net_bytes, signed=True)} kept"
        if self.net_bytes < 0:
            return f"{peak}, {format_size(-self.net_bytes)} released"
        return f"{peak}, nothing kept"

    @property
    def movement(self) -> tuple[int, int]:
        """The memory that the span moved: growth to its peak, and change from start to end."""
        return self.peak_growth_bytes, abs(self.net_bytes)


def span_row(span: Span) -> SpanRow:
    """Return `span` in figures."""
    return SpanRow(
        name=plain(span.name),
        phase=span.phase,
        step=span.step,
        modified=span.modified,
        duration_s=span.end_s - span.start_s,
        peak_growth_bytes=max(0, span.peak_rss_bytes - span.start_rss_bytes),
        peak_kind=span.peak_kind,
        net_bytes=span.net_rss_bytes,
    )


def span_rows(profile: Profile) -> tuple[SpanRow, ...]:
    """Return the spans that add detail to their phase, largest movement of memory first.

    Included are the phases in which graph transformers run, and other phases in which memory moved
    more than once.
    """
    rows = [span_row(span) for span in profile.spans]
    moves = Counter(row.phase for row in rows if max(row.movement) >= _MIN_MOVED_BYTES)
    kept = [row for row in rows if row.phase in _TRANSFORMER_PHASES or moves[row.phase] > 1]
    return tuple(sorted(_joined_span_rows(kept), key=lambda row: row.movement, reverse=True))


def _joined_span_rows(rows: Sequence[SpanRow]) -> Iterator[SpanRow]:
    """Yield `rows`, with one row for successive spans whose peak was read at once.

    Spans that end between two readings of the high-water mark all have its peak, and keep nothing:
    which of them had it is not known.
    """
    for (_, growth, net), group in groupby(
        rows, key=lambda row: (row.phase, row.peak_growth_bytes, row.net_bytes)
    ):
        first, *others = group
        if others and growth and not net:
            duration_s = first.duration_s + sum(row.duration_s for row in others)
            first = replace(first, duration_s=duration_s, modified=None, alternatives=len(others))
            others = []
        yield from (first, *others)


def notable_spans(profile: Profile, *, limit: int = 6) -> tuple[SpanRow, ...]:
    """Return the spans that belong in a summary: at least 1 MiB and 5 % of the peak."""
    above = profile.peak_above_bytes
    smallest = max(_MIN_MOVED_BYTES, above * _MIN_NOTABLE_SHARE)
    return tuple(row for row in span_rows(profile) if max(row.movement) >= smallest)[:limit]


def responsible_span(profile: Profile, phase: PhaseName) -> SpanRow | None:
    """Return the span that made `phase` grow most; None if none grew by 1 MiB."""
    rows = [row for row in span_rows(profile) if row.phase == phase]
    grown = max(rows, key=lambda row: row.net_bytes, default=None)
    if grown is None or grown.net_bytes < _MIN_MOVED_BYTES:
        grown = max(rows, key=lambda row: row.movement, default=None)
    return grown if grown and max(grown.movement) >= _MIN_MOVED_BYTES else None


def span_table(rows: Sequence[SpanRow]) -> Table:
    """Return the table of `rows`, for a page."""
    graph = {None: "", True: "changed", False: "unchanged"}
    return Table(
        columns=(
            Column("transformer or step", css="name"),
            Column("phase", css="less"),
            Column("time", "right", css="less"),
            Column("at its peak", "right", css="strong"),
            Column("kept", "right"),
            Column("graph", css="less"),
        ),
        rows=tuple(
            Row(
                row.title,
                row.phase,
                format_duration(row.duration_s),
                Cell(
                    format_size(row.peak_growth_bytes, signed=True),
                    note="sampled" if row.peak_kind == "sampled" else "",
                ),
                format_size(row.net_bytes, signed=True),
                graph[row.modified],
            )
            for row in rows
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Sentences on the runs after the first; empty where nothing is known.

    Attributes:
        growth: which runs grew the resident set.
        retained: what malloc returned on request after the last run; empty with an X-ray, whose
            owners contain it.
    """

    latency: str
    growth: str
    retained: str

    @property
    def sentence(self) -> str:
        """Latency, growth and retained memory in one sentence."""
        return "; ".join(part for part in (self.latency, self.growth, self.retained) if part)


def runs_summary(profile: Profile) -> RunSummary:
    """Return the sentences on the runs of `profile`."""
    return RunSummary(
        latency=_run_latency_text(profile),
        growth=_run_growth_text(profile),
        retained=_returned_memory_text(profile),
    )


def run_sentence(number: int, run: Run) -> str:
    """Return one run in words: ``run 3: 28 ms, peak 1.54 GiB``."""
    peak = run.peak_rss_bytes
    reached = "" if peak is None else f", peak {format_size(peak)}"
    return f"run {number}: {format_duration(run.latency_s)}{reached}"


def _run_latency_text(profile: Profile) -> str:
    if profile.generation is not None:
        return _token_latency_text(profile, profile.generation)
    parts = []
    ordered = sorted(run.latency_s for run in profile.runs)
    if ordered:
        median = format_duration(statistics.median(ordered))
        p95 = format_duration(ordered[math.ceil(0.95 * len(ordered)) - 1])
        name = "p95" if len(ordered) >= MIN_RUNS_FOR_P95 else "p95 (the largest)"
        count = counted(len(ordered), "run")
        parts.append(f"latency median {median}, {name} {p95} over {count}")
    if profile.first_run_s is not None:
        first = f"first run {format_duration(profile.first_run_s)}"
        if ordered and profile.first_run_s < MAX_QUICK_FIRST_RUN * statistics.median(ordered):
            first += ", quicker than later ones: the speed of the machine varies"
        parts.append(first)
    return "; ".join(parts)


def _token_latency_text(profile: Profile, generation: Generation) -> str:
    parts = []
    ordered = sorted(run.latency_s for run in profile.runs)
    if ordered:
        median = statistics.median(ordered)
        p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
        name = "p95" if len(ordered) >= MIN_RUNS_FOR_P95 else "p95 (the largest)"
        parts.append(
            f"each token median {format_duration(median)}, {name} {format_duration(p95)} over"
            f" {counted(len(ordered), 'step')}{_token_rate_text(1, median)}"
        )
    if profile.first_run_s is not None:
        prompt = format_duration(profile.first_run_s)
        rate = _token_rate_text(generation.prefill_tokens, profile.first_run_s)
        parts.append(f"prompt of {counted(generation.prefill_tokens, 'token')} {prompt}{rate}")
    return "; ".join(parts)


def _token_rate_text(tokens: int, seconds: float) -> str:
    """Return the tokens per second in parentheses; empty for a time of 0."""
    return f" ({tokens / seconds:,.0f} tokens/s)" if seconds > 0 else ""


def _run_growth_text(profile: Profile) -> str:
    if profile.generation is not None:
        return ""  # the table of the generation has it
    rss = [run.rss_bytes for run in profile.runs]
    if len(rss) < 2:
        return ""
    runs = "run 2" if len(rss) == 2 else f"runs 2 to {len(rss)}"
    later = f"{_memory_change_text(rss[-1] - rss[0])} in {runs}"
    steady = profile.phase("steady")
    if steady is None:
        return f"resident memory after the first run: {later}"
    change = _memory_change_text(rss[0] - steady.start.rss_bytes)
    why = " (the block that the memory pattern plans)" if profile.planned_block_bytes else ""
    return f"resident memory after the first run: {change} in run 1{why}, {later}"


def _memory_change_text(size: int) -> str:
    """Return a change of memory in MiB, as in the phase table."""
    if size == 0:
        return "no change"
    text = f"{size / MIB:+,.1f}"
    return f"{text} MiB" if text.strip("+-0.") else "less than 0.1 MiB"


def _returned_memory_text(profile: Profile) -> str:
    size = profile.allocator_retained_bytes
    if size is None or profile.attribution is not None:
        return ""  # with an X-ray it is a row of the owners
    return f"malloc returned {format_size(size) if size > 0 else 'nothing'} on request afterwards"


def copies_by_phase(profile: Profile) -> tuple[str, ...]:
    """Return the copies in use at the end of each phase at which an X-ray was taken.

    ``copies after parse: 12, original 61 MiB, packed 61 MiB``
    """
    sentences = []
    for xray in profile.phase_attributions:
        copies = [copy for copy in xray.attribution.copies if copy.in_use is not False]
        sizes: dict[str, int] = {}
        for copy in copies:
            sizes[copy.kind] = sizes.get(copy.kind, 0) + copy.resident_bytes
        ordered = sorted(sizes.items(), key=lambda item: -item[1])
        kinds = ", ".join(f"{kind} {format_size(size)}" for kind, size in ordered)
        sentences.append(f"copies after {xray.phase}: {len(copies):,}, {kinds or 'none'}")
    return tuple(sentences)

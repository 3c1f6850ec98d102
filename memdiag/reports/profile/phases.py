"""Phases, spans and runs of a profile: how long each took, and how much memory it moved."""

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

    Unless `is_compared`, it lacks the estimates, and the phases that moved little memory.
    """
    estimate_caption = ""
    if is_compared and profile.estimate is not None:
        estimate_caption = f"; {ESTIMATED_HEADING}: the peak that memdiag estimate predicts"
        if MMAP_THRESHOLD_VARIABLE not in profile.session.environment:
            estimate_caption += f" for a malloc that keeps no freed blocks (--env {PINNED_TEXT})"
    rows = phase_rows(profile)
    if not is_compared:
        rows = tuple(replace(row, estimated_bytes=None) for row in rows if _is_notable_phase(row))
    table = phase_row_table(
        rows,
        decimals=mebibyte_decimals(profile.peak_rss_bytes),
        caption=f"MiB of the whole process{estimate_caption}",
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
    span = responsible_span(profile, phase.name)
    outcome = profile.outcome
    is_end = not outcome.completed and phase.name == outcome.phase
    return replace(
        phase_row(phase),
        label=f"{phase.name} ×{len(latencies)}" if is_steady else phase.name,
        median_run_s=statistics.median(latencies) if is_steady else None,
        responsible=span.name if span else "",
        is_peak=phase.name == profile.peak_phase,
        estimated_bytes=profile.estimated_peak_bytes(phase.name),
        ending=f"{STATUS_ENDINGS[outcome.status]} here" if is_end else "",
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
    """Return the spans that add detail to their phase, the largest movement of memory first.

    These are spans of phases in which graph transformers run, and of phases in which memory moved
    more than once.
    """
    rows = [span_row(span) for span in profile.spans]
    move_count_by_phase = Counter(
        row.phase for row in rows if max(row.movement) >= _MIN_MOVED_BYTES
    )
    detail_rows = [
        row
        for row in rows
        if row.phase in _TRANSFORMER_PHASES or move_count_by_phase[row.phase] > 1
    ]
    return tuple(sorted(_joined_span_rows(detail_rows), key=lambda row: row.movement, reverse=True))


def _joined_span_rows(rows: Sequence[SpanRow]) -> Iterator[SpanRow]:
    """Yield `rows`, with one row for successive spans whose peak was read at once.

    Spans that end between two readings of the high-water mark all have the same peak, and keep
    nothing. It is not known which of them reached the peak.
    """
    for (_, growth_bytes, net_bytes), group in groupby(
        rows, key=lambda row: (row.phase, row.peak_growth_bytes, row.net_bytes)
    ):
        first_row, *further_rows = group
        if further_rows and growth_bytes and not net_bytes:
            duration_s = first_row.duration_s + sum(row.duration_s for row in further_rows)
            first_row = replace(
                first_row, duration_s=duration_s, modified=None, alternatives=len(further_rows)
            )
            further_rows = []
        yield from (first_row, *further_rows)


def notable_spans(profile: Profile, *, limit: int = 6) -> tuple[SpanRow, ...]:
    """Return the spans that belong in a summary: at least 1 MiB and 5 % of the peak."""
    peak_above_bytes = profile.peak_above_bytes
    min_moved_bytes = max(_MIN_MOVED_BYTES, peak_above_bytes * _MIN_NOTABLE_SHARE)
    return tuple(row for row in span_rows(profile) if max(row.movement) >= min_moved_bytes)[:limit]


def responsible_span(profile: Profile, phase: PhaseName) -> SpanRow | None:
    """Return the span that made `phase` grow most; None if none grew by 1 MiB."""
    rows = [row for row in span_rows(profile) if row.phase == phase]
    largest_row = max(rows, key=lambda row: row.net_bytes, default=None)
    if largest_row is None or largest_row.net_bytes < _MIN_MOVED_BYTES:
        largest_row = max(rows, key=lambda row: row.movement, default=None)
    if largest_row is None or max(largest_row.movement) < _MIN_MOVED_BYTES:
        return None
    return largest_row


def span_table(rows: Sequence[SpanRow]) -> Table:
    """Return the table of `rows`, for a page."""
    graph_texts = {None: "", True: "changed", False: "unchanged"}
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
                graph_texts[row.modified],
            )
            for row in rows
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Sentences on the runs after the first; empty if nothing is known.

    Attributes:
        growth: which runs grew the resident set.
        retained: what malloc returned on request after the last run; empty with an X-ray, because
            its owners include that memory.
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
    peak_rss_bytes = run.peak_rss_bytes
    peak_text = "" if peak_rss_bytes is None else f", peak {format_size(peak_rss_bytes)}"
    return f"run {number}: {format_duration(run.latency_s)}{peak_text}"


def _run_latency_text(profile: Profile) -> str:
    if profile.generation is not None:
        return _token_latency_text(profile, profile.generation)
    parts = []
    latencies_s = sorted(run.latency_s for run in profile.runs)
    if latencies_s:
        median = format_duration(statistics.median(latencies_s))
        p95 = format_duration(latencies_s[math.ceil(0.95 * len(latencies_s)) - 1])
        name = "p95" if len(latencies_s) >= MIN_RUNS_FOR_P95 else "p95 (the largest)"
        count = counted(len(latencies_s), "run")
        parts.append(f"latency median {median}, {name} {p95} over {count}")
    if profile.first_run_s is not None:
        first_run = f"first run {format_duration(profile.first_run_s)}"
        if latencies_s and profile.first_run_s < MAX_QUICK_FIRST_RUN * statistics.median(
            latencies_s
        ):
            first_run += ", quicker than later ones: the speed of the machine varies"
        parts.append(first_run)
    return "; ".join(parts)


def _token_latency_text(profile: Profile, generation: Generation) -> str:
    parts = []
    latencies_s = sorted(run.latency_s for run in profile.runs)
    if latencies_s:
        median_s = statistics.median(latencies_s)
        p95_s = latencies_s[math.ceil(0.95 * len(latencies_s)) - 1]
        name = "p95" if len(latencies_s) >= MIN_RUNS_FOR_P95 else "p95 (the largest)"
        parts.append(
            f"each token median {format_duration(median_s)}, {name} {format_duration(p95_s)} over"
            f" {counted(len(latencies_s), 'step')}{_token_rate_text(1, median_s)}"
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
        return ""  # the table of the generation has the growth
    rss_bytes = [run.rss_bytes for run in profile.runs]
    if len(rss_bytes) < 2:
        return ""
    runs = "run 2" if len(rss_bytes) == 2 else f"runs 2 to {len(rss_bytes)}"
    later_change = f"{_memory_change_text(rss_bytes[-1] - rss_bytes[0])} in {runs}"
    steady = profile.phase("steady")
    if steady is None:
        return f"resident memory after the first run: {later_change}"
    first_change = _memory_change_text(rss_bytes[0] - steady.start.rss_bytes)
    reason = " (the block that the memory pattern plans)" if profile.planned_block_bytes else ""
    return f"resident memory after the first run: {first_change} in run 1{reason}, {later_change}"


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
        size_by_kind: dict[str, int] = {}
        for copy in copies:
            size_by_kind[copy.kind] = size_by_kind.get(copy.kind, 0) + copy.resident_bytes
        ordered_sizes = sorted(size_by_kind.items(), key=lambda item: -item[1])
        kinds = ", ".join(f"{kind} {format_size(size)}" for kind, size in ordered_sizes)
        sentences.append(f"copies after {xray.phase}: {len(copies):,}, {kinds or 'none'}")
    return tuple(sentences)

"""Spans and phases of a child, with the peak of each, from log lines and memory readings."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from memdiag.defaults import CPU_PROVIDER
from memdiag.records.phases import PHASES, PhaseName
from memdiag.records.profile import UNKNOWN_MEMORY, Memory, PeakKind, Phase, Span
from memdiag.runner.log import LogMarker
from memdiag.runner.observer import MAX_COUNTER_ERROR_BYTES, MemoryReading, SpanBoundary

K = TypeVar("K", bound=Hashable)

BETWEEN_TRANSFORMERS = "between transformers"
PARTITION_SPAN = "partition the graph"
_AFTER_PARTITION = "Level2_RuleBasedTransformer"
_MAX_PLAUSIBLE_LAG_S = 5.0
_WindowPart = tuple[int, float]  # the index of a span, and the seconds of it in a window

MAX_PEAK_DIFFERENCE = 0.005
"""Share of the largest peak by which peaks of phases that retain the same memory differ."""

MAX_NEIGHBOUR_S = 0.001
"""A high-water mark belongs to one span if the other spans in its window last less than this
together."""


@dataclass(slots=True)
class _PeakBounds:
    """Bounds of one key's peak.

    Attributes:
        value: the largest resident set known to belong to the key, in bytes.
        has_mark: whether the mark of some window belongs to the key.
        lacks_mark: whether some window with the key had no mark.
        bound: the largest mark of a window that the key shared, in bytes: an upper bound.
        edge_bound: the same for windows in which the key lasted less than `MAX_NEIGHBOUR_S`.
    """

    value: int = 0
    has_mark: bool = False
    lacks_mark: bool = False
    bound: int = 0
    edge_bound: int = 0


class PeakAssignment(Generic[K]):
    """Assigns the kernel's high-water marks (VmHWM) to keys: the spans, or the phases.

    The mark is read and reset at each boundary at which memdiag wakes up; the time between two
    readings is a *window*. Ideally a window contains one span, but onnxruntime continues while
    memdiag wakes up, so that a window may contain the start or end of a neighbour, or several short
    spans. A mark is assigned only where the windows leave no other answer.
    """

    def __init__(self) -> None:
        self._bounds: dict[K, _PeakBounds] = {}

    def add_sample(self, key: K, rss_bytes: int) -> None:
        """Add a resident set that was measured while `key` was running."""
        bounds = self._bounds.setdefault(key, _PeakBounds())
        bounds.value = max(bounds.value, rss_bytes)

    def add_window(self, segments: Iterable[tuple[K, float]], peak_rss_bytes: int | None) -> None:
        """Add a window: its keys with their seconds, and its mark (None where there is none)."""
        durations: dict[K, float] = {}
        for key, seconds in segments:
            durations[key] = durations.get(key, 0.0) + seconds
        window_seconds = sum(durations.values())
        for key, seconds in durations.items():
            bounds = self._bounds.setdefault(key, _PeakBounds())
            other_seconds = window_seconds - seconds
            if peak_rss_bytes is None:
                bounds.lacks_mark = True
            elif other_seconds <= seconds and other_seconds < MAX_NEIGHBOUR_S:
                bounds.has_mark = True
                bounds.value = max(bounds.value, peak_rss_bytes)
            elif seconds >= MAX_NEIGHBOUR_S:
                bounds.bound = max(bounds.bound, peak_rss_bytes)
            else:
                bounds.edge_bound = max(bounds.edge_bound, peak_rss_bytes)

    def peak(self, key: K) -> tuple[int, PeakKind]:
        """Return the peak of `key` in bytes, and whether it is exact or sampled."""
        bounds = self._bounds[key]
        # A key that has a mark is not bounded by the windows that it only touched.
        bound = bounds.bound if bounds.has_mark else max(bounds.bound, bounds.edge_bound)
        has_bound = bounds.has_mark or bound > 0
        is_exact = has_bound and bound <= bounds.value + MAX_COUNTER_ERROR_BYTES
        return bounds.value, "exact" if is_exact and not bounds.lacks_mark else "sampled"


@dataclass(slots=True)
class _SpanBuilder:
    """A span that has not ended, or whose peak is not assigned yet.

    Attributes:
        name, phase, step, modified: as in the record `Span`.
        start_s, end_s: the times of its ends; `end_s` is 0 until it ends.
        start, end: the memory at these times.
        max_sample_bytes: the largest sample within the span.
    """

    name: str
    phase: PhaseName
    step: int | None
    start_s: float
    start: Memory
    modified: bool | None = None
    end_s: float = 0.0
    end: Memory = UNKNOWN_MEMORY
    max_sample_bytes: int = 0


class PhaseTracker:
    """Divides the life of the child into spans and phases without gaps.

    Call in order of time: `add_sample` between boundaries, `add_markers` for log lines,
    `start_span` for an event at which the child waits, `finish` at the end. All times are seconds
    since the child was started. If a log line is read late, the memory at its time is taken from
    the last sample if that is nearer in time.

    Between the graph transformers of level 1 and 2 onnxruntime partitions the graph: it assigns
    nodes to the execution `providers`, and providers other than CPU may compile their nodes.
    OpenVINO's provider logs these steps: each part of the graph that it compiles has its own spans.
    """

    def __init__(self, start: Memory, providers: Sequence[str] = ()) -> None:
        other_providers = [
            name.removesuffix("ExecutionProvider") for name in providers if name != CPU_PROVIDER
        ]
        self._other_providers = ", ".join(other_providers)
        self._partition_span = (
            f"partition and compile ({self._other_providers})"
            if other_providers
            else PARTITION_SPAN
        )
        self._may_compile = bool(other_providers)
        self._is_partitioned = False
        self._finished_spans: list[_SpanBuilder] = []
        self._open_span = _SpanBuilder("interpreter and imports", "start", None, 0.0, start)
        self._window_start_s = 0.0
        self._window: list[_WindowPart] = []
        self._sampled_s = 0.0
        self._sampled: MemoryReading | None = None
        self._windows: list[tuple[list[_WindowPart], int | None]] = []
        self._end_counts: Counter[str] = Counter()
        self.explicit_starts = False
        self.lag_s: float | None = None

    @property
    def phase(self) -> PhaseName:
        """The phase that is open now."""
        return self._open_span.phase

    @property
    def span(self) -> str:
        """The name of the span that is open now."""
        return self._open_span.name

    def add_sample(self, now_s: float, reading: MemoryReading) -> None:
        """Add a sample of resident memory to the open span."""
        self._sampled_s, self._sampled = now_s, reading
        self._add_to_open(reading.rss_bytes)

    def add_markers(
        self,
        markers: Sequence[LogMarker],
        origin_epoch_s: float,
        now_s: float,
        boundary: SpanBoundary,
    ) -> None:
        """Start a span at each of `markers`, which arrived together before the boundary."""
        for marker in markers:
            lag_s = now_s - (marker.epoch_s - origin_epoch_s)
            # In another time zone, or after the clock was set, the time of arrival is used.
            is_plausible = -0.01 <= lag_s <= _MAX_PLAUSIBLE_LAG_S
            # Nor can a line be older than the span that it ends.
            lag_s = min(max(0.0, lag_s), now_s - self._open_span.start_s) if is_plausible else 0.0
            phase = self.phase
            self._apply_marker(
                marker, now_s - lag_s, self._memory_at(now_s - lag_s, now_s, boundary)
            )
            if self.phase != phase and lag_s:
                self.lag_s = max(self.lag_s or 0.0, lag_s)
        self.close_window(now_s, boundary)

    def start_span(self, name: str, phase: PhaseName, now_s: float, boundary: SpanBoundary) -> None:
        """Start span `name` now, while the child waits, so that the boundary is exact."""
        self._start_at(name, phase, None, now_s, boundary.memory)
        self.close_window(now_s, boundary)

    def finish(self, now_s: float, boundary: SpanBoundary) -> None:
        """End the open span at the `boundary`, the last one available."""
        self._end_open(now_s, boundary.memory)
        self._add_window(boundary)

    def spans(self) -> tuple[Span, ...]:
        """Return the spans in order, once finished."""
        peaks = self._assigned_peaks({index: index for index in range(len(self._finished_spans))})
        return tuple(
            _span_record(builder, *peaks.peak(index))
            for index, builder in enumerate(self._finished_spans)
        )

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that occurred, in the order of `PHASES`, once finished."""
        peaks = self._assigned_peaks(
            {index: builder.phase for index, builder in enumerate(self._finished_spans)}
        )
        return tuple(
            _phase_record(name, builders, *peaks.peak(name))
            for name in PHASES
            if (builders := [builder for builder in self._finished_spans if builder.phase == name])
        )

    def common_peak(self, phases: Collection[PhaseName]) -> tuple[int, PeakKind] | None:
        """Return the peak of `phases` together, once finished; None if none of them occurred.

        It is known more often than the peak of each: a high-water mark belongs to them together
        where it cannot be assigned to one of them.
        """
        keys = {
            index: builder.phase in phases for index, builder in enumerate(self._finished_spans)
        }
        return self._assigned_peaks(keys).peak(True) if True in keys.values() else None

    def _add_to_open(self, rss_bytes: int) -> None:
        self._open_span.max_sample_bytes = max(self._open_span.max_sample_bytes, rss_bytes)

    def _memory_at(self, at_s: float, now_s: float, boundary: SpanBoundary) -> Memory:
        """Return the memory at `at_s`: at the boundary or at the last sample, the nearer."""
        if self._sampled is None or now_s - at_s <= abs(at_s - self._sampled_s):
            return boundary.memory
        return self._sampled.memory

    def _apply_marker(self, marker: LogMarker, at_s: float, memory: Memory) -> None:
        match marker.kind:
            case "load":
                self._start_at("load and resolve the graph", "parse", None, at_s, memory)
            case "initialize_session":
                self._start_at("prepare the graph", "optimize", None, at_s, memory)
            case "transformer_start":
                self.explicit_starts = True
                self._start_at(marker.name, _phase_of(marker.name), marker.step, at_s, memory)
            case "transformer_end":
                self._end_transformer(marker)
                self._start_at(BETWEEN_TRANSFORMERS, "optimize", None, at_s, memory)
            case "provider_assigned":
                self._end_provider_step("partition the graph", at_s, memory)
            case "provider_compiles":
                self._end_provider_step("copy a subgraph", at_s, memory)
                self._open_span.name = f"compile ({self._other_providers})"
            case "provider_compiled":
                self._start_at(BETWEEN_TRANSFORMERS, "optimize", None, at_s, memory)
            case "partitioned":
                if self._open_span.name == BETWEEN_TRANSFORMERS:
                    self._open_span.name = self._partition_span
                self._is_partitioned = True
                self._start_at(BETWEEN_TRANSFORMERS, "optimize", None, at_s, memory)
            case "session_state":
                self._start_at("session state", "initialize", None, at_s, memory)
            case "save_initializers":
                self._start_at("save initializers", "initialize", None, at_s, memory)
            case "initializers_saved":
                self._start_at("kernels and prepacking", "prepack", None, at_s, memory)
            case "initialized":
                self._start_at("hand over the session", "prepack", None, at_s, memory)

    def _end_provider_step(self, name: str, at_s: float, memory: Memory) -> None:
        """End a step of the provider at its log line: the start of the step is not logged."""
        if self._open_span.name == BETWEEN_TRANSFORMERS:
            self._open_span.name = f"{name} ({self._other_providers})"
            # The remaining time is onnxruntime's own.
            self._partition_span = PARTITION_SPAN
        self._start_at(BETWEEN_TRANSFORMERS, "optimize", None, at_s, memory)

    def _end_transformer(self, marker: LogMarker) -> None:
        builder = self._open_span
        self._end_counts[marker.name] += 1
        if builder.name == BETWEEN_TRANSFORMERS and self._is_partition(marker):
            builder.name = self._partition_span
        elif builder.name == BETWEEN_TRANSFORMERS:
            # Its start was not logged: it started when the transformer before it ended, or later.
            builder.name, builder.phase = marker.name, _phase_of(marker.name)
            builder.step = self._end_counts[marker.name]
        if builder.name == marker.name:
            builder.modified = marker.modified

    def _is_partition(self, marker: LogMarker) -> bool:
        """Return whether the time before the end at `marker` is mostly spent on partitioning.

        Before 1.23 the first transformer's end is the only line after it.
        """
        is_first_end = marker.name == _AFTER_PARTITION and self._end_counts[marker.name] == 1
        return is_first_end and self._may_compile and not self._is_partitioned

    def _start_at(
        self, name: str, phase: PhaseName, step: int | None, at_s: float, memory: Memory
    ) -> None:
        self._end_open(at_s, memory)
        self._open_span = _SpanBuilder(name, phase, step, self._finished_spans[-1].end_s, memory)
        self._add_to_open(memory.rss_bytes)

    def _end_open(self, at_s: float, memory: Memory) -> None:
        builder = self._open_span
        builder.end_s = max(at_s, builder.start_s)
        builder.end = memory
        self._add_to_open(builder.start.rss_bytes)
        self._add_to_open(memory.rss_bytes)
        index = len(self._finished_spans)
        self._window.append((index, builder.end_s - max(builder.start_s, self._window_start_s)))
        self._finished_spans.append(builder)

    def close_window(self, now_s: float, boundary: SpanBoundary) -> None:
        """Add the window since the last boundary, with the start of the open span in it."""
        head_s = now_s - max(self._open_span.start_s, self._window_start_s)
        self._window.append((len(self._finished_spans), max(0.0, head_s)))
        self._add_window(boundary)
        self._window_start_s = now_s

    def _add_window(self, boundary: SpanBoundary) -> None:
        self._windows.append((self._window, boundary.peak_rss_bytes))
        self._window = []

    def _assigned_peaks(self, keys: Mapping[int, K]) -> PeakAssignment[K]:
        """Return the peaks by `keys`, which maps the index of each span to its key."""
        peaks: PeakAssignment[K] = PeakAssignment()
        for index, key in keys.items():
            peaks.add_sample(key, self._finished_spans[index].max_sample_bytes)
        for window, mark in self._windows:
            peaks.add_window([(keys[index], seconds) for index, seconds in window], mark)
        return peaks


def _phase_of(transformer: str) -> PhaseName:
    return "constant_fold" if transformer == "ConstantFolding" else "optimize"


def _span_record(builder: _SpanBuilder, peak_rss_bytes: int, peak_kind: PeakKind) -> Span:
    return Span(
        name=builder.name,
        phase=builder.phase,
        step=builder.step,
        modified=builder.modified,
        start_s=round(builder.start_s, 6),
        end_s=round(builder.end_s, 6),
        start_rss_bytes=builder.start.rss_bytes,
        net_rss_bytes=builder.end.rss_bytes - builder.start.rss_bytes,
        peak_rss_bytes=peak_rss_bytes,
        peak_kind=peak_kind,
    )


def _phase_record(
    name: PhaseName, builders: Sequence[_SpanBuilder], peak_rss_bytes: int, peak_kind: PeakKind
) -> Phase:
    return Phase(
        name=name,
        duration_s=round(sum(builder.end_s - builder.start_s for builder in builders), 6),
        start=builders[0].start,
        end=builders[-1].end,
        net_rss_bytes=sum(builder.end.rss_bytes - builder.start.rss_bytes for builder in builders),
        peak_rss_bytes=peak_rss_bytes,
        peak_kind=peak_kind,
    )


def phase_of_peak(phases: Sequence[Phase], spans: Sequence[Span], start_bytes: int) -> Phase:
    """Return the phase that reached the largest peak.

    Peaks of phases that retain the same memory differ by a few pages. The phase is the first one,
    in time, that came within `MAX_PEAK_DIFFERENCE` of the largest peak above `start_bytes`.

    Args:
        phases: the phases, at least one.
        spans: their spans in order.
        start_bytes: the resident set before them.
    """
    phase_by_name = {phase.name: phase for phase in phases}
    peak = max(phase.peak_rss_bytes for phase in phases)
    threshold_bytes = peak - max(0.0, MAX_PEAK_DIFFERENCE * (peak - start_bytes))
    candidates = [
        name for name, phase in phase_by_name.items() if phase.peak_rss_bytes >= threshold_bytes
    ]
    reaching_phases = [span.phase for span in spans if span.peak_rss_bytes >= threshold_bytes]
    return phase_by_name[
        next((name for name in reaching_phases if name in candidates), candidates[0])
    ]

"""From markers and readings to spans and phases that tile the child's life without gaps."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from memdiag.measurement.markers import Marker
from memdiag.measurement.observer import Boundary, Reading
from memdiag.measurement.peaks import Peaks
from memdiag.records.profile import PHASES, Memory, PeakKind, Phase, PhaseName, Span

K = TypeVar("K", bound=Hashable)

BETWEEN = "between transformers"
PARTITION = "partition the graph"
_CPU = "CPUExecutionProvider"
_AFTER_PARTITION = "Level2_RuleBasedTransformer"
_MAX_PLAUSIBLE_LAG_S = 5.0
_Segment = tuple[int, float]  # the index of a span, and the seconds of it in a window
_NOTHING = Memory(rss_bytes=0, anonymous_bytes=None, file_bytes=None, shared_bytes=None)


@dataclass(slots=True)
class _Stretch:
    """A span in the making."""

    name: str
    phase: PhaseName
    step: int | None
    start_s: float
    start: Memory
    modified: bool | None = None
    end_s: float = 0.0
    end: Memory = _NOTHING
    largest: int = 0
    """The largest sample that fell into it, in bytes."""


class PhaseClock:
    """Cuts the child's life into spans as its markers and events arrive.

    Times are seconds since the child was started. Where a line is read late, the memory at its
    time is the last sample's if that was nearer. Feed it in the order things happen: `sample`
    between boundaries, `mark` for log lines, `cut` for an event at which the child waits, and
    `stop` at the end.

    Between the graph transformers of level 1 and 2 the runtime partitions the graph: it assigns
    nodes to the execution `providers`, and those other than CPU may compile theirs.
    """

    def __init__(self, start: Memory, providers: Sequence[str] = ()) -> None:
        others = [name.removesuffix("ExecutionProvider") for name in providers if name != _CPU]
        self._partition = f"partition and compile ({', '.join(others)})" if others else PARTITION
        self._may_compile = bool(others)
        self._partitioned = False
        self._done: list[_Stretch] = []
        self._open = _Stretch("interpreter and imports", "start", None, 0.0, start)
        self._window_start_s = 0.0
        self._window: list[_Segment] = []
        self._sampled_s = 0.0
        self._sampled: Reading | None = None
        self._windows: list[tuple[list[_Segment], int | None]] = []
        self._ends_seen: Counter[str] = Counter()
        self.explicit_starts = False
        self.lag_s: float | None = None

    @property
    def phase(self) -> PhaseName:
        """The phase that is open now."""
        return self._open.phase

    @property
    def span(self) -> str:
        """The name of the span that is open now."""
        return self._open.name

    def sample(self, now_s: float, reading: Reading) -> None:
        """Count a sample to the open span."""
        self._sampled_s, self._sampled = now_s, reading
        self._saw(reading.rss_bytes)

    def mark(
        self, markers: Sequence[Marker], origin_epoch_s: float, now_s: float, reading: Boundary
    ) -> None:
        """Cut at each of `markers`, which arrived together at `now_s` with `reading`."""
        for marker in markers:
            lag_s = now_s - (marker.epoch_s - origin_epoch_s)
            # Another time zone than ours, or a clock that was set: the arrival will do.
            plausible = -0.01 <= lag_s <= _MAX_PLAUSIBLE_LAG_S
            # Nor can a line be older than the span that it ends.
            lag_s = min(max(0.0, lag_s), now_s - self._open.start_s) if plausible else 0.0
            phase = self.phase
            self._apply(marker, now_s - lag_s, self._memory_at(now_s - lag_s, now_s, reading))
            if self.phase != phase and lag_s:
                self.lag_s = max(self.lag_s or 0.0, lag_s)
        self._close_window(now_s, reading)

    def cut(self, name: str, phase: PhaseName, now_s: float, reading: Boundary) -> None:
        """Start span `name` now, while the child waits: nothing can slip past this boundary."""
        self._start(name, phase, None, now_s, reading.memory)
        self._close_window(now_s, reading)

    def stop(self, now_s: float, reading: Boundary) -> None:
        """End the open span; `reading` is the last that could be had."""
        self._end_open(now_s, reading.memory)
        self._read_window(reading)

    def spans(self) -> tuple[Span, ...]:
        """Return the spans in order, once stopped."""
        peaks = self._peaks({index: index for index in range(len(self._done))})
        return tuple(_span(stretch, *peaks.of(index)) for index, stretch in enumerate(self._done))

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases that were seen, in their usual order, once stopped."""
        peaks = self._peaks({index: stretch.phase for index, stretch in enumerate(self._done)})
        return tuple(
            _phase(name, stretches, *peaks.of(name))
            for name in PHASES
            if (stretches := [stretch for stretch in self._done if stretch.phase == name])
        )

    def ended(self, name: PhaseName) -> Memory | None:
        """Return the memory where phase `name` last ended, or None where it was not seen."""
        return next((done.end for done in reversed(self._done) if done.phase == name), None)

    def _saw(self, rss_bytes: int) -> None:
        self._open.largest = max(self._open.largest, rss_bytes)

    def _memory_at(self, at_s: float, now_s: float, reading: Boundary) -> Memory:
        """Return the memory at `at_s`: of the present reading and the last sample, the nearer."""
        if self._sampled is None or now_s - at_s <= abs(at_s - self._sampled_s):
            return reading.memory
        return self._sampled.memory

    def _apply(self, marker: Marker, at_s: float, memory: Memory) -> None:
        match marker.kind:
            case "load":
                self._start("load and resolve the graph", "parse", None, at_s, memory)
            case "initialize_session":
                self._start("prepare the graph", "optimize", None, at_s, memory)
            case "transformer_start":
                self.explicit_starts = True
                self._start(marker.name, _phase_of(marker.name), marker.step, at_s, memory)
            case "transformer_end":
                self._end_transformer(marker)
                self._start(BETWEEN, "optimize", None, at_s, memory)
            case "partitioned":
                if self._open.name == BETWEEN:
                    self._open.name = self._partition
                self._partitioned = True
                self._start(BETWEEN, "optimize", None, at_s, memory)
            case "session_state":
                self._start("session state", "initialize", None, at_s, memory)
            case "save_initializers":
                self._start("save initializers", "initialize", None, at_s, memory)
            case "initializers_saved":
                self._start("kernels and prepacking", "prepack", None, at_s, memory)
            case "initialized":
                self._start("hand over the session", "prepack", None, at_s, memory)

    def _end_transformer(self, marker: Marker) -> None:
        stretch = self._open
        self._ends_seen[marker.name] += 1
        if stretch.name == BETWEEN and self._is_partition(marker):
            stretch.name = self._partition
        elif stretch.name == BETWEEN:
            # Its start was not logged: it ran, at the latest, where the transformer before ended.
            stretch.name, stretch.phase = marker.name, _phase_of(marker.name)
            stretch.step = self._ends_seen[marker.name]
        if stretch.name == marker.name:
            stretch.modified = marker.modified

    def _is_partition(self, marker: Marker) -> bool:
        """Return whether the time before the end at `marker` is mostly spent on partitioning.

        Before 1.23 the first transformer's end is the only line after it.
        """
        first = marker.name == _AFTER_PARTITION and self._ends_seen[marker.name] == 1
        return first and self._may_compile and not self._partitioned

    def _start(
        self, name: str, phase: PhaseName, step: int | None, at_s: float, memory: Memory
    ) -> None:
        self._end_open(at_s, memory)
        self._open = _Stretch(name, phase, step, self._done[-1].end_s, memory)
        self._saw(memory.rss_bytes)

    def _end_open(self, at_s: float, memory: Memory) -> None:
        stretch = self._open
        stretch.end_s = max(at_s, stretch.start_s)
        stretch.end = memory
        self._saw(stretch.start.rss_bytes)
        self._saw(memory.rss_bytes)
        index = len(self._done)
        self._window.append((index, stretch.end_s - max(stretch.start_s, self._window_start_s)))
        self._done.append(stretch)

    def _close_window(self, now_s: float, reading: Boundary) -> None:
        """Give the mark that was just read to the spans since the last one, the open one's head
        included."""
        head_s = now_s - max(self._open.start_s, self._window_start_s)
        self._window.append((len(self._done), max(0.0, head_s)))
        self._read_window(reading)
        self._window_start_s = now_s

    def _read_window(self, reading: Boundary) -> None:
        self._windows.append((self._window, reading.peak_rss_bytes))
        self._window = []

    def _peaks(self, keys: Mapping[int, K]) -> Peaks[K]:
        """Return the peaks by `keys`, which says for the index of each span what it counts to."""
        peaks: Peaks[K] = Peaks()
        for index, key in keys.items():
            peaks.saw(key, self._done[index].largest)
        for window, mark in self._windows:
            peaks.window([(keys[index], seconds) for index, seconds in window], mark)
        return peaks


def _phase_of(transformer: str) -> PhaseName:
    return "constant_fold" if transformer == "ConstantFolding" else "optimize"


def _span(stretch: _Stretch, peak_rss_bytes: int, peak_kind: PeakKind) -> Span:
    return Span(
        name=stretch.name,
        phase=stretch.phase,
        step=stretch.step,
        modified=stretch.modified,
        start_s=round(stretch.start_s, 6),
        end_s=round(stretch.end_s, 6),
        start_rss_bytes=stretch.start.rss_bytes,
        net_rss_bytes=stretch.end.rss_bytes - stretch.start.rss_bytes,
        peak_rss_bytes=peak_rss_bytes,
        peak_kind=peak_kind,
    )


def _phase(
    name: PhaseName, stretches: Sequence[_Stretch], peak_rss_bytes: int, peak_kind: PeakKind
) -> Phase:
    return Phase(
        name=name,
        duration_s=round(sum(done.end_s - done.start_s for done in stretches), 6),
        start=stretches[0].start,
        end=stretches[-1].end,
        net_rss_bytes=sum(done.end.rss_bytes - done.start.rss_bytes for done in stretches),
        peak_rss_bytes=peak_rss_bytes,
        peak_kind=peak_kind,
    )

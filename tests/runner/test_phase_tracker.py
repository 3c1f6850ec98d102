"""Phases from markers and readings that the tests make up: no process, no waiting."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from memdiag.records.profile import Memory, PhaseName, Span
from memdiag.runner.log import LogMarker, LogParser, MarkerKind
from memdiag.runner.observer import MemoryReading, SpanBoundary
from memdiag.runner.phase_tracker import BETWEEN_TRANSFORMERS, PhaseTracker

MB = 1_000_000
ORIGIN = 1_000_000.0


def at(megabytes: float, peak: float | None = None) -> SpanBoundary:
    rss = round(megabytes * MB)
    memory = Memory(rss_bytes=rss, anonymous_bytes=rss, file_bytes=0, shared_bytes=0)
    return SpanBoundary(memory, None if peak is None else round(peak * MB))


class Script:
    """Drives a tracker: one call a wake-up, 50 µs after its last marker."""

    def __init__(
        self, providers: Sequence[str] = ("CPUExecutionProvider",), *, has_marks: bool = True
    ) -> None:
        self.tracker = PhaseTracker(at(0).memory, providers)
        self.now_s = 0.0
        self.cut(0.1, "create the session", "parse", at(40, 40 if has_marks else None))

    def cut(self, after_s: float, name: str, phase: str, boundary: SpanBoundary) -> None:
        self.now_s += after_s
        self.tracker.start_span(name, phase, self.now_s, boundary)  # type: ignore[arg-type] # plain text

    def lines(self, *lines: tuple[float, MarkerKind, str], boundary: SpanBoundary) -> None:
        markers = []
        for after_s, kind, name in lines:
            self.now_s += after_s
            modified = True if kind == "transformer_end" else None
            step = 1 if kind == "transformer_start" else None
            markers.append(LogMarker(kind, ORIGIN + self.now_s, name, step, modified))
        self.now_s += 0.00005
        self.tracker.add_markers(markers, ORIGIN, self.now_s, boundary)

    def sample(self, megabytes: float) -> None:
        rss = round(megabytes * MB)
        self.tracker.add_sample(self.now_s, MemoryReading(rss, rss, 0))

    def stop(self, after_s: float, boundary: SpanBoundary) -> None:
        self.now_s += after_s
        self.tracker.finish(self.now_s, boundary)


def newest() -> Script:
    """The tied weight's story on a runtime that logs where a transformer starts."""
    script = Script()
    script.lines((0.001, "load", ""), boundary=at(40, 40))
    script.lines((0.5, "initialize_session", ""), boundary=at(540, 800))
    script.lines((0.2, "transformer_start", "ConstantFolding"), boundary=at(540, 1040))
    script.sample(1500)
    script.lines(
        (0.5, "transformer_end", "ConstantFolding"),
        (0.000004, "transformer_start", "MatMulAddFusion"),
        (0.000004, "transformer_end", "MatMulAddFusion"),
        boundary=at(1040, 1540),
    )
    script.lines((0.003, "session_state", ""), boundary=at(1040, 1040))
    script.lines(
        (0.00002, "save_initializers", ""),
        (0.00002, "initializers_saved", ""),
        boundary=at(1040, 1040),
    )
    script.lines((0.3, "initialized", ""), boundary=at(1540, 1540))
    script.cut(0.001, "first run", "first_run", at(1540, 1540))
    script.cut(0.01, "runs", "steady", at(1550, 1560))
    script.stop(0.1, at(1550, 1550))
    return script


def named(script: Script, name: str) -> Span:
    (span,) = [span for span in script.tracker.spans() if span.name == name]
    return span


def test_every_phase_is_found_with_its_exact_peak() -> None:
    phases = newest().tracker.phases()
    peaks = {
        "start": 40,
        "parse": 800,
        "optimize": 1040,
        "constant_fold": 1540,
        "initialize": 1040,
        "prepack": 1540,
        "first_run": 1560,
        "steady": 1550,
    }
    assert [(phase.name, phase.peak_rss_bytes / MB) for phase in phases] == [*peaks.items()]
    assert {phase.peak_kind for phase in phases} == {"exact"}


def test_spans_tile_the_time_and_their_growth_adds_up() -> None:
    script = newest()
    spans = script.tracker.spans()
    assert spans[0].start_s == 0
    assert spans[-1].end_s == round(script.now_s, 6)
    for before, after in pairwise(spans):
        assert before.end_s == after.start_s
        assert before.start_rss_bytes + before.net_rss_bytes == after.start_rss_bytes
    assert sum(phase.net_rss_bytes for phase in script.tracker.phases()) == 1550 * MB


def test_a_transformer_is_a_span_that_does_not_inherit_its_neighbours_peak() -> None:
    script = newest()
    fold = named(script, "ConstantFolding")
    assert (fold.phase, fold.step, fold.modified) == ("constant_fold", 1, True)
    assert fold.net_rss_bytes == 500 * MB
    assert (fold.peak_rss_bytes, fold.peak_kind) == (1540 * MB, "exact")
    fusion = named(script, "MatMulAddFusion")  # of microseconds
    assert (fusion.peak_rss_bytes, fusion.peak_kind) == (1040 * MB, "sampled")
    # The runtime's time stamps count, not when its lines were read.
    assert fold.end_s - fold.start_s == pytest.approx(0.50005, abs=1e-6)
    assert script.tracker.lag_s == pytest.approx(0.000058, abs=1e-6)


def test_a_mark_that_spans_several_phases_is_the_peak_of_all_of_them() -> None:
    script = Script()
    # A busy machine: all lines arrive together, at the end.
    lines: list[tuple[float, MarkerKind, str]] = [
        (0.1, "initialize_session", ""),
        (0.1, "session_state", ""),
        (0.1, "initializers_saved", ""),
    ]
    script.lines(*lines, boundary=at(60, 200))
    script.cut(0.1, "outside", "start", at(60, 60))
    script.stop(0.1, at(60, 60))
    phases = {phase.name: phase for phase in script.tracker.phases()}
    assert [phases[name].peak_kind for name in ("optimize", "initialize")] == ["sampled"] * 2
    creation: tuple[PhaseName, ...] = ("parse", "optimize", "initialize", "prepack")
    assert script.tracker.common_peak(creation) == (200 * MB, "exact")
    missing: tuple[PhaseName, ...] = ("first_run",)
    assert script.tracker.common_peak(missing) is None


def test_without_start_lines_a_transformer_begins_where_the_one_before_ended() -> None:
    script = Script()
    script.lines((0.5, "initialize_session", ""), boundary=at(540, 800))
    script.lines((0.2, "transformer_end", "EnsureUniqueDQForNodeUnit"), boundary=at(540, 1040))
    script.lines((0.01, "transformer_end", "CommonSubexpressionElimination"), boundary=at(540, 540))
    script.sample(1500)
    script.lines((0.5, "transformer_end", "ConstantFolding"), boundary=at(1040, 1540))
    script.lines((0.01, "transformer_end", "ConstantFolding"), boundary=at(1040, 1040))
    script.stop(0.1, at(1040, 1040))
    assert not script.tracker.explicit_starts
    # What went before the first transformer is the graph's preparation, not that transformer.
    assert [(span.name, span.step) for span in script.tracker.spans()] == [
        ("interpreter and imports", None),
        ("create the session", None),
        ("prepare the graph", None),
        ("CommonSubexpressionElimination", 1),
        ("ConstantFolding", 1),
        ("ConstantFolding", 2),
        (BETWEEN_TRANSFORMERS, None),
    ]
    phases = {phase.name: phase for phase in script.tracker.phases()}
    # The sample of 1500 came while the span's name was not known yet: it is constant folding's.
    assert phases["optimize"].peak_rss_bytes == 1040 * MB
    assert phases["constant_fold"].peak_rss_bytes == 1540 * MB


START = "Applying graph transformer {} on step 1."
END = "GraphTransformer {} modified: 0 with status: OK"
LOOP = "Running graph optimizations in loop 1 time/s (Graph Optimizations Loop Level : 1)"
LAST, FIRST, SECOND = "WhereDummyDq", "Level2_RuleBasedTransformer", "QDQS8ToU8Transformer"
"""The last transformer of level 1, and the first two of level 2."""

LOGS = {
    "1.29": [
        END.format(LAST),
        LOOP,
        *(text.format(name) for name in (FIRST, SECOND) for text in (START, END)),
    ],
    "1.24": [END.format(LAST), LOOP, END.format(FIRST), END.format(SECOND)],
    "1.22": [END.format(LAST), END.format(FIRST), END.format(SECOND), END.format(FIRST)],
}
CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"
COMPILED = "partition and compile (OpenVINO)"


@pytest.mark.parametrize(
    ("release", "providers", "grown"),
    [
        ("1.29", (OPENVINO, CPU), COMPILED),
        ("1.24", (OPENVINO, CPU), COMPILED),
        ("1.22", (OPENVINO, CPU), COMPILED),
        # The log shows where partitioning ends, but with CPU alone nothing is compiled.
        ("1.29", (CPU,), "partition the graph"),
        ("1.24", (CPU,), "partition the graph"),
        ("1.22", (CPU,), FIRST),
    ],
)
def test_no_transformer_is_blamed_for_what_a_provider_compiles(
    release: str, providers: tuple[str, ...], grown: str
) -> None:
    script = Script(providers)
    script.lines((0.5, "initialize_session", ""), boundary=at(40, 40))
    log, rss = LogParser("secret"), 40
    for text in LOGS[release]:
        line = f"2026-11-22 17:33:49.695525824 [I:onnxruntime:, file.cc:1 Function] {text}\n"
        (marker,) = log.feed(line.encode())
        assert isinstance(marker, LogMarker)
        script.now_s += 0.1
        timed = marker._replace(epoch_s=ORIGIN + script.now_s)
        script.tracker.add_markers([timed], ORIGIN, script.now_s, at(rss, rss))
        rss = 240  # after the last transformer of level 1, the provider compiles
    script.stop(0.1, at(240, 240))
    spans = script.tracker.spans()
    growing = [
        (span.name, span.phase, span.modified) for span in spans if span.net_rss_bytes == 200 * MB
    ]
    assert growing == [(grown, "optimize", None if grown != FIRST else False)]
    names = [span.name for span in spans]
    assert names.count(grown) == 1 + (grown == FIRST)
    assert {FIRST, SECOND} <= {*names}


@pytest.fixture
def assigned() -> Script:
    """A graph of which OpenVINO's provider has chosen parts."""
    script = Script((OPENVINO, CPU))
    script.lines((0.5, "initialize_session", ""), boundary=at(40, 40))
    script.lines((0.1, "transformer_end", LAST), boundary=at(40, 40))
    script.lines((0.2, "provider_assigned", ""), boundary=at(140, 140))
    return script


def test_each_step_of_openvinos_provider_is_a_span(assigned: Script) -> None:
    script = assigned
    for growth in (0, 500):  # two parts of the graph
        script.lines((0.1, "provider_compiles", ""), boundary=at(240 + growth, 240 + growth))
        script.lines((0.3, "provider_compiled", ""), boundary=at(540 + growth, 640 + growth))
    script.lines((0.01, "partitioned", ""), boundary=at(1040, 1040))
    script.lines((0.01, "transformer_end", SECOND), boundary=at(1040, 1040))
    script.stop(0.1, at(1040, 1040))
    spans = script.tracker.spans()
    names = [span.name for span in spans]
    part = ["copy a subgraph (OpenVINO)", "compile (OpenVINO)"]
    steps = ["partition the graph (OpenVINO)", *part, *part, "partition the graph"]
    assert names[names.index("prepare the graph") + 1 : names.index(SECOND)] == steps
    compiled = [span.net_rss_bytes for span in spans if "compile" in span.name]
    assert compiled == [300 * MB] * 2
    assert {span.phase for span in spans[2:]} == {"optimize"}


def test_a_provider_that_fails_while_it_compiles_does_so_in_that_step(assigned: Script) -> None:
    assigned.lines((0.1, "provider_compiles", ""), boundary=at(140, 140))
    assigned.stop(0.1, at(240, 240))
    assert assigned.tracker.spans()[-1].name == "compile (OpenVINO)"


def test_a_clock_in_another_time_zone_falls_back_on_arrival() -> None:
    script = Script()
    marker = LogMarker("initialize_session", ORIGIN + 0.3 + 7200)
    script.tracker.add_markers([marker], ORIGIN, 0.5, at(540, 800))
    script.stop(0.6, at(540, 540))
    assert script.tracker.spans()[-1].start_s == 0.5
    assert script.tracker.lag_s is None


def test_without_marks_every_peak_is_the_largest_sample() -> None:
    script = Script(has_marks=False)
    script.sample(700)
    script.stop(0.1, at(540))
    parse = script.tracker.phases()[-1]
    assert (parse.peak_rss_bytes, parse.peak_kind) == (700 * MB, "sampled")


def test_a_line_that_was_read_late_takes_the_nearer_sample() -> None:
    script = Script()
    script.now_s = 0.6
    script.sample(540)
    marker = LogMarker("initialize_session", ORIGIN + 0.6005)
    # Read 10 ms later, when what follows has already allocated.
    script.tracker.add_markers([marker], ORIGIN, 0.6105, at(700, 700))
    script.now_s = 0.6105
    script.stop(0.1, at(700, 700))
    parse, optimize = script.tracker.phases()[1:]
    assert (parse.end.rss_bytes, optimize.start.rss_bytes) == (540 * MB, 540 * MB)
    # The mark may be either's: it is claimed for neither beyond what was seen.
    assert (parse.peak_rss_bytes, parse.peak_kind) == (540 * MB, "sampled")

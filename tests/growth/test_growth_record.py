"""The record of growth: its figures, and the samples that are left of a long series."""

from collections.abc import Mapping

import msgspec
import pytest

from memdiag.api.leak_program import (
    TOO_SHORT,
    has_failed,
    visible_growth,
    with_pause_advice,
    with_session_cause,
)
from memdiag.growth.growth_record import MAX_RUN_SAMPLES, growth_record
from memdiag.growth.observation import KeptValues
from memdiag.growth.verdict import kept_values
from memdiag.records.growth import GrowingBlocks, Growth, RunSample, Verdict
from memdiag.units import MIB
from tests.growth.histories import moment, observed, owned_moment
from tests.programs.rules.records import PID, findings, program, runs, session
from tests.reports import growths


def test_a_peak_of_one_run_stays_among_the_samples() -> None:
    count, peak = 3 * MAX_RUN_SAMPLES, 7001
    samples = tuple(
        RunSample(run=run, resident_bytes=(run == peak), anonymous_bytes=0, duration_s=0.001)
        for run in range(1, count + 1)
    )
    growth = growth_record(
        observed([moment(run) for run in range(1, 20)], samples=samples),
        subject="m.onnx",
        kind="model",
        runs=count,
        warm_up_runs=1,
        warm_up_s=0.0,
        onnxruntime=None,
    )
    kept_runs = [sample.run for sample in growth.samples]
    assert len(kept_runs) <= MAX_RUN_SAMPLES + 2
    assert peak in kept_runs
    assert (kept_runs[0], kept_runs[-1]) == (1, count)
    assert (growth.verdict, growth.slope_bytes_per_run) == ("flat", 0.0)


@pytest.mark.parametrize(
    ("code", "failed"),
    [(None, False), (0, False), (-2, False), (143, False), (3, True), (-11, True)],
)
def test_a_program_that_was_interrupted_has_not_failed(code: int | None, failed: bool) -> None:
    assert has_failed(code) == failed


def grown_blocks(*sizes: int, content: str = "") -> list[GrowingBlocks]:
    return [
        GrowingBlocks(block_bytes=size, blocks=50, blocks_per_run=1.0, content=content)
        for size in sizes
    ]


@pytest.mark.parametrize(
    ("alive", "content", "kept"),
    [
        ({"input 'x'": (40, 40), "output 'y'": (40, 40)}, "", "output 'y'"),
        ({"output 'y'": (0, 40), "input 'x'": (20, 40)}, "", "input 'x'"),
        # One of two outputs.
        ({"output 'y'": (0, 40), "output 'z'": (40, 40)}, "", "output 'z'"),
        ({"output 'y'": (19, 40)}, "", ""),
        ({"output 'y'": (9, 9)}, "", ""),  # too few to tell
        ({"output 'y'": (0, 40)}, "output 'y'", "copies of output 'y'"),
        ({}, "", ""),
    ],
)
def test_values_are_kept_if_half_of_those_of_earlier_runs_or_copies_are_alive(
    alive: dict[str, tuple[int, int]], content: str, kept: str
) -> None:
    blocks = grown_blocks(4096, content=content) + grown_blocks(64, content="input 'n'")
    assert kept_values(alive, blocks).names == kept


ALIVE = dict.fromkeys(("output 'p'", "output 'state'", "input 'x'"), (40, 40))
INPUT = {"input 'x'": (40, 40)}
WITHOUT_INPUT = "output 'state' (1 KiB) and output 'p' (4 B)"


@pytest.mark.parametrize(
    ("alive", "sizes", "grown", "kept"),
    [
        (ALIVE, (4, 1024, 512), (600,), WITHOUT_INPUT),
        # An input that is kept as well, and one of many that all are there since the start.
        (ALIVE, (4, 1024, 1536), (1552,), f"input 'x' (1.5 KiB) and {WITHOUT_INPUT}"),
        (ALIVE, (4, 1024, 1536), (), WITHOUT_INPUT),
        # Blocks of other sizes grew by as much.
        (ALIVE, (4, 1024, 1536), (776, 776), WITHOUT_INPUT),
        ({**ALIVE, "output 'p'": (0, 40)}, (4, 1024, 512), (), "output 'state'"),
        # All inputs are there since the start, or come one by one.
        (INPUT, (4, 1024, 1536), (600,), ""),
        (INPUT, (4, 1024, 1536), (1552,), "input 'x'"),
        (ALIVE, (), (), "output 'p' and output 'state'"),
    ],
)
def test_kept_values_are_named_with_their_sizes(
    alive: dict[str, tuple[int, int]], sizes: tuple[int, ...], grown: tuple[int, ...], kept: str
) -> None:
    named_sizes = dict(zip(ALIVE, sizes, strict=False))
    assert kept_values(alive, grown_blocks(*grown), named_sizes).names == kept


MANY = {f"output {number}": 1000 + number for number in range(50)}


@pytest.mark.parametrize(
    ("alive", "sizes", "content", "kept"),
    [
        (
            dict.fromkeys(MANY, (40, 40)),
            MANY,
            "",
            KeptValues("output 49 (1 KiB) and at least 49 other outputs", 51_225 + 50 * 512),
        ),
        # Of half of the runs.
        ({"output 'y'": (30, 60)}, {"output 'y'": 4096}, "", KeptValues("output 'y'", 2048 + 256)),
        # Values of an unknown size, such as OrtValues.
        ({"output 'y'": (60, 60)}, {}, "", KeptValues("output 'y'", None)),
        ({}, {}, "input 'x'", KeptValues("copies of input 'x'", 8192)),
    ],
)
def test_kept_values_have_their_bytes_of_a_run(
    alive: dict[str, tuple[int, int]], sizes: Mapping[str, int], content: str, kept: KeptValues
) -> None:
    assert kept_values(alive, grown_blocks(4096, 4096, content=content), sizes) == kept


def readings(heap: list[int | None], arena: list[int | None] | None = None) -> Growth:
    """Return growth with `heap` MiB in use at each of a few readings; None where it failed."""
    used = arena or [None if size is None else 0 for size in heap]
    moments = tuple(
        owned_moment(
            10 * number,
            60 * MIB,
            heap_bytes=None if size is None else size * MIB,
            arena_used_bytes=None if used_mib is None else used_mib * MIB,
        )
        for number, (size, used_mib) in enumerate(zip(heap, used, strict=True))
    )
    return msgspec.structs.replace(growths.flat(), moments=moments, advice="mend it")


@pytest.mark.parametrize(
    ("heap", "arena", "text"),
    [
        ([1, 2, 3, 6], None, ". It may leak: malloc blocks in use grew by 5.0 MiB in 30 runs"),
        ([1, 2, 2, 6], None, ""),  # a step
        ([1, 2, 6], None, ""),
        ([1, 1, 1, 1], [None, 61, 62, 63], ""),  # the arena was not read at first
    ],
)
def test_growth_at_each_of_a_few_readings_is_stated(
    heap: list[int | None], arena: list[int | None] | None, text: str
) -> None:
    assert visible_growth(readings(heap, arena)) == text


@pytest.mark.parametrize(
    ("growth", "advice"),
    [
        pytest.param(
            readings([1, None, 1, 1]),
            "observe it again with --pause: at 1 of 4 readings its memory changed while it was"
            " read. Mend it",
            id="readings failed",
        ),
        pytest.param(readings([1, None, 1, 1, 1, 1, 1]), "mend it", id="one of many failed"),
        pytest.param(
            msgspec.structs.replace(readings([1, 1]), verdict="leak", owner="heap"),
            "observe it again",
            id="kept values may have been missed",
        ),
        pytest.param(
            msgspec.structs.replace(readings([1, 1]), verdict="kept", owner="heap"),
            "mend it",
            id="kept values were seen",
        ),
        pytest.param(
            msgspec.structs.replace(readings([1, 1]), message=TOO_SHORT),
            "observe it again with --pause, which stops it",
            id="too few readings",
        ),
    ],
)
def test_a_pause_is_advised_where_more_would_be_seen(growth: Growth, advice: str) -> None:
    paused = with_pause_advice(growth)
    assert paused.advice.startswith(advice)
    assert paused.message == ("too few readings for a verdict" if growth.message else "")


@pytest.mark.parametrize(
    ("heap", "verdict"),
    [
        ([None] * 6, "undecided"),
        ([1, None, None, None, None, 1], "undecided"),
        ([1] * 6, "flat"),
        ([1, 1, None, 1, 1, 1, 1, 1], "flat"),
    ],
)
def test_nothing_is_called_flat_whose_blocks_could_not_be_counted(
    heap: list[int | None], verdict: Verdict
) -> None:
    paused = with_pause_advice(readings(heap))
    assert paused.verdict == verdict
    assert bool(paused.message) == (verdict == "undecided")
    assert paused.advice.startswith("observe it again with --pause") or verdict == "flat"


@pytest.mark.parametrize(
    ("verdict", "pid", "runs_each", "is_named"),
    [
        ("retained", PID, 1, True),
        ("kept", PID, 1, True),
        ("flat", PID, 1, False),
        ("retained", PID + 1, 1, False),
        ("retained", PID, 100, False),
    ],
)
def test_a_session_for_each_call_is_named(
    verdict: str, pid: int, runs_each: int, is_named: bool
) -> None:
    calls = [
        session(
            number,
            created_at="app.py:7",
            created_s=10.0 * number,
            shapes=[runs(runs_each)],
            last_run_s=10.0 * number + 1,
        )
        for number in range(1, 7)
    ]
    run = program(*calls)
    run = msgspec.structs.replace(run, findings=tuple(findings("session-per-call", run)))
    growth = growths.VERDICTS[verdict]()
    named = with_session_cause(growth, run, pid)
    assert ("6 sessions of m.onnx were created at app.py:7" in named.sentence) == is_named
    assert named.sentence.startswith(growth.sentence)
    assert ("Create the session once" in named.advice) == is_named

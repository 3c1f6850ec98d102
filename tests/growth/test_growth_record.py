"""The record of growth: its figures, and the samples that are left of a long series."""

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
from memdiag.growth.observation import GrowthObservation, KeptValues
from memdiag.growth.verdict import kept_values
from memdiag.records.growth import GrowingBlocks, Growth, Moment, OwnerBytes, RunSample, Verdict
from memdiag.units import MIB
from tests.programs.rules.records import PID, findings, program, runs, session
from tests.reports import growths


def test_a_peak_of_one_run_stays_among_the_samples() -> None:
    count, peak = 3 * MAX_RUN_SAMPLES, 7001
    samples = tuple(
        RunSample(
            run=run,
            resident_bytes=50 * MIB + (run == peak),
            anonymous_bytes=40 * MIB,
            duration_s=0.001,
        )
        for run in range(1, count + 1)
    )
    moments = tuple(
        Moment(run=run, time_s=run / 1000, resident_bytes=50 * MIB) for run in range(1, 20)
    )
    observation = GrowthObservation(
        moments=moments, unit="run", warm_up=1, samples=samples, caller_keeps_nothing=True
    )
    growth = growth_record(
        observation,
        subject="m.onnx",
        kind="model",
        runs=count,
        warm_up_runs=1,
        warm_up_s=0.0,
        onnxruntime=None,
    )
    runs = [sample.run for sample in growth.samples]
    assert len(runs) <= MAX_RUN_SAMPLES + 2
    assert peak in runs
    assert (runs[0], runs[-1]) == (1, count)
    assert (growth.verdict, growth.slope_bytes_per_run) == ("flat", 0.0)


@pytest.mark.parametrize(
    ("code", "failed"),
    [(None, False), (0, False), (-2, False), (143, False), (3, True), (-11, True)],
)
def test_a_program_that_was_interrupted_has_not_failed(code: int | None, failed: bool) -> None:
    assert has_failed(code) == failed


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
    blocks = [
        GrowingBlocks(block_bytes=4096, blocks=100, blocks_per_run=1.0, content=content),
        GrowingBlocks(block_bytes=64, blocks=100, blocks_per_run=1.0, content="input 'n'"),
    ]
    assert kept_values(alive, blocks).names == kept


ALIVE = dict.fromkeys(("output 'p'", "output 'state'", "input 'x'"), (40, 40))


@pytest.mark.parametrize(
    ("alive", "sizes", "grown", "kept"),
    [
        (ALIVE, (4, 1024, 512), (600,), "output 'state' (1 KiB) and output 'p' (4 B)"),
        # An input that is kept as well, and one of many that all are there since the start.
        (
            *(ALIVE, (4, 1024, 1536), (1552,)),
            "input 'x' (1.5 KiB) and output 'state' (1 KiB) and output 'p' (4 B)",
        ),
        (ALIVE, (4, 1024, 1536), (), "output 'state' (1 KiB) and output 'p' (4 B)"),
        # Blocks of other sizes grew by as much.
        (ALIVE, (4, 1024, 1536), (776, 776), "output 'state' (1 KiB) and output 'p' (4 B)"),
        ({**ALIVE, "output 'p'": (0, 40)}, (4, 1024, 512), (), "output 'state'"),
        # All inputs are there since the start, or come one by one.
        ({"input 'x'": (40, 40)}, (4, 1024, 1536), (600,), ""),
        ({"input 'x'": (40, 40)}, (4, 1024, 1536), (1552,), "input 'x'"),
        (ALIVE, (), (), "output 'p' and output 'state'"),
    ],
)
def test_kept_values_are_named_with_their_sizes(
    alive: dict[str, tuple[int, int]], sizes: tuple[int, ...], grown: tuple[int, ...], kept: str
) -> None:
    blocks = [GrowingBlocks(block_bytes=size, blocks=100, blocks_per_run=1.0) for size in grown]
    assert kept_values(alive, blocks, dict(zip(ALIVE, sizes, strict=False))).names == kept


@pytest.mark.parametrize(
    ("alive", "sizes", "content", "kept"),
    [
        (
            {f"output {number}": (40, 40) for number in range(50)},
            {f"output {number}": 1000 + number for number in range(50)},
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
    alive: dict[str, tuple[int, int]], sizes: dict[str, int], content: str, kept: KeptValues
) -> None:
    blocks = [
        GrowingBlocks(block_bytes=size, blocks=50, blocks_per_run=1.0, content=content)
        for size in (4096, 4096)
    ]
    assert kept_values(alive, blocks, sizes) == kept


def readings(heap: list[int | None]) -> Growth:
    moments = tuple(
        Moment(
            run=10 * number,
            time_s=1.0 * number,
            resident_bytes=60 * MIB,
            owners=(OwnerBytes(kind="other_heap", bytes=60 * MIB),),
            heap_bytes=None if size is None else size * MIB,
            arena_used_bytes=None if size is None else 0,
        )
        for number, size in enumerate(heap)
    )
    return msgspec.structs.replace(growths.flat(), moments=moments, advice="mend it")


@pytest.mark.parametrize(
    ("heap", "text"),
    [
        ([1, 2, 3, 6], ". It may leak: malloc blocks in use grew by 5.0 MiB in 30 runs"),
        ([1, 2, 2, 6], ""),  # a step
        ([1, 2, 6], ""),
    ],
)
def test_growth_at_each_of_a_few_readings_is_stated(heap: list[int | None], text: str) -> None:
    assert visible_growth(readings(heap)) == text


def test_an_arena_that_was_not_read_at_first_did_not_grow() -> None:
    growth = readings([1, 1, 1, 1])
    moments = tuple(
        msgspec.structs.replace(moment, arena_used_bytes=size)
        for moment, size in zip(growth.moments, (None, 61 * MIB, 62 * MIB, 63 * MIB), strict=True)
    )
    assert visible_growth(msgspec.structs.replace(growth, moments=moments)) == ""


@pytest.mark.parametrize(
    ("heap", "advice"),
    [
        (
            [1, None, 1, 1],
            "observe it again with --pause: at 1 of 4 readings its memory changed while it was"
            " read. Mend it",
        ),
        ([1, None, 1, 1, 1, 1, 1], "mend it"),
    ],
)
def test_a_pause_is_advised_where_readings_failed(heap: list[int | None], advice: str) -> None:
    assert with_pause_advice(readings(heap)).advice == advice


@pytest.mark.parametrize(("verdict", "is_advised"), [("leak", True), ("kept", False)])
def test_a_pause_is_advised_where_values_that_are_kept_may_have_been_missed(
    verdict: Verdict, is_advised: bool
) -> None:
    growth = msgspec.structs.replace(readings([1, 1]), verdict=verdict, owner="heap")
    assert with_pause_advice(growth).advice.startswith("observe it again") == is_advised


def test_a_pause_is_advised_where_there_were_too_few_readings() -> None:
    growth = msgspec.structs.replace(readings([1, 1]), message=TOO_SHORT)
    found = with_pause_advice(growth)
    assert found.advice.startswith("observe it again with --pause, which stops it")
    assert found.message == "too few readings for a verdict"


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
    growth = msgspec.structs.replace(readings(heap), verdict="flat", owner=None)
    found = with_pause_advice(growth)
    assert found.verdict == verdict
    assert bool(found.message) == (verdict == "undecided")
    assert found.advice.startswith("observe it again with --pause") or verdict == "flat"


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

"""Growth until the end of a recording: series with a known answer, and near misses."""

import random
from collections.abc import Callable
from itertools import accumulate

import msgspec
import pytest

from memdiag.growth.recorded_growth import RecordedGrowth, recorded_growth
from memdiag.records.profile import Samples
from memdiag.records.run import ProgramRun, ProgramSession
from tests.reports import runs
from tests.reports.runs import MIB

END_S = 60
Memory = Callable[[float], float]
_RANDOM = random.Random(0)
INPUTS = [_RANDOM.random() for _ in range(601)]  # sizes of inputs, by tenths of seconds
LARGEST = list(accumulate(INPUTS, max))


def recorded(mebibytes: Memory, *, until_s: float = END_S) -> ProgramRun:
    """Return 60 s of a watched process, ten samples a second; `mebibytes` is its memory by time."""
    times = [number / 10 for number in range(int(10 * until_s) + 1)]
    sizes = [int(mebibytes(time_s) * MIB) for time_s in times]
    process = msgspec.structs.replace(
        runs.process(100, 1),
        ended_s=None,
        samples=Samples(
            t_s=tuple(times),
            rss_bytes=tuple(sizes),
            anonymous_bytes=tuple(sizes),
            file_and_shared_bytes=(0,) * len(sizes),
        ),
    )
    return runs.run(processes=(process,), is_watched=True, duration_s=float(END_S))


def found(run: ProgramRun) -> RecordedGrowth:
    growth = recorded_growth(run)
    assert growth is not None
    return growth


GROWING: dict[str, tuple[Memory, float, float]] = {
    "straight": (lambda t: 200 + 2 * t, 2, 60),
    "small steps": (lambda t: 200 + 2 * int(t), 2, 60),
    "noise of runs": (lambda t: 200 + 2 * t + 60 * INPUTS[int(10 * t)], 2, 60),
    "with a step": (lambda t: 200 + 2 * t + 40 * (t > 20), 2, 60),
    "after the warm-up": (lambda t: 50 + 150 * min(t, 4) / 4 + t, 1, 40),
    "slow": (lambda t: 200 + 0.3 * t, 0.3, 60),
}
NOT_GROWING: dict[str, Memory] = {
    "flat": lambda t: 200,
    "noise of runs": lambda t: 200 + 60 * INPUTS[int(10 * t)],
    "one step": lambda t: 200 + 150 * (t > 30),
    "a late step": lambda t: 200 + 150 * (t > 57),
    "steps": lambda t: 200 + 50 * (t > 20) + 50 * (t > 40) + 50 * (t > 55),
    "new largest inputs": lambda t: 200 + 150 * LARGEST[int(10 * t)],
    "warm-up": lambda t: 200 - 100 * 2 ** (-t / 8),
    "a cache that fills up": lambda t: 200 + 4 * min(t, 40),
    "comes and goes": lambda t: 200 + 4 * (t % 35),
    "falls": lambda t: 500 - 2 * t,
    "too little": lambda t: 200 + 0.1 * t,
}


@pytest.mark.parametrize(("mebibytes", "rate", "seconds"), GROWING.values(), ids=GROWING)
def test_memory_that_grows_until_the_end_is_found(
    mebibytes: Memory, rate: float, seconds: float
) -> None:
    growth = found(recorded(mebibytes))
    assert growth.rate(growth.seconds) / MIB == pytest.approx(rate, rel=0.4)
    assert growth.seconds == pytest.approx(seconds)
    assert growth.runs == 0


@pytest.mark.parametrize("mebibytes", NOT_GROWING.values(), ids=NOT_GROWING)
def test_memory_that_does_not_grow_on_is_not(mebibytes: Memory) -> None:
    assert recorded_growth(recorded(mebibytes)) is None


def test_a_short_recording_tells_nothing() -> None:
    assert recorded_growth(recorded(lambda t: 200 + 20 * t, until_s=3)) is None
    assert recorded_growth(recorded(lambda t: 200 + 20 * t, until_s=5)) is not None


def test_a_process_that_ended_is_judged_until_then() -> None:
    def ended(run: ProgramRun) -> ProgramRun:
        (process,) = run.processes
        process = msgspec.structs.replace(process, ended_s=60.0)
        return msgspec.structs.replace(run, processes=(process,))

    grows = ended(recorded(lambda t: 200 + 2 * t - 250 * (t > 58)))
    assert found(grows).seconds == pytest.approx(58)
    assert recorded_growth(ended(recorded(lambda t: 200 + 2 * min(t, 40)))) is None


def ran(
    number: int, created_s: float, first_run_s: float, last_run_s: float, *, run_count: int
) -> ProgramSession:
    """Return a session that ran from `first_run_s` to `last_run_s`."""
    times = {"created_s": created_s, "first_run_s": first_run_s, "last_run_s": last_run_s}
    session = runs.session(number, run_count=run_count)
    return msgspec.structs.replace(session, creation_s=0.5, **times)


def program(mebibytes: Memory, run_count: int, last_run_s: float) -> ProgramRun:
    """Return a program that runs its session from 10 s on."""
    session = ran(1, 9.0, 10.0, last_run_s, run_count=run_count)
    return msgspec.structs.replace(recorded(mebibytes), sessions=(session,), is_watched=False)


def test_a_program_is_judged_by_its_runs() -> None:
    grows = program(lambda t: 100 + 12 * min(max(t - 10, 0), 40) - 300 * (t > 55), 40, 50.0)
    growth = found(grows)
    assert (growth.runs, growth.seconds) == (40, 40.0)
    assert growth.rate(growth.runs) / MIB == pytest.approx(12, rel=0.05)
    few = program(lambda t: 100 + 12 * t, 10, 50.0)
    before_and_after = program(lambda t: 100 + 12 * min(t, 10) + 12 * max(t - 50, 0), 40, 50.0)
    assert recorded_growth(few) is None
    assert recorded_growth(before_and_after) is None


@pytest.mark.parametrize(
    ("mebibytes", "sessions"),
    [
        pytest.param(lambda t: 200 + 100 * (t > 20) + 2 * min(t, 40), None, id="until the last"),
        pytest.param(lambda t: 200 + 2 * t, (3,), id="in the last, too"),
    ],
)
def test_growth_is_that_of_runs_after_the_last_creation(
    mebibytes: Memory, sessions: tuple[int, ...] | None
) -> None:
    """Three sessions one after another, each with 50 runs: each takes memory of its own."""
    made = [
        ran(number, start_s, start_s + 1, start_s + 19, run_count=50)
        for number, start_s in ((1, 0.0), (2, 20.0), (3, 40.0))
    ]
    run = msgspec.structs.replace(recorded(mebibytes), sessions=tuple(made), is_watched=False)
    growth = recorded_growth(run)
    assert (growth and growth.sessions) == sessions
    if growth is not None:
        assert growth.runs == pytest.approx(50, rel=0.1)


def test_sessions_that_are_created_again_and_again_are_judged_together() -> None:
    made = [
        ran(number, 2.0 * number, 2.0 * number + 0.6, 2.0 * number + 1.9, run_count=5)
        for number in range(1, 25)
    ]
    run = recorded(lambda t: 200 + 2 * t)
    run = msgspec.structs.replace(run, sessions=tuple(made), is_watched=False)
    assert found(run).sessions == tuple(range(1, 25))


def test_of_several_processes_that_with_most_growth_is_told() -> None:
    (less,), (more,) = (
        recorded(lambda t, rate=rate: 200 + rate * t).processes  # type: ignore[misc]
        for rate in (1, 3)
    )
    more = msgspec.structs.replace(more, pid=200)
    run = msgspec.structs.replace(recorded(lambda t: 0), processes=(less, more))
    assert found(run).process.pid == 200

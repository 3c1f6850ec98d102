"""Growth until the end of a recording: series with a known answer, and near misses."""

import random
from collections.abc import Callable
from itertools import accumulate

import msgspec
import pytest

from memdiag.growth.recorded_growth import RecordedGrowth, recorded_growth
from memdiag.records.profile import Samples
from memdiag.records.run import ProgramRun
from tests.reports import runs
from tests.reports.runs import MIB

END_S = 60
_RANDOM = random.Random(0)
INPUTS = [_RANDOM.random() for _ in range(601)]  # sizes of inputs, by tenths of seconds
LARGEST = list(accumulate(INPUTS, max))


def recorded(mebibytes: Callable[[float], float], *, until_s: float = END_S) -> ProgramRun:
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
            file_bytes=(0,) * len(sizes),
        ),
    )
    return runs.run(processes=(process,), is_watched=True, duration_s=float(END_S))


def found(run: ProgramRun) -> RecordedGrowth:
    growth = recorded_growth(run)
    assert growth is not None
    return growth


def warms_up(t_s: float) -> float:
    return 200 - 100 * 2 ** (-t_s / 8)


@pytest.mark.parametrize(
    ("mebibytes", "rate", "seconds"),
    [
        pytest.param(lambda t: 200 + 2 * t, 2, 60, id="straight"),
        pytest.param(lambda t: 200 + 2 * int(t), 2, 60, id="small steps"),
        pytest.param(lambda t: 200 + 2 * t + 60 * INPUTS[int(10 * t)], 2, 60, id="noise of runs"),
        pytest.param(lambda t: 200 + 2 * t + 40 * (t > 20), 2, 60, id="with a step"),
        pytest.param(lambda t: 50 + 150 * min(t, 4) / 4 + t, 1, 40, id="after the warm-up"),
        pytest.param(lambda t: 200 + 0.3 * t, 0.3, 60, id="slow"),
    ],
)
def test_memory_that_grows_until_the_end_is_found(
    mebibytes: Callable[[float], float], rate: float, seconds: float
) -> None:
    growth = found(recorded(mebibytes))
    assert growth.rate(growth.seconds) / MIB == pytest.approx(rate, rel=0.4)
    assert growth.seconds == pytest.approx(seconds)
    assert growth.runs == 0


@pytest.mark.parametrize(
    "mebibytes",
    [
        pytest.param(lambda t: 200, id="flat"),
        pytest.param(lambda t: 200 + 60 * INPUTS[int(10 * t)], id="noise of runs"),
        pytest.param(lambda t: 200 + 150 * (t > 30), id="one step"),
        pytest.param(lambda t: 200 + 150 * (t > 57), id="a late step"),
        pytest.param(lambda t: 200 + 50 * (t > 20) + 50 * (t > 40) + 50 * (t > 55), id="steps"),
        pytest.param(lambda t: 200 + 150 * LARGEST[int(10 * t)], id="new largest inputs"),
        pytest.param(warms_up, id="warm-up"),
        pytest.param(lambda t: 200 + 4 * min(t, 40), id="a cache that fills up"),
        pytest.param(lambda t: 200 + 4 * (t % 35), id="comes and goes"),
        pytest.param(lambda t: 500 - 2 * t, id="falls"),
        pytest.param(lambda t: 200 + 0.1 * t, id="too little"),
    ],
)
def test_memory_that_does_not_grow_on_is_not(mebibytes: Callable[[float], float]) -> None:
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


def program(mebibytes: Callable[[float], float], run_count: int, last_run_s: float) -> ProgramRun:
    """Return a program that runs its session from 10 s on."""
    session = runs.session(1, run_count=run_count)
    session = msgspec.structs.replace(session, first_run_s=10.0, last_run_s=last_run_s)
    run = recorded(mebibytes)
    return msgspec.structs.replace(run, sessions=(session,), is_watched=False)


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
    mebibytes: Callable[[float], float], sessions: tuple[int, ...] | None
) -> None:
    """Three sessions one after another, each with 50 runs: each takes memory of its own."""
    made = [
        msgspec.structs.replace(
            runs.session(number, run_count=50),
            created_s=start_s,
            creation_s=1.0,
            first_run_s=start_s + 1,
            last_run_s=start_s + 19,
        )
        for number, start_s in ((1, 0.0), (2, 20.0), (3, 40.0))
    ]
    run = msgspec.structs.replace(recorded(mebibytes), sessions=tuple(made), is_watched=False)
    growth = recorded_growth(run)
    assert (growth and growth.sessions) == sessions
    if growth is not None:
        assert growth.runs == pytest.approx(50, rel=0.1)


def test_sessions_that_are_created_again_and_again_are_judged_together() -> None:
    made = [
        msgspec.structs.replace(
            runs.session(number, run_count=5),
            created_s=2.0 * number,
            creation_s=0.5,
            first_run_s=2.0 * number + 0.6,
            last_run_s=2.0 * number + 1.9,
        )
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

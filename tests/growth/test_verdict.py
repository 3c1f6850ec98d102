"""Verdicts on histories with a known answer: what grows, how, and what nearly looks like it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from memdiag.growth.observation import KeptValues
from memdiag.growth.verdict import GrowthJudgement, growth_judgement
from memdiag.records.growth import LargestInput, Moment, OwnerBytes, RunSample
from memdiag.units import MIB
from tests.growth.histories import observed

PATTERN_BYTES = 3360
RUNS = [1, *range(100, 1001, 75)]  # 14 moments; the warm-up ends at 100


def moment(
    run: int,
    *,
    heap: int = 20 * MIB,
    arena: int = MIB,
    slack: int = 0,
    retained: int = 0,
    python: int = 20 * MIB,
    unnamed: int = 0,
    files: int = 0,
    mapped: int = 0,
    sessions: int | None = None,
    patterns: int = 0,
    largest: int = 0,
) -> Moment:
    owners = {
        "other_heap": heap + PATTERN_BYTES * patterns,
        "arena": arena + slack,
        "allocator_retained": retained,
        "python": python,
        "unnamed": unnamed,
        "mapped_files": files,
    }
    return Moment(
        run=run,
        time_s=run / 100,
        resident_bytes=sum(owners.values()),
        owners=tuple(OwnerBytes(kind=kind, bytes=size) for kind, size in owners.items()),  # type: ignore[arg-type]
        heap_bytes=heap,
        heap_blocks=heap // 100,
        patterns=patterns,
        pattern_bytes=PATTERN_BYTES * patterns,
        arena_used_bytes=arena,
        arena_slack_bytes=slack,
        arenas=1,
        mapped_bytes=mapped,
        sessions=sessions,
        largest_input=LargestInput(run=1, bytes=largest, shapes={}) if largest else None,
    )


Figure = Callable[[int], int]


def history(**figures: Figure) -> list[Moment]:
    """Return the moments at `RUNS`, whose `figures` are functions of the run."""
    return [moment(run, **{name: value(run) for name, value in figures.items()}) for run in RUNS]


def judgement(*, caller_keeps_nothing: bool = True, **options: Any) -> GrowthJudgement:
    """Judge the history of the figures in `options`; the others are fields of the observation."""
    figures = {name: option for name, option in options.items() if callable(option)}
    fields = {name: option for name, option in options.items() if not callable(option)}
    observation = observed(history(**figures), caller_keeps_nothing=caller_keeps_nothing, **fields)
    return growth_judgement(observation)


def steps_to(limit: int, until: int) -> Figure:
    """Growth by equal steps that ends with run `until`."""
    return lambda run: limit * min(run, until) // until


@pytest.mark.parametrize(
    ("figure", "values", "verdict", "owner"),
    [
        ("heap", lambda run: 20 * MIB + 25 * run, "leak", "heap"),
        ("heap", lambda run: 20 * MIB + 100_000 * run, "leak", "heap"),
        ("arena", lambda run: MIB + 256 * run, "leak", "arena"),
        ("python", lambda run: 20 * MIB + 2000 * run, "leak", "python"),
        ("unnamed", lambda run: 4096 * run, "leak", "other"),
        # Near misses: one block more, growth that ends, growth that slows down.
        ("heap", lambda run: 20 * MIB + (48 if run > 500 else 0), "flat", None),
        ("heap", lambda run: 20 * MIB + 100 * min(run, 400), "flat", None),
        # Caches that have filled up.
        ("heap", lambda run: 20 * MIB + 1000 * min(run, 800), "flat", None),
        ("arena", lambda run: MIB + 256 * min(run, 920), "flat", None),
        ("arena", lambda run: MIB + 256 * min(run, 980), "leak", "arena"),  # not seen in any way
        # What is kept is now and then much more for a while.
        ("heap", lambda run: 20 * MIB + 2000 * run + 400_000 * (run // 75 % 2), "leak", "heap"),
        # As a program grew that started a pool of workers between two halves of its runs.
        ("heap", lambda run: 20 * MIB + 7 * run + (300_000 if run > 500 else 0), "flat", None),
        ("heap", lambda run: 20 * MIB + 300 * run + (100_000 if run > 500 else 0), "leak", "heap"),
        ("heap", lambda run: 20 * MIB + int(1e5 * run**0.2), "flat", None),
        ("python", lambda run: 20 * MIB + 200 * run, "flat", None),
        ("heap", lambda run: 20 * MIB + 7919 * run % 5003, "flat", None),
        # Growth of memory that is free.
        ("slack", steps_to(64 * MIB, 50), "plateau", "arena_slack"),
        ("slack", steps_to(64 * MIB, 2000), "undecided", "arena_slack"),
        ("retained", steps_to(64 * MIB, 300), "retained", "allocator_retained"),
        ("heap", steps_to(64 * MIB, 90), "plateau", "heap"),
        ("slack", lambda run: 700_000, "flat", None),
        # Mappings that nobody removes; one mapping that is read on and on.
        ("mapped", lambda run: 8192 * run, "leak", "files"),
        ("files", lambda run: 8192 * run, "undecided", "files"),
        # A memory pattern for each new combination of input sizes; all combinations were seen.
        ("patterns", lambda run: run, "patterns", "patterns"),
        ("patterns", lambda run: min(run, 600), "plateau", "patterns"),
        ("patterns", lambda run: run // 4, "flat", None),
    ],
)
def test_the_owner_of_the_growth_decides(
    figure: str, values: Figure, verdict: str, owner: str | None
) -> None:
    figures: dict[str, Any] = {figure: values}
    result = judgement(**figures)
    assert (result.verdict, result.owner) == (verdict, owner)


@pytest.mark.parametrize(
    ("slack", "largest", "verdict"),
    [
        # A late step is growth if two moments show it.
        pytest.param(lambda run: 48 * (run >= 900), lambda run: 1 + (run >= 900), "high_water"),
        pytest.param(lambda run: 48 * (run >= 950), lambda run: 1 + (run >= 950), "flat"),
        pytest.param(lambda run: 16 * (run // 300), lambda run: 1 + run // 300, "high_water"),
        pytest.param(
            lambda run: 16 * (run // 300),
            lambda run: 1 + run // 400,
            "undecided",
            id="not at rises",
        ),
        pytest.param(lambda run: 16 * (run // 300), lambda run: 0, "undecided", id="not known"),
    ],
)
def test_slack_that_rises_with_new_largest_inputs_is_a_high_water_mark(
    slack: Figure, largest: Figure, verdict: str
) -> None:
    result = judgement(
        slack=lambda run: slack(run) * MIB,
        largest=lambda run: 1000 * largest(run),
        caller_keeps_nothing=False,
    )
    assert result.verdict == verdict


@pytest.mark.parametrize(("at_new_largest", "verdict"), [(True, "high_water"), (False, "plateau")])
def test_new_largest_inputs_are_known_by_run(at_new_largest: bool, verdict: str) -> None:
    steps = (10, 40, 90, 300)

    def slack(run: int) -> int:
        return 8 * MIB * sum(run >= step for step in steps)

    samples = [
        RunSample(
            run=run, resident_bytes=60 * MIB + slack(run), anonymous_bytes=0, duration_s=0.001
        )
        for run in range(1, 1001)
    ]
    new_largest = frozenset(steps if at_new_largest else (5, 6, 7))
    result = judgement(slack=slack, samples=tuple(samples), new_largest=new_largest)
    assert result.verdict == verdict


@pytest.mark.parametrize(("is_new", "verdict"), [(False, "plateau"), (True, "undecided")])
def test_an_arena_that_takes_no_memory_any_more_can_only_fill_its_size(
    is_new: bool, verdict: str
) -> None:
    whole = 96 * MIB  # of which ever more pages are resident
    moments = [
        msgspec.structs.replace(
            moment, arena_slack_bytes=whole + is_new * (moment.run > 800) * MIB - MIB
        )
        for moment in history(slack=steps_to(64 * MIB, 2000))
    ]
    result = growth_judgement(observed(moments, caller_keeps_nothing=True))
    assert (result.verdict, result.owner) == (verdict, "arena_slack")


def test_the_slope_is_that_of_the_owner_after_the_warm_up() -> None:
    result = judgement(heap=lambda run: 20 * MIB + (5000 if run < 100 else 25) * run)
    assert result.slope is not None
    assert result.slope.bytes_per_unit == 25


@pytest.mark.parametrize("unit", ["run", "second"])
@pytest.mark.parametrize(
    ("figure", "kept", "named", "verdict"),
    [
        ("arena", KeptValues(), "", "kept"),
        ("heap", KeptValues(), "", "leak"),
        ("arena", KeptValues("output 'y'", 600.0), "output 'y'", "kept"),
        ("arena", KeptValues("output 'y'", None), "output 'y'", "kept"),  # of an unknown size
        ("heap", KeptValues("output 'y'", 600.0), "output 'y'", "kept"),
        ("heap", KeptValues("output 'y'", None), "output 'y'", "kept"),
        # A small value is kept as well, and explains nothing.
        ("arena", KeptValues("output 'y'", 400.0), "", "kept"),
        ("heap", KeptValues("output 'y'", 400.0), "", "leak"),
    ],
)
def test_values_are_named_if_they_are_most_of_the_growth(
    figure: str, kept: KeptValues, named: str, verdict: str, unit: str
) -> None:
    values: dict[str, Any] = {figure: lambda run: 20 * MIB + 1000 * run}
    result = judgement(**values, caller_keeps_nothing=False, kept=kept, unit=unit)
    assert (result.verdict, result.kept.names) == (verdict, named)


def test_sessions_that_are_not_released_are_kept() -> None:
    result = judgement(
        heap=lambda run: 20 * MIB + 4000 * run,
        sessions=lambda run: 1 + run // 20,
        caller_keeps_nothing=False,
    )
    assert (result.verdict, result.owner) == ("kept", "sessions")


def test_a_process_whose_runs_are_not_known_is_judged_by_time() -> None:
    moments = [
        msgspec.structs.replace(moment(0, heap=20 * MIB + 3000 * second), time_s=float(second))
        for second in range(30)
    ]
    result = growth_judgement(observed(moments, unit="second", warm_up=5))
    assert result.verdict == "leak"
    assert result.slope is not None
    assert result.slope.bytes_per_unit == 3000


@pytest.mark.parametrize(
    ("sessions", "verdict"),
    [
        ((1, 5, 14, 25, 37, 57), "kept"),
        ((1, 5, 14, 25, 25, 57), "undecided"),  # a pause in between
        ((1, 5, 8, 11, 13, 15), "kept"),
        ((1, 5, 7, 9, 11, 13), "undecided"),  # few
        ((1, 5, 57), "undecided"),  # too few moments for a slope
        ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 25, 25), "undecided"),  # many moments
        ((1, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 51), "kept"),
        ((None,) * 6, "undecided"),
    ],
)
def test_sessions_that_become_more_at_each_of_a_few_moments_are_kept(
    sessions: tuple[int | None, ...], verdict: str
) -> None:
    moments = [
        moment(10 * number, heap=20 * MIB * (count or 1), sessions=count)
        for number, count in enumerate(sessions)
    ]
    assert growth_judgement(observed(moments)).verdict == verdict


def test_too_few_moments_are_undecided() -> None:
    moments = history(heap=lambda run: 20 * MIB + 99 * run)[:4]
    assert growth_judgement(observed(moments, caller_keeps_nothing=True)).verdict == "undecided"


@pytest.mark.parametrize(
    ("heap_rate", "block_rate", "min_bytes", "verdict"),
    [
        pytest.param(250, 0, 1024, "flat", id="other blocks"),
        pytest.param(250, 250, 1024, "leak", id="these blocks"),
        pytest.param(0, 16, 16 * 1024, "flat", id="below the minimum"),
        pytest.param(0, 20, 16 * 1024, "leak", id="above the minimum"),
    ],
)
def test_the_heap_is_judged_by_the_sizes_of_blocks_that_grow(
    heap_rate: int, block_rate: int, min_bytes: int, verdict: str
) -> None:
    result = judgement(
        heap=lambda run: 20 * MIB + heap_rate * run,
        growing_heap_bytes=tuple(block_rate * run for run in RUNS),
        min_heap_bytes=min_bytes,
    )
    assert result.verdict == verdict


@pytest.mark.parametrize(
    ("bytes_a_run", "largest", "verdict"),
    [
        pytest.param(0, lambda run: 1 + run // 150, "flat", id="at each rise"),
        pytest.param(80, lambda run: 1 + run // 150, "leak", id="between the rises too"),
        pytest.param(0, lambda run: 1, "leak", id="no rise"),
        pytest.param(0, lambda run: run, "leak", id="a rise between any two moments"),
    ],
)
def test_a_heap_that_grows_only_where_inputs_become_larger_is_no_leak(
    bytes_a_run: int, largest: Figure, verdict: str
) -> None:
    result = judgement(
        heap=lambda run: 20 * MIB + 9000 * (run // 150) + bytes_a_run * run,
        largest=lambda run: 1000 * largest(run),
        caller_keeps_nothing=False,
    )
    assert result.verdict == verdict

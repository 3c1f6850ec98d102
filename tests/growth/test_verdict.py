"""Verdicts on histories with a known answer: what grows, how, and what nearly looks like it."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from memdiag.growth.observation import GrowthObservation, KeptValues
from memdiag.growth.verdict import growth_judgement
from memdiag.records.growth import LargestInput, Moment, OwnerBytes, RunSample
from memdiag.units import MIB

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
    )


def largest_input(nbytes: int) -> LargestInput | None:
    return LargestInput(run=1, bytes=nbytes, shapes={}) if nbytes else None


def observe(figure: str, values: Callable[[int], int], **options: object) -> GrowthObservation:
    moments = tuple(moment(run, **{figure: values(run)}) for run in RUNS)
    settings = {"unit": "run", "warm_up": 1, "caller_keeps_nothing": True, **options}
    return GrowthObservation(moments=moments, **settings)  # type: ignore[arg-type]


def steps_to(limit: int, until: int) -> Callable[[int], int]:
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
    figure: str, values: Callable[[int], int], verdict: str, owner: str | None
) -> None:
    judgement = growth_judgement(observe(figure, values))
    assert (judgement.verdict, judgement.owner) == (verdict, owner)


@pytest.mark.parametrize(("step", "verdict"), [(900, "high_water"), (950, "flat")])
def test_a_late_step_is_growth_if_two_moments_show_it(step: int, verdict: str) -> None:
    observation = observe("slack", lambda run: 48 * MIB * (run >= step))
    moments = tuple(
        msgspec.structs.replace(each, largest_input=largest_input(1000 + (each.run >= step)))
        for each in observation.moments
    )
    assert growth_judgement(replace(observation, moments=moments)).verdict == verdict


@pytest.mark.parametrize(("is_new", "verdict"), [(False, "plateau"), (True, "undecided")])
def test_an_arena_that_takes_no_memory_any_more_can_only_fill_its_size(
    is_new: bool, verdict: str
) -> None:
    observation = observe("slack", steps_to(64 * MIB, 2000))
    whole = 96 * MIB  # of which ever more pages are resident
    moments = tuple(
        msgspec.structs.replace(
            each, arena_slack_bytes=whole + is_new * (each.run > 800) * MIB - MIB
        )
        for each in observation.moments
    )
    judgement = growth_judgement(replace(observation, moments=moments))
    assert (judgement.verdict, judgement.owner) == (verdict, "arena_slack")


def test_the_slope_is_that_of_the_owner_after_the_warm_up() -> None:
    judgement = growth_judgement(
        observe("heap", lambda run: 20 * MIB + (5000 if run < 100 else 25) * run)
    )
    assert judgement.slope is not None
    assert judgement.slope.bytes_per_unit == 25


@pytest.mark.parametrize(
    ("figure", "keeps", "verdict"),
    [("arena", False, "kept"), ("heap", True, "kept"), ("heap", False, "leak")],
)
def test_a_program_that_keeps_values_has_no_leak(figure: str, keeps: bool, verdict: str) -> None:
    observation = observe(
        figure,
        lambda run: 20 * MIB + 1000 * run,
        caller_keeps_nothing=False,
        kept=KeptValues("output 'y'" if keeps else ""),
    )
    assert growth_judgement(observation).verdict == verdict


@pytest.mark.parametrize("unit", ["run", "second"])
@pytest.mark.parametrize(
    ("figure", "kept_bytes", "named", "verdict"),
    [
        ("arena", 600.0, "output 'y'", "kept"),
        ("arena", None, "output 'y'", "kept"),  # of an unknown size
        ("heap", 600.0, "output 'y'", "kept"),
        # A small value is kept as well, and explains nothing.
        ("arena", 400.0, "", "kept"),
        ("heap", 400.0, "", "leak"),
    ],
)
def test_values_are_named_if_they_are_most_of_the_growth(
    figure: str, kept_bytes: float | None, named: str, verdict: str, unit: str
) -> None:
    observation = observe(
        figure,
        lambda run: 20 * MIB + 1000 * run,
        caller_keeps_nothing=False,
        kept=KeptValues("output 'y'", kept_bytes),
        unit=unit,
    )
    judgement = growth_judgement(observation)
    assert (judgement.verdict, judgement.kept.names) == (verdict, named)


def test_sessions_that_are_not_released_are_kept() -> None:
    moments = tuple(moment(run, heap=20 * MIB + 4000 * run, sessions=1 + run // 20) for run in RUNS)
    judgement = growth_judgement(
        GrowthObservation(moments=moments, unit="run", warm_up=1, caller_keeps_nothing=False)
    )
    assert (judgement.verdict, judgement.owner) == ("kept", "sessions")


@pytest.mark.parametrize(("at_new_largest", "verdict"), [(True, "high_water"), (False, "plateau")])
def test_growth_at_each_new_largest_input_is_a_high_water_mark(
    at_new_largest: bool, verdict: str
) -> None:
    steps = (10, 40, 90, 300)

    def slack(run: int) -> int:
        return 8 * MIB * sum(run >= step for step in steps)

    samples = tuple(
        RunSample(
            run=run, resident_bytes=60 * MIB + slack(run), anonymous_bytes=0, duration_s=0.001
        )
        for run in range(1, 1001)
    )
    observation = observe(
        "slack",
        slack,
        samples=samples,
        new_largest=frozenset(steps if at_new_largest else (5, 6, 7)),
    )
    assert growth_judgement(observation).verdict == verdict


def test_a_process_whose_runs_are_not_known_is_judged_by_time() -> None:
    moments = tuple(
        msgspec.structs.replace(moment(0, heap=20 * MIB + 3000 * second), time_s=float(second))
        for second in range(30)
    )
    judgement = growth_judgement(
        GrowthObservation(moments=moments, unit="second", warm_up=5, caller_keeps_nothing=False)
    )
    assert judgement.verdict == "leak"
    assert judgement.slope is not None
    assert judgement.slope.bytes_per_unit == 3000


@pytest.mark.parametrize(
    ("sessions", "verdict"),
    [
        ((1, 5, 14, 25, 37, 57), "kept"),
        ((1, 5, 14, 25, 25, 57), "undecided"),  # a pause in between
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
    moments = tuple(
        moment(10 * number, heap=20 * MIB * (count or 1), sessions=count)
        for number, count in enumerate(sessions)
    )
    observation = GrowthObservation(
        moments=moments, unit="run", warm_up=1, caller_keeps_nothing=False
    )
    assert growth_judgement(observation).verdict == verdict


def test_too_few_moments_are_undecided() -> None:
    moments = tuple(moment(run, heap=20 * MIB + 99 * run) for run in RUNS[:4])
    observation = GrowthObservation(
        moments=moments, unit="run", warm_up=1, caller_keeps_nothing=True
    )
    assert growth_judgement(observation).verdict == "undecided"


@pytest.mark.parametrize(("grows", "verdict"), [(False, "flat"), (True, "leak")])
def test_the_heap_is_judged_by_the_sizes_of_blocks_that_grow(grows: bool, verdict: str) -> None:
    observation = observe(
        "heap",
        lambda run: 20 * MIB + 250 * run,
        growing_heap_bytes=tuple(250 * run if grows else 0 for run in RUNS),
    )
    assert growth_judgement(observation).verdict == verdict


@pytest.mark.parametrize(("rate", "verdict"), [(16, "flat"), (20, "leak")])
def test_the_growth_of_blocks_in_a_program_must_exceed_a_minimum(rate: int, verdict: str) -> None:
    observation = observe(
        "heap",
        lambda run: 20 * MIB,
        growing_heap_bytes=tuple(rate * run for run in RUNS),
        min_heap_bytes=16 * 1024,
    )
    assert growth_judgement(observation).verdict == verdict


@pytest.mark.parametrize(
    ("largest", "verdict"),
    [
        pytest.param(lambda run: 1000 * (1 + run // 300), "high_water", id="at each rise"),
        pytest.param(lambda run: 1000 * (1 + run // 400), "undecided", id="beside the rises"),
        pytest.param(lambda run: 0, "undecided", id="not known"),
    ],
)
def test_new_largest_inputs_of_a_program_are_known_at_moments(
    largest: Callable[[int], int], verdict: str
) -> None:
    moments = tuple(
        msgspec.structs.replace(
            moment(run, slack=16 * MIB * (run // 300)), largest_input=largest_input(largest(run))
        )
        for run in RUNS
    )
    observation = GrowthObservation(
        moments=moments, unit="run", warm_up=1, caller_keeps_nothing=False
    )
    assert growth_judgement(observation).verdict == verdict


@pytest.mark.parametrize(
    ("bytes_a_run", "largest", "verdict"),
    [
        pytest.param(0, lambda run: 1000 * (1 + run // 150), "flat", id="at each rise"),
        pytest.param(80, lambda run: 1000 * (1 + run // 150), "leak", id="between the rises too"),
        pytest.param(0, lambda run: 1000, "leak", id="no rise"),
        pytest.param(0, lambda run: 1000 * run, "leak", id="a rise between any two moments"),
    ],
)
def test_a_heap_that_grows_only_where_inputs_become_larger_is_no_leak(
    bytes_a_run: int, largest: Callable[[int], int], verdict: str
) -> None:
    moments = tuple(
        msgspec.structs.replace(
            moment(run, heap=20 * MIB + 9000 * (run // 150) + bytes_a_run * run),
            largest_input=largest_input(largest(run)),
        )
        for run in RUNS
    )
    observation = GrowthObservation(
        moments=moments, unit="run", warm_up=1, caller_keeps_nothing=False
    )
    assert growth_judgement(observation).verdict == verdict

"""Which figure of a GPU is judged, and which parts are told apart, by what was reported when."""

from collections.abc import Collection, Iterable

import pytest

from memdiag.growth.device_series import device_series
from memdiag.records.growth import DeviceBasis, Moment
from memdiag.units import MIB
from tests.growth.histories import ALL_SOURCES, CONTEXT_BYTES, device_moment, moment

COUNT = 12


def moments(missing: Iterable[Collection[str]]) -> list[Moment]:
    """Return moments, at which the sources in `missing` report nothing; later ones have all."""
    missing = [*missing]
    missing += [()] * (COUNT - len(missing))
    return [
        moment(run, device=device_moment(sources=ALL_SOURCES - {*names}))
        for run, names in enumerate(missing)
    ]


@pytest.mark.parametrize(
    ("missing", "basis", "count"),
    [
        ([()], "process", COUNT),
        ([{"NVML"}] * 3, "process", COUNT - 3),
        ([{"NVML"}] * 4, "allocations", COUNT),
        ([{"NVML", "CUPTI"}] * 4, "arena", COUNT),
        ([{"NVML", "CUPTI", "arena"}] * 4, "device", COUNT),
        ([ALL_SOURCES] * 4, "process", COUNT - 4),  # nothing is known at more moments
    ],
    ids=[
        "all",
        "3 without NVML",
        "4 without NVML",
        "4 without CUPTI",
        "4 without arena",
        "4 of 12",
    ],
)
def test_the_whole_is_the_first_figure_that_is_known_at_most_moments(
    missing: list[Collection[str]], basis: DeviceBasis, count: int
) -> None:
    series = device_series(moments(missing))
    assert series is not None
    assert (series.basis, len(series.moments), len(series.whole)) == (basis, count, count)


@pytest.mark.parametrize(
    ("missing", "parts"),
    [
        ((), {"arena": 128, "empty_arena": 128, "libraries": 128, "rest": 560}),
        ({"CUPTI"}, {"arena": 128, "empty_arena": 128, "rest": 560 + 128}),
        ({"CUPTI", "arena"}, {"rest": 560 + 3 * 128}),
    ],
    ids=["all", "without CUPTI", "without arena"],
)
def test_a_part_that_is_missing_at_one_moment_counts_to_the_rest(
    missing: Collection[str], parts: dict[str, int]
) -> None:
    series = device_series(moments([missing]))
    assert series is not None
    assert {part: sizes[-1] // MIB for part, sizes in series.parts.items()} == parts
    for index, whole in enumerate(series.whole):
        assert sum(sizes[index] for sizes in series.parts.values()) == whole
    assert series.has_all_parts == (not missing)
    assert series.whole[0] == CONTEXT_BYTES + 3 * 128 * MIB
    assert series.libraries[-1] == {"cuBLAS": 128 * MIB, "cuDNN": 0}


def test_moments_without_a_gpu_are_left_out() -> None:
    before = [moment(run) for run in range(5)]
    series = device_series([*before, *moments([])])
    assert series is not None
    assert len(series.moments) == COUNT
    assert device_series(before) is None
    assert device_series([]) is None

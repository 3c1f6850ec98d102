"""Steps are found where a series changes for good, and nowhere in noise."""

import random
from itertools import pairwise
from statistics import median

import pytest

from memdiag.sweeps.steps import (
    DEFAULT_NOISE_SHARE,
    MIN_NOISE_BYTES,
    MIN_REPEATED_PAIRS,
    LevelSegment,
    level_segments,
    noise_bytes,
    noise_share,
    step_penalty,
)

MIB = 1 << 20


def starts(
    values: list[int],
    *,
    share: float | None = 0.0,
    points: int = 0,
    repeats: tuple[list[int], ...] = (),
) -> list[int]:
    """Return where steps are."""
    penalty = step_penalty(noise_bytes(values, repeats, share), points or len(values))
    return [each.start for each in level_segments(values, penalty)][1:]


def noisy(levels: list[int], scale: float, seed: int) -> list[int]:
    """Return levels with deviations of a Laplace distribution."""
    chance = random.Random(seed)
    signs = ((1, -1)[chance.random() < 0.5] for _ in levels)
    return [
        round(level + sign * chance.expovariate(1 / scale))
        for level, sign in zip(levels, signs, strict=True)
    ]


def test_an_exact_step_between_three_releases_is_found_and_nothing_without_one() -> None:
    assert starts([100 * MIB, 100 * MIB, 112 * MIB]) == [2]
    assert starts([100 * MIB, 112 * MIB, 112 * MIB]) == [1]
    assert starts([100 * MIB, 100 * MIB, 100 * MIB + MIN_NOISE_BYTES]) == []
    assert starts([100 * MIB]) == starts([]) == []


def test_a_single_outlier_in_a_long_series_is_no_step() -> None:
    values = noisy([100 * MIB] * 30, 0.5 * MIB, seed=4)
    values[12] += 5 * MIB
    assert starts(values) == []
    values[13] += 5 * MIB
    values[14] += 5 * MIB
    assert starts(values) == [12, 15]


def test_a_small_step_needs_more_points_than_a_large_one() -> None:
    small = [MIB] * 40 + [3 * MIB] * 40
    assert starts(noisy(small, 0.5 * MIB, seed=0)) == [40]
    assert starts(noisy(small[39:41], 0.5 * MIB, seed=0), share=0.5) == []


@pytest.mark.parametrize("length", [2, 3, 10, 60])
def test_noise_alone_hardly_ever_has_a_step(length: int) -> None:
    stores, series = 20, 30
    found = 0
    for seed in range(stores):
        all_values = [noisy([200 * MIB] * length, MIB, seed=1000 * seed + i) for i in range(series)]
        share = noise_share(all_values)
        found += any(starts(v, share=share, points=series * length) for v in all_values)
    assert found <= 2  # of 20 stores


def test_a_model_that_varies_more_than_others_is_judged_by_its_own_repeats() -> None:
    varying = [267 * MIB, 280 * MIB, 277 * MIB, 271 * MIB, 264 * MIB]  # measured without a change
    assert starts(varying, share=0.0005, points=300) != []
    assert starts(varying, share=0.0005, points=300, repeats=(varying,)) == []
    calm = [267 * MIB] * 4 + [280 * MIB]
    assert starts(calm, share=0.0005, points=300, repeats=(calm[:4],)) == [4]


def test_releases_that_change_every_model_are_no_noise() -> None:
    values = [1260 * MIB, 949 * MIB, 892 * MIB]  # measured on three releases
    assert starts(values, share=DEFAULT_NOISE_SHARE, points=78) == [1, 2]


def test_segments_are_the_exact_minimum() -> None:
    """Against all ways to cut short series."""

    def cost(values: list[int], cuts: tuple[int, ...], penalty: float) -> float:
        bounds = [0, *cuts, len(values)]
        parts = [values[a:b] for a, b in pairwise(bounds)]
        deviations = sum(abs(v - median(part)) for part in parts for v in part)
        return deviations + penalty * len(cuts)

    chance = random.Random(3)
    for _ in range(200):
        values = [chance.choice((0, 1, 5, 9)) for _ in range(chance.randint(1, 7))]
        penalty = chance.choice((0.5, 2.0, 4.5, 30.0))
        found = level_segments(values, penalty)
        least = min(
            cost(values, tuple(i for i in range(1, len(values)) if mask >> i & 1), penalty)
            for mask in range(0, 1 << len(values), 2)
        )
        assert cost(values, tuple(each.start for each in found[1:]), penalty) == least
        assert all(each.level == median(values[each.start : each.end]) for each in found)


def test_a_level_is_the_median_of_its_segment() -> None:
    assert level_segments([1, 2, 9, 100, 101], 20) == (
        LevelSegment(0, 3, 2),
        LevelSegment(3, 5, 100.5),
    )


def test_the_noise_of_a_store_is_known_from_enough_repeats() -> None:
    repeats = [[1000, 1010]] * MIN_REPEATED_PAIRS
    assert noise_share(repeats) == pytest.approx(10 / 1010 / 1.146, rel=0.01)
    assert noise_share([*repeats, *[[100, 900]] * (MIN_REPEATED_PAIRS - 1)]) == noise_share(repeats)
    assert noise_share(repeats[1:]) is None
    assert noise_bytes([1000 * MIB], (), None) == DEFAULT_NOISE_SHARE * 1000 * MIB

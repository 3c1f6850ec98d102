import numpy as np
import pytest

from memdiag.growth.slope import robust_slope


def test_a_line_has_its_slope_and_an_interval_of_no_width() -> None:
    slope = robust_slope([0, 10, 20, 30, 40, 50], [5, 25, 45, 65, 85, 105])
    assert (slope.low, slope.bytes_per_unit, slope.high) == (2, 2, 2)


def test_a_fifth_of_outliers_does_not_move_the_slope() -> None:
    runs = list(range(0, 200, 10))
    values = [100.0 * run for run in runs]
    for index in (3, 8, 13, 18):
        values[index] += 1e9
    slope = robust_slope(runs, values)
    assert slope.bytes_per_unit == pytest.approx(100)


def test_the_interval_contains_the_slope_of_19_in_20_noisy_lines() -> None:
    # Sen's interval is for 95 %; of 400 lines, 4 standard deviations below are 360.
    random = np.random.default_rng(7)
    runs = list(range(0, 1000, 50))
    covered = 0
    for _ in range(400):
        noise = random.normal(0, 200, len(runs))
        slope = robust_slope(runs, [3.0 * run + off for run, off in zip(runs, noise, strict=True)])
        covered += slope.low <= 3.0 <= slope.high
    assert 360 <= covered <= 400


def test_points_at_one_position_have_no_slope() -> None:
    slope = robust_slope([5, 5, 5, 5], [1, 2, 3, 4])
    assert slope.bytes_per_unit == 0


def test_three_points_are_too_few() -> None:
    with pytest.raises(ValueError, match="4 points or more, not 3"):
        robust_slope([1, 2, 3], [1, 2, 3])

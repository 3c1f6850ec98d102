import numpy as np
import pytest

from memdiag.verify.latency_ratio import CHECKPOINTS, paired_ratio


def test_the_interval_holds_the_median() -> None:
    found = paired_ratio([1.0] * 20, [1.0 + i / 100 for i in range(20)])
    assert found.low < found.median < found.high
    assert found.pairs == 20


def test_what_is_slower_beyond_doubt_is_said_to_be() -> None:
    slower = paired_ratio([1.0] * 15, [1.2 + i / 1000 for i in range(15)])
    assert slower.low > 1.05
    same = paired_ratio([1.0] * 15, [1.0 + (i - 7) / 1000 for i in range(15)])
    assert same.low <= 1 <= same.high <= 1.05


def test_few_pairs_give_all_of_their_range() -> None:
    assert paired_ratio([1, 1, 1], [1, 2, 3])[1:3] == (1, 3)
    assert paired_ratio([2], [3]).median == 1.5


@pytest.mark.parametrize("count", [10, 30, 100])
def test_the_interval_covers_the_true_median_as_often_as_it_says(count: int) -> None:
    rng = np.random.default_rng(count)
    covered = 0
    for _ in range(400):
        found = paired_ratio([1.0] * count, list(rng.lognormal(0.0, 0.5, count)))
        covered += found.low <= 1.0 <= found.high
    # 95 % of 400, and four standard deviations below.
    assert covered >= 400 * 0.95 - 4 * (400 * 0.95 * 0.05) ** 0.5


def test_looking_often_does_not_make_equals_differ() -> None:
    # As a comparison with a limit: it ends at the first checkpoint whose interval excludes 1.
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        ratios = list(rng.lognormal(0.0, 0.5, CHECKPOINTS[-1]))
        found = [paired_ratio([1.0] * count, ratios[:count]) for count in CHECKPOINTS]
        wrong += any(not one.low <= 1.0 <= one.high for one in found)
    # 5 % of 1000, and four standard deviations above.
    assert wrong <= 50 + 4 * (1000 * 0.05 * 0.95) ** 0.5


def test_no_pair_is_an_error() -> None:
    with pytest.raises(ValueError, match="no pair"):
        paired_ratio([], [])

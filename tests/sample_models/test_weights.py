"""Weights are made in pieces and are the same however they are cut."""

import numpy as np
import pytest

from memdiag.errors import UsageError
from sample_models.weights import RandomWeight, floats


def test_pieces_join_to_one_draw() -> None:
    weight = RandomWeight(name="w", shape=(3, 700_000), seed=7, scale=0.5)
    pieces = list(weight.chunks())
    assert len(pieces) == 3
    values = np.frombuffer(b"".join(pieces), np.float32)
    expected = np.random.default_rng(7).standard_normal(2_100_000, dtype=np.float32) * 0.5
    np.testing.assert_array_equal(values, expected)
    assert values.nbytes == weight.nbytes


def test_the_seed_decides_the_content() -> None:
    content = [
        b"".join(RandomWeight(name=name, shape=(64,), seed=seed).chunks())
        for name, seed in (("a", 1), ("b", 1), ("a", 2))
    ]
    assert content[0] == content[1] != content[2]


@pytest.mark.parametrize(
    ("megabytes", "per", "expected"), [(4, 1, 1_000_000), (64, 1024, 15_625), (0.000004, 1, 1)]
)
def test_megabytes_are_a_million_bytes(megabytes: float, per: int, expected: int) -> None:
    assert floats(megabytes, per=per) == expected


def test_what_lies_beside_is_taken_off() -> None:
    assert floats(4, beside=2_000_000) == 500_000
    with pytest.raises(UsageError, match="ask for 2 or more"):
        floats(1, beside=2_000_000)


@pytest.mark.parametrize("megabytes", [0, -1, 0.0000019, float("nan"), float("inf")])
def test_a_size_that_holds_nothing_is_refused(megabytes: float) -> None:
    with pytest.raises(UsageError, match="is no size for this sample"):
        floats(megabytes)

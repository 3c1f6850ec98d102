import pytest
from hypothesis import given
from hypothesis import strategies as st

from memdiag.reports.squarified import Rectangle, squarified

WITHIN = Rectangle(10.0, 20.0, 300.0, 100.0)
sizes = st.lists(st.integers(1, 10**9), min_size=1, max_size=40).map(
    lambda found: sorted(found, reverse=True)
)


@given(sizes=sizes)
def test_areas_are_to_each_other_as_the_sizes(sizes: list[int]) -> None:
    whole = WITHIN.width * WITHIN.height
    for size, tile in zip(sizes, squarified(sizes, WITHIN), strict=True):
        area = tile.width * tile.height
        assert area == pytest.approx(whole * size / sum(sizes), rel=1e-6, abs=1e-6)


@given(sizes=sizes)
def test_tiles_lie_within_and_not_over_each_other(sizes: list[int]) -> None:
    tiles = squarified(sizes, WITHIN)
    for number, one in enumerate(tiles):
        assert one.x >= WITHIN.x - 1e-6
        assert one.y >= WITHIN.y - 1e-6
        assert one.x + one.width <= WITHIN.x + WITHIN.width + 1e-6
        assert one.y + one.height <= WITHIN.y + WITHIN.height + 1e-6
        for other in tiles[:number]:
            across = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            down = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert min(across, down) <= 1e-6


def test_tiles_are_nearly_square() -> None:
    for tile in squarified([6, 6, 4, 3, 2, 2, 1], Rectangle(0, 0, 600, 400)):
        assert max(tile.width / tile.height, tile.height / tile.width) < 3.1


def test_nothing_makes_no_tiles() -> None:
    assert squarified([], WITHIN) == []

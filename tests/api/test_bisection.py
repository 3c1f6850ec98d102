from collections.abc import Callable

import pytest

from memdiag.api.comparing.version_search import bisect
from memdiag.records.comparison import ComparisonColumn
from memdiag.units import MIB
from tests.comparison.columns import column, measured

VERSIONS = [f"1.{minor}.0" for minor in range(15, 32)]


def search(
    steady: Callable[[str], float | None],
) -> tuple[tuple[str, str] | None, list[str]]:
    """Bisect versions whose steady memory in MiB is given; None: it cannot be measured."""
    asked: list[str] = []

    def measure(version: str) -> ComparisonColumn:
        asked.append(version)
        size = steady(version)
        return column(version, measured=None if size is None else measured(1000, size))

    def differs(one: ComparisonColumn, other: ComparisonColumn) -> bool:
        assert one.measured is not None
        assert other.measured is not None
        return abs(one.measured.steady.median - other.measured.steady.median) > 100 * MIB

    found = bisect(VERSIONS, measure, differs)
    return (found[0].label, found[1].label) if found else None, asked


@pytest.mark.parametrize("jump", range(1, len(VERSIONS)))
def test_the_version_of_the_jump_is_found(jump: int) -> None:
    later = VERSIONS[jump:]
    found, asked = search(lambda version: 1000 if version in later else 500)
    assert found == (VERSIONS[jump - 1], VERSIONS[jump])
    assert len({*asked}) <= 7  # two ends, and the logarithm of what is between


def test_without_a_jump_only_the_ends_are_measured() -> None:
    found, asked = search(lambda version: 500)
    assert found is None
    assert asked == [VERSIONS[0], VERSIONS[-1]]


def test_versions_that_cannot_be_measured_are_passed_over() -> None:
    dead = {VERSIONS[0], VERSIONS[8], VERSIONS[9], VERSIONS[-1]}
    later = VERSIONS[9:]
    found, _ = search(
        lambda version: None if version in dead else 1000 if version in later else 500
    )
    assert found == (VERSIONS[7], VERSIONS[10])


def test_with_nothing_to_measure_nothing_is_found() -> None:
    assert search(lambda version: None)[0] is None
    assert search(lambda version: 500 if version == VERSIONS[3] else None)[0] is None

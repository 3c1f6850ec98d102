"""The summary of an estimate for a GPU: what is left out, and what it says of several sizes."""

import msgspec
import pytest

from memdiag.units import MIB
from tests.reports import device_estimates
from tests.reports.rendering import words


@pytest.mark.parametrize(("together_mib", "is_listed"), [(632, True), (672, False), (700, False)])
def test_all_changes_together_are_listed_if_they_take_least(
    together_mib: int, is_listed: bool
) -> None:
    estimate = device_estimates.with_limit()
    *singles, together = estimate.configurations
    size = together_mib * MIB
    together = msgspec.structs.replace(together, low_bytes=size, high_bytes=size)
    estimate = msgspec.structs.replace(estimate, configurations=(*singles, together))
    assert ("all of" in words(estimate)) is is_listed


@pytest.mark.parametrize(
    ("sizes", "clause"),
    [((4,), "; at batch 4, 23 sessions"), ((4, 8), "; if each session runs all 2 combinations")],
)
def test_sessions_are_counted_for_all_sizes(sizes: tuple[int, ...], clause: str) -> None:
    estimate = device_estimates.with_limit()
    runs = tuple({"batch": size} for size in sizes)
    assert clause in words(msgspec.structs.replace(estimate, runs=runs))

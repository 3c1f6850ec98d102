"""Profiles of sessions, and estimates that they confirm."""

import pytest

from memdiag.records.profile import Profile
from memdiag.units import MIB

PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""An environment in which malloc keeps no freed weights."""


def assert_as_estimated(profile: Profile, *, rel: float, mebibytes: int) -> None:
    """Compare the peak and the steady state of a profile with its estimate."""
    base = profile.baseline_rss_bytes
    estimate, steady = profile.estimate, profile.steady_rss_bytes
    assert estimate is not None
    assert steady is not None
    off = mebibytes * MIB
    assert estimate.peak_bytes == pytest.approx(profile.peak_rss_bytes - base, rel=rel, abs=off)
    assert estimate.steady_bytes == pytest.approx(steady - base, rel=rel, abs=off)

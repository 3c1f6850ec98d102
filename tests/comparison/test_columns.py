import msgspec
import pytest

from memdiag.comparison.columns import column_figures, column_latency
from memdiag.records.profile import Profile
from memdiag.units import MIB
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from tests.reports import profiles


def grown(by: int) -> Profile:
    """Return the profile of the tied weight with a peak and an end that are higher by that."""
    profile = profiles.tied_if()
    assert profile.steady is not None
    steady = msgspec.structs.replace(
        profile.steady,
        rss_bytes=profile.steady.rss_bytes + by,
        anonymous_bytes=(profile.steady.anonymous_bytes or 0) + by,
    )
    return msgspec.structs.replace(
        profile,
        peak_rss_bytes=profile.peak_rss_bytes + by,
        steady=steady,
        steady_rss_bytes=steady.rss_bytes,
    )


def test_figures_are_above_the_baseline_with_their_range() -> None:
    profile = profiles.tied_if()
    found = column_figures([profile, grown(10 * MIB), grown(2 * MIB)])
    peak = profile.peak_rss_bytes - profile.baseline_rss_bytes
    assert (found.times, found.peak_phase) == (3, profile.peak_phase)
    sizes = [found.peak.low - peak, found.peak.median - peak, found.peak.high - peak]
    assert sizes == [0, 2 * MIB, 10 * MIB]
    assert found.steady.high - found.steady.low == 10 * MIB
    assert found.anonymous is not None
    assert found.file is not None
    assert found.anonymous.median + found.file.median == found.steady.median


def test_phases_and_the_time_of_creation_are_those_of_the_profile() -> None:
    profile = profiles.tied_if()
    found = column_figures([profile])
    assert "start" not in [each.phase for each in found.phases]
    parse = profile.phase("parse")
    assert parse is not None
    (parse_column,) = (each for each in found.phases if each.phase == "parse")
    assert parse_column.peak.median == parse.peak_rss_bytes - profile.baseline_rss_bytes
    assert parse_column.kept.median == parse.net_rss_bytes
    later = {"start", "first_run", "steady"}
    durations = [each.duration_s for each in profile.phases if each.name not in later]
    assert found.load.median == pytest.approx(sum(durations))


def test_without_a_split_there_are_no_parts() -> None:
    found = column_figures([profiles.build(profiles.TIED_IF, runs=3, split=False)])
    assert (found.anonymous, found.file) == (None, None)


def test_a_session_that_was_only_created_ends_there() -> None:
    profile = profiles.not_run()
    end = profile.phases[-1].end.rss_bytes - profile.baseline_rss_bytes
    assert column_figures([profile]).steady.median == end
    assert column_latency([profile], None) is None


def test_latency_is_over_the_timed_runs_of_all() -> None:
    profile = profiles.tied_if()
    found = column_latency([profile, profile], None)
    assert found is not None
    assert (found.runs, found.ratio, found.pairs) == (2 * len(profile.runs), None, 0)
    assert found.low_s <= found.median_s <= found.high_s
    race = LatencyComparison(0.01, 0.02, LatencyRatio(2.0, 1.9, 2.1, 15))
    every_other = column_latency([profile], race, slice(1, None, 2))
    assert every_other is not None
    assert every_other.runs == len(profile.runs) // 2
    assert (every_other.ratio, every_other.ratio_high, every_other.pairs) == (2.0, 2.1, 15)

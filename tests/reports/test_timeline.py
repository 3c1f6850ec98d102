"""The timeline of a profile: samples, bands, peaks, limits, and the scale of its picture."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from memdiag.records.budget import Breach, Budget, Judgement
from memdiag.records.phases import PhaseName
from memdiag.reports.picture import label_centres
from memdiag.reports.profile.picture import time_scale
from memdiag.reports.profile.timeline import budget_limits, profile_timeline
from memdiag.thinning import thinned_indices
from tests.reports import profiles
from tests.reports.profiles import MIB
from tests.reports.rendering import replaced


def test_a_long_timeline_keeps_its_spike() -> None:
    view = profile_timeline(profiles.long())
    assert len(view.t_s) <= 4100
    assert max(view.rss_bytes) == 1579 * MIB
    assert len(view.t_s) == len(view.rss_bytes) == len(view.anonymous_bytes or ())


@given(st.lists(st.integers(0, 1000), max_size=400), st.integers(2, 60))
def test_thinning_keeps_ends_extremes_and_order(values: list[int], limit: int) -> None:
    kept = thinned_indices(values, limit)
    assert list(kept) == sorted(set(kept))
    assert len(kept) <= max(limit, 2) + 2
    if values:
        assert {0, len(values) - 1} <= set(kept)
        shown = [values[i] for i in kept]
        assert (max(shown), min(shown)) == (max(values), min(values))


def test_neighbouring_spans_of_a_phase_become_one_band() -> None:
    names = [band.phase for band in profile_timeline(profiles.tied_if()).bands]
    assert names == [
        "start", "parse", "optimize", "constant_fold", "optimize", "constant_fold", "initialize",
        "prepack", "first_run", "steady",
    ]  # fmt: skip


def test_a_peak_stands_where_the_largest_sample_is() -> None:
    view = profile_timeline(profiles.tied_if())
    peaks = {peak.phase: peak for peak in view.peaks}
    parse = peaks["parse"]
    assert parse.rss_bytes == 825 * MIB
    assert view.rss_bytes[view.t_s.index(parse.t_s)] > 800 * MIB
    assert parse.transient_bytes == (825 - 563) * MIB
    assert [peak.phase for peak in view.peaks if peak.overall] == ["first_run"]
    assert "start" not in peaks


def test_a_process_that_is_gone_is_not_drawn_as_zero() -> None:
    assert min(profile_timeline(profiles.killed()).rss_bytes[-5:]) > 1000 * MIB
    assert profile_timeline(profiles.nothing_seen()).t_s == ()


def test_memory_that_is_not_split_has_no_parts() -> None:
    whole = profile_timeline(profiles.build(profiles.TIED_IF, runs=1, split=False))
    parts = (whole.anonymous_bytes, whole.file_bytes, whole.baseline_file_bytes)
    assert parts == (None, None, None)
    assert profile_timeline(profiles.tied_if()).baseline_file_bytes == profiles.FILE_MIB * MIB


def test_shared_memory_is_a_layer_of_its_own_where_there_is_any() -> None:
    profile = profiles.tied_if()
    plain = profile_timeline(profile)
    assert plain.shared_bytes is None
    assert [layer.name for layer in plain.layers] == ["file-backed", "anonymous"]
    shared = profile_timeline(profiles.with_shared())
    assert [layer.name for layer in shared.layers] == ["file-backed", "shared", "anonymous"]
    assert max(shared.shared_bytes or ()) == profiles.SHARED_MIB * MIB
    assert shared.file_bytes == tuple(
        both - own
        for both, own in zip(plain.file_bytes or (), shared.shared_bytes or (), strict=True)
    )


def test_layers_add_up_to_what_is_above_the_baseline() -> None:
    for profile in (profiles.tied_if(), profiles.with_shared(), profiles.sampled()):
        view = profile_timeline(profile)
        sums = tuple(map(sum, zip(*(layer.above_bytes for layer in view.layers), strict=True)))
        assert sums == view.above_bytes
        assert min(view.above_bytes) == 0


def test_every_phase_gets_a_share_of_the_width_it_can_be_seen_in() -> None:
    view = profile_timeline(profiles.uneven())
    times = time_scale(view)
    assert times.has_several_scales
    for band in view.bands:
        if band.phase in ("parse", "prepack", "first_run", "steady"):
            assert times.position(band.end_s) - times.position(band.start_s) >= 0.08


def test_time_never_runs_backwards_on_the_scale() -> None:
    for build in (profiles.tied_if, profiles.tiny, profiles.nothing_seen, profiles.failed):
        view = profile_timeline(build())
        times = time_scale(view)
        places = [times.position(t) for t in view.t_s]
        assert places == sorted(places)
        assert times.position(-1) == 0
        assert times.position(1e9) > 0.999999


def test_even_phases_are_not_stretched() -> None:
    names: tuple[PhaseName, ...] = ("parse", "optimize", "prepack")
    steps = tuple(profiles.Step(name, name, 0.1, 50, 50) for name in names)
    assert not time_scale(profile_timeline(profiles.build(steps))).has_several_scales


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_labels_that_fit_never_overlap(wanted: list[float]) -> None:
    widths = [0.1] * len(wanted)
    places = sorted(label_centres(wanted, widths, gap=0.01, width=1.0))
    assert places[0] >= 0.05 - 1e-9
    assert places[-1] <= 0.95 + 1e-9
    gaps = [right - left for left, right in itertools.pairwise(places)]
    assert all(gap >= 0.11 - 1e-9 for gap in gaps)


def test_labels_with_room_stay_where_they_want_to_be() -> None:
    assert label_centres([0.2, 0.8], [0.1, 0.1], gap=0.01, width=1) == (0.2, 0.8)


def test_a_limit_is_drawn_over_the_phases_it_is_for() -> None:
    profile = profiles.tied_if()
    wanted = {"peak": 1000 * MIB, "steady": 900 * MIB, "process_peak": 1024 * MIB, "copies": 1}
    breach = Breach(
        figure="peak",
        phase="constant_fold",
        measured=1533 * MIB,
        limit=1000 * MIB,
        allowed=1000 * MIB,
        against="budget",
    )
    judgement = Judgement(
        model="m",
        onnxruntime=None,
        figures={},
        processes=1,
        budget=Budget(limits=wanted),
        breaches=(breach,),
    )
    peak, steady, process = budget_limits(replaced(profile, judgement=judgement))
    assert (peak.rss_bytes, peak.is_exceeded) == (1046 * MIB, True)
    assert (peak.start_s, peak.end_s) == (profile.spans[0].start_s, profile.spans[-1].end_s)
    assert (steady.start_s, steady.is_exceeded) == (profile.spans[-1].start_s, False)
    assert process.rss_bytes == 1024 * MIB


def test_without_a_budget_nothing_is_drawn() -> None:
    assert budget_limits(profiles.tied_if()) == ()

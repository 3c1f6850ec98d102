import msgspec
import pytest

from memdiag.budgets.figures import (
    FIGURES_BY_NAME,
    aggregate_figures,
    figures_of,
    late_bytes,
    phase_of_figure,
    why_missing,
)
from memdiag.records.phases import GENERATION_PHASES
from memdiag.records.profile import Profile, Run
from tests.reports import profiles, tied_xray
from tests.reports.profiles import MIB


def test_figures_are_above_the_baseline_and_the_whole_process_is_not() -> None:
    profile = profiles.tied_if()
    figures = figures_of(profile)
    assert figures["peak"] == (1579 - 46) * MIB
    assert figures["steady"] == (1579 - 46) * MIB
    assert figures["parse"] == (825 - 46) * MIB
    assert figures["constant_fold"] == (1563 - 46) * MIB
    assert figures["process_peak"] == 1579 * MIB
    assert figures["steady_anonymous"] + figures["steady_file"] == figures["steady"]
    assert figures.keys() == FIGURES_BY_NAME.keys() - {"copies", *GENERATION_PHASES}


def test_copies_are_counted_where_an_xray_was_taken() -> None:
    assert figures_of(tied_xray.with_attribution())["copies"] == 3


def test_growth_is_the_mean_of_a_run() -> None:
    profile = profiles.tied_if()
    runs = tuple(Run(latency_s=0.1, rss_bytes=1000 + 10 * index) for index in range(5))
    assert figures_of(msgspec.structs.replace(profile, runs=runs))["growth_per_run"] == 10
    assert "growth_per_run" not in figures_of(msgspec.structs.replace(profile, runs=runs[:1]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("steady", "was not run"),
        ("first_run", "was not run"),
        ("prefill", "not run as a generation"),
        ("growth_per_run", "two runs after the first one"),
        ("copies", "no X-ray was taken"),
    ],
)
def test_what_a_profile_lacks_has_a_reason(name: str, words: str) -> None:
    profile = profiles.not_run()
    assert name not in figures_of(profile)
    assert words in why_missing(profile, name)


def test_a_phase_that_was_not_told_apart_has_a_reason() -> None:
    profile = profiles.tied_if()
    phases = tuple(phase for phase in profile.phases if phase.name != "constant_fold")
    without = msgspec.structs.replace(profile, phases=phases)
    assert "constant_fold" not in figures_of(without)
    assert "onnxruntime 1.31.1 did not log" in why_missing(without, "constant_fold")


def test_an_unsplit_resident_set_has_no_parts() -> None:
    figures = figures_of(profiles.sampled())
    assert "steady" in figures
    assert not {"steady_anonymous", "steady_file"} & figures.keys()
    assert "does not split" in why_missing(profiles.sampled(), "steady_file")


def test_the_reason_why_there_was_no_xray_is_passed_on() -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), xray_failure="it may not be read")
    assert why_missing(profile, "copies") == "no X-ray: it may not be read"


def seen_after(lag_s: float | None, peak: int = 0, parse: int = 0) -> Profile:
    """Return a profile whose boundaries were seen so late, with so much more in these figures."""
    profile = profiles.tied_if()
    phases = tuple(
        msgspec.structs.replace(phase, peak_rss_bytes=phase.peak_rss_bytes + parse)
        if phase.name == "parse"
        else phase
        for phase in profile.phases
    )
    return msgspec.structs.replace(
        profile,
        phases=phases,
        peak_rss_bytes=profile.peak_rss_bytes + peak,
        sampling=msgspec.structs.replace(profile.sampling, boundary_lag_s=lag_s),
    )


def test_several_processes_settle_medians_and_the_phases_that_were_seen_soonest() -> None:
    usual = figures_of(profiles.tied_if())
    figures = aggregate_figures(
        [seen_after(0.02, 9 * MIB, 90), seen_after(0.001, 1 * MIB, 7), seen_after(0.01, 3 * MIB)]
    )
    assert figures["peak"] == usual["peak"] + 3 * MIB
    assert figures["parse"] == usual["parse"] + 7
    assert aggregate_figures([profiles.tied_if()]) == usual


def test_the_median_is_of_those_that_have_the_figure() -> None:
    with_copies, without = tied_xray.with_attribution(), profiles.tied_if()
    assert aggregate_figures([with_copies, without, without])["copies"] == 3


def test_what_is_seen_late_may_be_counted_too_early() -> None:
    assert late_bytes([seen_after(None), seen_after(0.002)]) == 0
    assert late_bytes([seen_after(0.004), seen_after(0.002)]) == 12_000_000


def test_figures_have_a_phase() -> None:
    profile = profiles.tied_if()
    assert (
        phase_of_figure(profile, "peak")
        == profile.peak_phase
        == phase_of_figure(profile, "process_peak")
    )
    assert phase_of_figure(profile, "parse") == "parse"
    assert phase_of_figure(profile, "growth_per_run") == "steady"

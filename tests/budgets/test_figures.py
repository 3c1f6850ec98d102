"""Figures of profiles: sizes above the baseline, copies of weights, and why one is missing."""

import msgspec
import pytest

from memdiag.budgets.figures import (
    DEVICE_FIGURES,
    FIGURES_BY_NAME,
    MAX_BASELINE_COPIES,
    aggregate_figures,
    copy_totals,
    figures_of,
    largest_repeated,
    late_bytes,
    new_since,
    phase_of_figure,
    why_missing,
)
from memdiag.records.attribution import Attribution
from memdiag.records.baseline import CopyTotal
from memdiag.records.phases import GENERATION_PHASES
from memdiag.records.profile import Profile, Run
from tests.reports import gpus, profiles, tied_xray
from tests.reports.profiles import MIB

replace = msgspec.structs.replace


def test_figures_are_above_the_baseline_and_the_whole_process_is_not() -> None:
    figures = figures_of(profiles.tied_if())
    sizes = {"peak": 1579, "steady": 1579, "parse": 825, "constant_fold": 1563}
    assert {name: figures[name] for name in sizes} == {
        name: (size - 46) * MIB for name, size in sizes.items()
    }
    assert figures["process_peak"] == 1579 * MIB
    assert figures["steady_anonymous"] + figures["steady_file"] == figures["steady"]
    absent = {"copies", *GENERATION_PHASES, *DEVICE_FIGURES}
    assert figures.keys() == FIGURES_BY_NAME.keys() - absent


def test_figures_of_the_gpu_are_its_memory_with_the_context() -> None:
    figures = figures_of(gpus.on_gpu())
    assert (figures["device_peak"], figures["device_steady"]) == (900 * MIB, 700 * MIB)
    assert figures.keys() - figures_of(profiles.tied_if()).keys() == {*DEVICE_FIGURES}


def test_growth_is_the_mean_of_a_run() -> None:
    runs = tuple(Run(latency_s=0.1, rss_bytes=1000 + 10 * index) for index in range(5))
    assert figures_of(replace(profiles.tied_if(), runs=runs))["growth_per_run"] == 10
    assert "growth_per_run" not in figures_of(replace(profiles.tied_if(), runs=runs[:1]))


def without_phase(name: str) -> Profile:
    profile = profiles.tied_if()
    return replace(profile, phases=tuple(each for each in profile.phases if each.name != name))


@pytest.mark.parametrize(
    ("profile", "name", "words"),
    [
        (profiles.not_run(), "steady", "was not run"),
        (profiles.not_run(), "first_run", "was not run"),
        (profiles.not_run(), "prefill", "not run as a generation"),
        (profiles.not_run(), "growth_per_run", "two runs after the first one"),
        (profiles.not_run(), "copies", "no X-ray was taken"),
        (replace(profiles.tied_if(), xray_failure="it may not"), "copies", "no X-ray: it may not"),
        (without_phase("constant_fold"), "constant_fold", "onnxruntime 1.31.1 did not log"),
        (profiles.sampled(), "steady_file", "does not split"),
        (profiles.sampled(), "steady_anonymous", "does not split"),
        (profiles.tied_if(), "device_peak", "did not run on an NVIDIA device"),
        (gpus.on_gpu(has_cupti=False), "device_peak", "without CUPTI (it was not found)"),
        (gpus.read_until_a_run(), "device_peak", "after each step (it failed with error 700)"),
        (gpus.on_gpu(is_read=False), "device_steady", "was not read (it failed with error 35)"),
    ],
)
def test_what_a_profile_lacks_has_a_reason(profile: Profile, name: str, words: str) -> None:
    assert name not in figures_of(profile)
    assert words in why_missing(profile, name)


def seen_after(lag_s: float | None, peak: int = 0, parse: int = 0) -> Profile:
    """Return a profile whose boundaries were seen so late, with so much more in these figures."""
    profile = profiles.tied_if()
    phases = tuple(
        replace(phase, peak_rss_bytes=phase.peak_rss_bytes + parse * (phase.name == "parse"))
        for phase in profile.phases
    )
    sampling = replace(profile.sampling, boundary_lag_s=lag_s)
    higher = profile.peak_rss_bytes + peak
    return replace(profile, phases=phases, peak_rss_bytes=higher, sampling=sampling)


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
    assert figures_of(with_copies)["copies"] == 3
    assert aggregate_figures([with_copies, without, without])["copies"] == 3


def test_the_gpu_is_that_of_the_first_process() -> None:
    figures = aggregate_figures([gpus.on_gpu(), gpus.on_gpu(has_cupti=False)])
    assert (figures["device_peak"], figures["device_steady"]) == (900 * MIB, 700 * MIB)


def test_what_is_seen_late_may_be_counted_too_early() -> None:
    assert late_bytes([seen_after(None), seen_after(0.002)]) == 0
    assert late_bytes([seen_after(0.004), seen_after(0.002)]) == 12_000_000


def test_figures_have_a_phase_except_those_of_the_gpu() -> None:
    profile = profiles.tied_if()
    names = ("peak", "process_peak", "parse", "growth_per_run")
    assert [phase_of_figure(profile, name) for name in names] == [
        *(profile.peak_phase, profile.peak_phase, "parse", "steady")
    ]
    assert {phase_of_figure(gpus.on_gpu(), name) for name in DEVICE_FIGURES} == {None}


def row(weight: str, kind: str = "original", count: int = 1, size: int = 100) -> CopyTotal:
    fields = {"weight": weight, "kind": kind, "count": count, "bytes": size, "made_by": None}
    return msgspec.convert(fields, CopyTotal)


def xray() -> Attribution:
    found = tied_xray.with_attribution().attribution
    assert found is not None
    return found


def test_live_copies_are_held_the_largest_first() -> None:
    rows = copy_totals(xray())
    assert {each.kind for each in rows} == {"original", "transposed", "packed"}
    assert [each.bytes for each in rows] == sorted((each.bytes for each in rows), reverse=True)


@pytest.mark.parametrize("change", [{"in_use": False}, {"resident_bytes": 0}])
def test_freed_and_absent_copies_are_not_held(change: dict[str, int]) -> None:
    copies = tuple(replace(each, **change) for each in xray().copies)
    assert copies
    assert copy_totals(replace(xray(), copies=copies)) == ()


def test_the_weight_with_the_most_bytes_in_several_copies_is_named() -> None:
    rows = (row("a", size=500), row("b", size=200), row("b", "packed", size=200), row("c"))
    assert largest_repeated(rows) == rows[1:3]
    assert largest_repeated(rows[:1]) == ()
    assert largest_repeated((row("a", count=2),)) == (row("a", count=2),)


def test_copies_that_a_baseline_had_not_are_new() -> None:
    before = (row("a"), row("b", count=1))
    now = (row("a"), row("b", count=2), row("a", "packed"))
    assert new_since(before, now) == now[1:]
    assert new_since(now, before) == ()


def test_below_what_a_full_baseline_kept_nothing_is_called_new() -> None:
    before = tuple(row(f"w{index}", size=100 + index) for index in range(MAX_BASELINE_COPIES))
    assert new_since(before, (row("small", size=99),)) == ()
    assert new_since(before, (row("large", size=101),)) == (row("large", size=101),)
    assert new_since(before[1:], (row("small", size=99),)) == (row("small", size=99),)

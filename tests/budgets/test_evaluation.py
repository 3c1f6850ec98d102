"""Profiles judged by budgets and baselines.

Each case has its verdict, breaches and notes in ``approved/judgements.txt``.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag.budgets.baselines import baseline_entry, max_figure
from memdiag.budgets.evaluation import judge_budget, judge_probe
from memdiag.budgets.figures import figures_of
from memdiag.errors import UsageError
from memdiag.records.baseline import BaselineEntry
from memdiag.records.budget import Budget, Judgement
from memdiag.records.device import Device
from memdiag.records.dimension import Dimension
from memdiag.records.probe import Probe
from memdiag.records.profile import Profile
from tests.reports import gpus, profiles, tied_xray
from tests.reports.profiles import MIB
from tests.reports.rendering import replaced
from tests.snapshots import assert_approved

APPROVED = Path(__file__).parent / "approved" / "judgements.txt"
Case = tuple[list[Profile], Budget, BaselineEntry | None]
replace = msgspec.structs.replace
PROFILE = profiles.tied_if()
FIGURES = figures_of(PROFILE)
PEAK = (1579 - 46) * MIB


def entry(of: Profile = PROFILE, /, **figures: int) -> BaselineEntry:
    """Return what a baseline has of a profile, with other `figures`."""
    kept = baseline_entry([of])
    return replace(kept, figures={**kept.figures, **figures})


def with_session(**changes: Any) -> Profile:
    return replace(PROFILE, session=replace(PROFILE.session, **changes))


def steady_at(*sizes: int) -> list[Profile]:
    assert PROFILE.steady is not None
    baseline = PROFILE.baseline_rss_bytes
    ends = (replace(PROFILE.steady, rss_bytes=baseline + size * MIB) for size in sizes)
    return [replace(PROFILE, steady=end) for end in ends]


def limits() -> dict[str, Case]:
    near_peak = round(PEAK / 1.02) + 1

    def of(profile: Profile = PROFILE, tolerance: float | None = None, **sizes: int) -> Case:
        return [profile], Budget(limits=sizes, tolerance=tolerance), None

    pinned = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    return {
        "exactly the budget": of(peak=PEAK),
        "a byte more": of(peak=PEAK - 1),
        "within the tolerance": of(peak=near_peak, tolerance=0.02),
        "beyond the tolerance": of(peak=near_peak, tolerance=0.019),
        "in the order of the phases": of(steady=1, prepack=1, parse=1),
        "a figure that cannot be had": of(profiles.not_run(), steady=1),
        "malloc is pinned": of(with_session(environment=pinned), peak=PEAK),
        "malloc is not pinned": of(with_session(environment={}), peak=PEAK),
        "two groups of processes": (
            steady_at(81, 94, 81, 94, 94),
            Budget(limits={"steady": 95 * MIB}),
            None,
        ),
        "processes that differ": (steady_at(81, 85, 88), Budget(), None),
        "processes that are alike": (steady_at(1000, 1001, 1010), Budget(), None),
    }


def growth() -> dict[str, Case]:
    grown = entry(parse=FIGURES["parse"] - 20 * MIB)
    before = entry(parse=FIGURES["parse"] - 30 * MIB)
    busy = replace(PROFILE, sampling=replace(PROFILE.sampling, boundary_lag_s=0.02))
    too_little = Budget(limits={"parse": FIGURES["parse"] - 1})
    xrayed = tied_xray.with_attribution()
    kept = entry(xrayed)
    untransposed = tuple(row for row in kept.copies if row.kind != "transposed")
    halved = entry(xrayed, steady=kept.figures["steady"] // 2)
    without_optimize = tuple(phase for phase in PROFILE.phases if phase.name != "optimize")
    return {
        "as the baseline": ([PROFILE], Budget(), entry()),
        "20 MiB more": ([PROFILE], Budget(), grown),
        "20 MiB more within the tolerance": ([PROFILE], Budget(tolerance=0.05), grown),
        "seen late on a busy machine": ([busy], Budget(), before),
        "seen late in one of two processes": ([busy, PROFILE], Budget(), before),
        "the baseline saw it late": ([PROFILE], Budget(), replace(before, late_bytes=40 * MIB)),
        "the peak is never late": ([busy], Budget(), entry(peak=PEAK - 40 * MIB)),
        "no budget is widened for it": ([busy], too_little, None),
        "one more copy": ([xrayed], Budget(tolerance=0.5), entry(xrayed, copies=2)),
        "a new copy": ([xrayed], Budget(), replace(halved, copies=untransposed)),
        "no new copy": ([xrayed], Budget(limits={"peak": 1}), kept),
        "another setup": ([with_session(options={})], Budget(), entry()),
        "another runtime": ([PROFILE], Budget(), replace(entry(), onnxruntime="1.24.4")),
        "much less": ([PROFILE], Budget(), entry(peak=2 * PEAK)),
        "a phase is missing": ([replace(PROFILE, phases=without_optimize)], Budget(), entry()),
    }


def other_sizes() -> dict[str, Case]:
    def sized(length: int, names: tuple[str, ...]) -> Profile:
        dimensions = tuple(
            Dimension(name=name, size=length, role="sequence", source="chosen", reason="")
            for name in names
        )
        inputs = (replace(PROFILE.inputs[0], shape=(1, length)),)
        return replace(PROFILE, inputs=inputs, dimensions=dimensions)

    return {
        f"other sizes of {names}": ([sized(128, names)], Budget(), entry(sized(512, names)))
        for names in (("ids:1",), ("length",), ("length", "other"), ())
    }


def on_gpu() -> dict[str, Case]:
    """Return cases of a profile with 700 MiB on a GPU, 900 MiB at the peak."""

    def of(profile: Profile, **sizes: int) -> Case:
        return [profile], Budget(limits=sizes), None

    profile = gpus.on_gpu()
    other = replaced(profile, device__device=Device(name="Other"))
    return {
        "exactly the budget of the GPU": of(profile, device_peak=900 * MIB),
        "more on the GPU": of(profile, device_peak=800 * MIB, device_steady=100 * MIB),
        "a peak on the GPU without CUPTI": of(gpus.on_gpu(has_cupti=False), device_peak=1),
        "no GPU": of(PROFILE, device_steady=1),
        "another GPU": ([other], Budget(), entry(profile)),
    }


def judgement_lines(judgement: Judgement) -> list[str]:
    lines = ["met" if judgement.is_met else "not met"]
    for breach in judgement.breaches:
        where = f"{breach.figure} in {breach.phase}"
        lines.append(f"{where}: over the {breach.against} by {breach.over:,}")
    if judgement.copies_are_new:
        lines.append(f"new copies: {', '.join(row.kind for row in judgement.copies)}")
    if judgement.baseline_onnxruntime not in (None, judgement.onnxruntime):
        lines.append(f"{judgement.baseline_onnxruntime} in the baseline")
    return [*lines, *judgement.notes]


def test_every_case_has_its_judgement() -> None:
    cases = limits() | growth() | other_sizes() | on_gpu()
    lines = []
    for title, (taken, budget, before) in cases.items():
        try:
            found = judge_budget(taken, budget, entry=before, update_option="--update")
            lines += [f"{title}:", *(f"  {line}" for line in judgement_lines(found))]
        except UsageError as error:
            lines += [f"{title}:", f"  refused: {error}"]
    assert_approved("\n".join(lines), APPROVED)


def test_the_median_of_the_processes_is_judged() -> None:
    judgement = judge_budget(steady_at(81, 94, 81, 94, 94), Budget(limits={"steady": 95 * MIB}))
    assert judgement.figures["steady"] == 94 * MIB


@pytest.mark.parametrize(("figure", "has_owners"), [("peak", True), ("device_peak", False)])
def test_owners_of_resident_memory_explain_no_breach_on_the_gpu(
    figure: str, has_owners: bool
) -> None:
    profile = replace(gpus.on_gpu(), attribution=tied_xray.attribution())
    judgement = judge_budget([profile], Budget(limits={figure: 1}))
    assert bool(judgement.owners) is has_owners


def test_the_baseline_knows_no_process_peak() -> None:
    assert "process_peak" in FIGURES
    assert "process_peak" not in entry().figures


@pytest.mark.parametrize(
    ("name", "size", "tolerance", "late", "expected"),
    [
        ("steady", 10 * MIB, 0.0, 0, 11 * MIB),
        ("steady", 1000 * MIB, None, 0, 1020 * MIB),
        ("growth_per_run", 0, None, 0, 64 * 1024),
        ("copies", 2, 0.9, 0, 2),
        ("parse", 0, 0.0, 5, MIB + 5),
        ("peak", 0, 0.0, 5, MIB),
    ],
)
def test_small_growth_is_within_any_tolerance(
    name: str, size: int, tolerance: float | None, late: int, expected: int
) -> None:
    assert max_figure(name, size, tolerance, late=late) == expected


def test_a_probe_has_no_phases() -> None:
    probe = Probe(name="this process", figures={"peak": 5}, peak_kind="exact", notes=())
    assert judge_probe(probe, Budget(limits={"peak": 5})).is_met
    assert judge_probe(probe, Budget(limits={"peak": 4})).breaches[0].over == 1
    with pytest.raises(UsageError, match=r"only the process as a whole\. Available figures: peak"):
        judge_probe(probe, Budget(limits={"parse": 5}))

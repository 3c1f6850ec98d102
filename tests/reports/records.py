"""One record of each kind that has reports, and variants that are told in other words."""

from collections.abc import Callable
from functools import partial

from memdiag.records.schemas import ReportedRecord
from tests.reports import (
    comparisons,
    device_estimates,
    estimates,
    fix_records,
    gpus,
    growths,
    limits,
    profiles,
    runs,
    sweeps,
    tied_xray,
)
from tests.reports.findings import TIED
from tests.reports.rendering import replaced


def wasteful() -> ReportedRecord:
    """Return a profile with X-rays of two moments, a finding and an estimate."""
    finding = replaced(TIED, rewrites=("overridable-weight",))
    return replaced(tied_xray.with_xrays(), findings=(finding,), estimate=estimates.point())


RECORDS: dict[str, Callable[[], ReportedRecord]] = {
    "profile": wasteful,
    "xray": tied_xray.attribution,
    "comparison": comparisons.versions,
    "fix": fix_records.verified,
    "run": runs.server,
    "estimate": estimates.grid,
    "device_estimate": device_estimates.with_limit,
    "limit": limits.limit,
    "sweep": lambda: sweeps.over_budget(sweeps.sweep(against="nightly")),
    "growth": growths.leak,
}
VARIANTS: dict[str, Callable[[], ReportedRecord]] = {
    "profile_without_xray": profiles.tied_if,
    "profile_sampled": profiles.sampled,
    "profile_failed": profiles.failed,
    "profile_killed": profiles.killed,
    "profile_generation": profiles.generated,
    "profile_gpu": gpus.recorded_profile,
    "profile_gpu_compared": gpus.compared_profile,
    "profile_gpu_without_cupti": partial(gpus.recorded_profile, "dense_nocupti"),
    "profile_gpu_unread": partial(gpus.on_gpu, is_read=False),
    "profile_gpu_fallback": gpus.fallen_back,
    "profile_gpu_out_of_memory": gpus.out_of_memory,
    "comparison_optimizers": comparisons.optimizers,
    "comparison_nothing": comparisons.nothing,
    "comparison_alike": comparisons.alike,
    "comparison_gpus": comparisons.gpus_compared,
    "comparison_bisected": comparisons.bisected,
    "comparison_growth": comparisons.bisected_growth,
    "fix_options": fix_records.fix,
    "fix_nothing_helps": fix_records.nothing_helps,
    "fix_gpu": fix_records.on_gpu,
    "fix_unmeasured": fix_records.unmeasured,
    "run_pool": runs.pool,
    "run_watched": runs.watched_with_xray,
    "run_without_sessions": runs.without_sessions,
    "run_empty": runs.empty,
    "estimate_of_process": lambda: estimates.single(estimates.BASELINE),
    "estimate_measured": estimates.measured,
    "device_estimate_of_convolutions": device_estimates.of_convolutions,
    "device_estimate_unknown": device_estimates.with_unknown_sizes,
    "limit_program": limits.program,
    "limit_without_group": limits.without_group,
    "limit_gpu": limits.of_gpu,
    "sweep_placed": sweeps.placed,
    "growth_flat": growths.flat,
    "growth_high_water": growths.high_water,
    "growth_kept": growths.kept,
    "growth_undecided": growths.undecided,
    "growth_gpu_leak": growths.leak_on_gpu,
    "growth_gpu_thread": growths.thread_on_gpu,
}

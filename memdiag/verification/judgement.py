"""Whether a change is worth having, by figures that scatter."""

from memdiag.records.fix import Figures
from memdiag.units import format_size
from memdiag.verification.bench import Verdict

_LEAST_SAVING = 1 << 20
_LEAST_SHARE = 0.01
_CLEARLY_FASTER = 0.9


def saves(before: Figures, after: Figures) -> bool:
    """Return whether `after` takes less beyond doubt, at the peak or in the end, and no more."""
    spreads = (before.peak_spread_bytes, before.steady_spread_bytes)
    doubt = max(_LEAST_SAVING, *spreads, round(_LEAST_SHARE * before.peak_bytes))
    gains = (before.peak_bytes - after.peak_bytes, before.steady_bytes - after.steady_bytes)
    smaller = before.disk_bytes - after.disk_bytes > _LEAST_SHARE * before.disk_bytes
    return (max(gains) > doubt or smaller) and min(gains) > -doubt


def is_faster(verdict: Verdict) -> bool:
    """Return whether the model became faster beyond doubt with some inputs, and slower with none.

    That alone is worth a remedy against lost time, such as denormal values.
    """
    ratios = [race.ratio for _, race in verdict.races]
    faster = any(ratio.high < _CLEARLY_FASTER for ratio in ratios)
    return faster and all(ratio.median <= 1 for ratio in ratios)


def is_better(one: Figures, other: Figures) -> bool:
    """Return whether `one` is to be preferred: less anonymous memory, then less at the peak."""
    doubt = max(_LEAST_SAVING, round(_LEAST_SHARE * max(one.peak_bytes, other.peak_bytes)))
    pairs = (
        (one.anonymous_bytes, other.anonymous_bytes),
        (one.steady_bytes, other.steady_bytes),
        (one.peak_bytes, other.peak_bytes),
    )
    for mine, others in pairs:
        if abs(mine - others) > doubt:
            return mine < others
    return (one.latency_s or 0.0) < (other.latency_s or 0.0)


def in_words(before: Figures, after: Figures) -> str:
    """Return how peak and steady memory change."""
    return (
        f"peak {format_size(before.peak_bytes)} → {format_size(after.peak_bytes)},"
        f" steady {format_size(before.steady_bytes)} → {format_size(after.steady_bytes)}"
    )

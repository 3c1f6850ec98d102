"""Decides whether a change saves enough memory to be kept, from figures that scatter."""

from memdiag.records.measured_change import Figures
from memdiag.units import format_sizes
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.model_evaluator import LatencyComparisons

MIN_SAVING_SHARE = 0.01
"""The share of the peak that a rewrite has to save: less may be chance."""

_MIN_CERTAIN_SAVING_BYTES = 1 << 20
_MIN_SMALL_SAVING_BYTES = 1 << 19
_MIN_SMALL_SAVING_SHARE = 0.05
_CLEARLY_FASTER_RATIO = 0.9


def is_worth_it(
    before: Figures,
    after: Figures,
    comparisons: LatencyComparisons,
    before_comparisons: LatencyComparisons,
) -> bool:
    """Return whether a change saves memory, or else disk space or much time without more memory.

    `before_comparisons` compare the model before the change, `comparisons` the model after it, each
    with the original.
    """
    if saves_memory_or_disk(before, after):
        return True
    return is_faster(comparisons, before_comparisons) and not _has_certain_growth(before, after)


def saves_memory_or_disk(before: Figures, after: Figures) -> bool:
    """Return whether `after` takes less memory beyond doubt, or less disk and no more memory."""
    is_smaller = before.disk_bytes - after.disk_bytes > MIN_SAVING_SHARE * before.disk_bytes
    return saves_memory(before, after) or (is_smaller and not _has_certain_growth(before, after))


def saves_memory(before: Figures, after: Figures) -> bool:
    """Return whether `after` certainly takes less at the peak or steadily, and more at neither.

    A difference is certain if it exceeds the spread of both, a hundredth of the peak, and 1 MiB. If
    a twentieth of the peak is less than 1 MiB, that replaces the 1 MiB, but it is at least half a
    MiB. The spread does not matter if every process took less after the change than any process
    before it: for some models the memory that malloc retains differs by half between processes.
    """
    is_gained = any(gain > doubt for gain, doubt in _gains_and_doubts(before, after))
    return is_gained and not _has_certain_growth(before, after)


def is_faster(comparisons: LatencyComparisons, before: LatencyComparisons) -> bool:
    """Return whether a model is faster beyond doubt with some inputs, and slower with none.

    `before` are the comparisons of the model before the change. Both are with the original.
    Rewrites that save time, such as `flush-denormals`, are accepted because of it.
    """
    ratios_before = {name: comparison.ratio for name, comparison in before}
    pairs = [(comparison.ratio, ratios_before.get(name)) for name, comparison in comparisons]
    has_gain = any(
        ratio.high < _CLEARLY_FASTER_RATIO * (ratio_before.low if ratio_before is not None else 1.0)
        for ratio, ratio_before in pairs
    )
    return has_gain and all(
        ratio.median <= (ratio_before.median if ratio_before is not None else 1.0)
        for ratio, ratio_before in pairs
    )


def slowness_text(comparisons: LatencyComparisons, limit: float) -> str | None:
    """Return with which inputs a model is slower by more than `limit`; None if there are none."""
    for name, comparison in comparisons:
        if comparison.is_slower(limit):
            return f"slower: {_ratio_interval_text(comparison)} with {name}"
    return None


def takes_less_memory(first: Figures, second: Figures, *, least_share: float = 0.0) -> bool | None:
    """Return whether `first` takes less memory than `second`; None if that is not certain.

    Anonymous memory decides, then all memory at the steady state, then the peak. A difference
    below `least_share` of the larger peak does not count.
    """
    peak_bytes = max(first.peak_bytes, second.peak_bytes)
    floor = max(_chance_floor_bytes(peak_bytes), round(least_share * peak_bytes))
    steady_doubt = max(floor, first.steady_spread_bytes, second.steady_spread_bytes)
    peak_doubt = max(floor, first.peak_spread_bytes, second.peak_spread_bytes)
    for first_bytes, second_bytes, doubt_bytes in (
        (first.anonymous_bytes, second.anonymous_bytes, steady_doubt),
        (first.steady_bytes, second.steady_bytes, steady_doubt),
        (first.peak_bytes, second.peak_bytes, peak_doubt),
    ):
        if abs(first_bytes - second_bytes) > doubt_bytes:
            return first_bytes < second_bytes
    return None


def takes_less_time(first: LatencyComparisons, second: LatencyComparisons) -> bool | None:
    """Return whether `first` is faster with some inputs and slower with none; None if uncertain.

    Both are comparisons with the same original.
    """
    ratios = {name: comparison.ratio for name, comparison in second}
    pairs = [(comparison.ratio, ratios[name]) for name, comparison in first if name in ratios]
    has_win = any(_is_ratio_below(first_ratio, second_ratio) for first_ratio, second_ratio in pairs)
    has_loss = any(
        _is_ratio_below(second_ratio, first_ratio) for first_ratio, second_ratio in pairs
    )
    return None if has_win == has_loss else has_win


def exchanged_memory_text(before: Figures, after: Figures) -> str:
    """Return a clause that the peak certainly falls and the steady memory grows, or the reverse.

    Empty if neither is the case.
    """
    peak_sign, steady_sign = (
        (gain > 0) - (gain < 0) if abs(gain) > doubt else 0
        for gain, doubt in _gains_and_doubts(before, after)
    )
    if peak_sign * steady_sign >= 0:
        return ""
    falling, growing = ("peak", "steady memory") if peak_sign > 0 else ("steady memory", "peak")
    return f"the {falling} falls, but the {growing} grows"


def memory_change(before: Figures, after: Figures) -> str:
    """Return the change of peak and steady memory as text."""
    peak = " → ".join(format_sizes(before.peak_bytes, after.peak_bytes))
    steady = " → ".join(format_sizes(before.steady_bytes, after.steady_bytes))
    return f"peak {peak}, steady {steady}"


def memory_beside(best: Figures, other: Figures) -> str:
    """Return peak and steady memory of `best` in comparison with `other` as text."""
    peak = " instead of ".join(format_sizes(best.peak_bytes, other.peak_bytes))
    steady = " instead of ".join(format_sizes(best.steady_bytes, other.steady_bytes))
    return f"peak {peak}, steady {steady}"


def _ratio_interval_text(comparison: LatencyComparison) -> str:
    return (
        f"{comparison.ratio.median:.2f} × ({comparison.ratio.low:.2f}–{comparison.ratio.high:.2f})"
    )


def _has_certain_growth(before: Figures, after: Figures) -> bool:
    return any(gain < -doubt for gain, doubt in _gains_and_doubts(before, after))


def _gains_and_doubts(before: Figures, after: Figures) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the bytes saved at peak and steady state, each with the bytes that may be chance."""
    floor = _chance_floor_bytes(before.peak_bytes)
    peak_doubt = steady_doubt = floor
    if not peaks_are_below(after, before):
        peak_doubt = max(floor, before.peak_spread_bytes, after.peak_spread_bytes)
    if not steady_is_below(after, before):
        steady_doubt = max(floor, before.steady_spread_bytes, after.steady_spread_bytes)
    return (
        (before.peak_bytes - after.peak_bytes, peak_doubt),
        (before.steady_bytes - after.steady_bytes, steady_doubt),
    )


def peaks_are_below(first: Figures, second: Figures) -> bool:
    """Return whether every process of `first` had a smaller peak than any of `second`."""
    highest, lowest = first.highest_peak_bytes, second.lowest_peak_bytes
    return highest is not None and lowest is not None and highest < lowest


def steady_is_below(first: Figures, second: Figures) -> bool:
    """Return whether every process of `first` took less at the end than any of `second`."""
    highest, lowest = first.highest_steady_bytes, second.lowest_steady_bytes
    return highest is not None and lowest is not None and highest < lowest


def _chance_floor_bytes(*peaks: int) -> int:
    largest = max(peaks)
    small_floor = max(_MIN_SMALL_SAVING_BYTES, round(_MIN_SMALL_SAVING_SHARE * largest))
    return max(min(_MIN_CERTAIN_SAVING_BYTES, small_floor), round(MIN_SAVING_SHARE * largest))


def _is_ratio_below(first: LatencyRatio, second: LatencyRatio) -> bool:
    return first.high < second.low

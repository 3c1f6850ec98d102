"""Whether a change is worth having, by figures that scatter."""

from collections.abc import Sequence
from math import ceil

from memdiag.records.fix import Figures
from memdiag.units import format_sizes
from memdiag.verify.latency import Race
from memdiag.verify.ratio import Ratio

_LEAST_SAVING = 1 << 20
_LEAST_OF_SMALL = 1 << 19
_SHARE_OF_SMALL = 0.05
_LEAST_SHARE = 0.01
_CLEARLY_FASTER = 0.9

Races = Sequence[tuple[str, Race]]


def is_worth_it(before: Figures, after: Figures, races: Races, before_races: Races) -> bool:
    """Return whether a change saves memory or, at no cost in memory, much time.

    `before_races` are those of the model that was changed; all were run against the original.
    """
    return saves(before, after) or (is_faster(races, before_races) and not _grows(before, after))


def saves(before: Figures, after: Figures) -> bool:
    """Return whether `after` takes less beyond doubt, at the peak or in the end, and no more.

    Beyond doubt is what exceeds the spread of both, a hundredth of the peak, and 1 MiB; where a
    twentieth of the peak is less than that, it is that twentieth, but at least half a MiB.
    """
    smaller = before.disk_bytes - after.disk_bytes > _LEAST_SHARE * before.disk_bytes
    gained = smaller or any(gain > doubt for gain, doubt in _gains(before, after))
    return gained and not _grows(before, after)


def is_faster(races: Races, before: Races) -> bool:
    """Return whether `races` were won beyond doubt with some inputs, and lost with none.

    `before` are those of the model that was changed; both were run against the original. It is
    what remedies against lost time are for, such as those against denormal values.
    """
    standing = {name: race.ratio for name, race in before}
    pairs = [(race.ratio, standing.get(name)) for name, race in races]
    faster = any(
        new.high < _CLEARLY_FASTER * (old.low if old is not None else 1.0) for new, old in pairs
    )
    return faster and all(
        new.median <= (old.median if old is not None else 1.0) for new, old in pairs
    )


def too_slow(races: Races, limit: float) -> str | None:
    """Return with which inputs a model is slower by more than `limit`; None where with none."""
    for name, race in races:
        if race.ratio.low > limit:
            return f"slower: {_interval(race)} with {name}"
    return None


def undecided(races: Races, limit: float) -> str | None:
    """Return with which inputs a model may or may not be slower by more than `limit`.

    Its median is above the limit, and the interval holds the limit; None where there is no such
    race. A median below the limit is enough to be called as fast.
    """
    doubtful = [(name, race) for name, race in races if race.ratio.low <= limit < race.ratio.median]
    if not doubtful:
        return None
    name, race = max(doubtful, key=lambda one: one[1].ratio.high)
    high = ceil(race.ratio.high * 100) / 100
    return (
        f"latency {_interval(race)} with {name} after {race.ratio.pairs} pairs does not tell;"
        f" --max-slowdown {high:.2f} takes it"
    )


def takes_less(one: Figures, other: Figures) -> bool | None:
    """Return whether `one` takes less memory than `other`; None where it cannot be told.

    What counts is anonymous memory, then all at the steady state, then the peak.
    """
    floor = _floor(one.peak_bytes, other.peak_bytes)
    steady = max(floor, one.steady_spread_bytes, other.steady_spread_bytes)
    peak = max(floor, one.peak_spread_bytes, other.peak_spread_bytes)
    for mine, others, doubt in (
        (one.anonymous_bytes, other.anonymous_bytes, steady),
        (one.steady_bytes, other.steady_bytes, steady),
        (one.peak_bytes, other.peak_bytes, peak),
    ):
        if abs(mine - others) > doubt:
            return mine < others
    return None


def takes_less_time(one: Races, other: Races) -> bool | None:
    """Return whether `one` wins with some inputs, and loses with none; None if it cannot be told.

    Both were run against the same original.
    """
    others = {name: race.ratio for name, race in other}
    pairs = [(race.ratio, others[name]) for name, race in one if name in others]
    wins = any(_is_below(mine, theirs) for mine, theirs in pairs)
    losses = any(_is_below(theirs, mine) for mine, theirs in pairs)
    return None if wins == losses else wins


def in_words(before: Figures, after: Figures) -> str:
    """Return how peak and steady memory change."""
    peak = " → ".join(format_sizes(before.peak_bytes, after.peak_bytes))
    return (
        f"peak {peak}, steady {' → '.join(format_sizes(before.steady_bytes, after.steady_bytes))}"
    )


def _interval(race: Race) -> str:
    return f"{race.ratio.median:.2f} × ({race.ratio.low:.2f}–{race.ratio.high:.2f})"


def _grows(before: Figures, after: Figures) -> bool:
    return any(gain < -doubt for gain, doubt in _gains(before, after))


def _gains(before: Figures, after: Figures) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return what is saved at the peak and in the end, each with what may be chance."""
    floor = _floor(before.peak_bytes)
    return (
        (
            before.peak_bytes - after.peak_bytes,
            max(floor, before.peak_spread_bytes, after.peak_spread_bytes),
        ),
        (
            before.steady_bytes - after.steady_bytes,
            max(floor, before.steady_spread_bytes, after.steady_spread_bytes),
        ),
    )


def _floor(*peaks: int) -> int:
    most = max(peaks)
    of_small = max(_LEAST_OF_SMALL, round(_SHARE_OF_SMALL * most))
    return max(min(_LEAST_SAVING, of_small), round(_LEAST_SHARE * most))


def _is_below(one: Ratio, other: Ratio) -> bool:
    return one.high < other.low

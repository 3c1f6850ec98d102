"""Lists of names and counts in the sentences of findings."""

from collections.abc import Sequence

from memdiag.records.weights import Weight, qualified_name

MAX_LISTED = 3
"""Names that a sentence lists."""


def some_of(names: Sequence[str], limit: int = MAX_LISTED) -> str:
    """Return the first few of `names`, and how many more there are: ``a, b, c and 12 more``."""
    listed = ", ".join(names[:limit])
    more = len(names) - limit
    return f"{listed} and {more:,} more" if more > 0 else listed


def some_weights(weights: Sequence[Weight]) -> str:
    """Return the names of the first few weights: ``a, b and c``, or ``a, b, c and 12 more``."""
    names = list(map(qualified_name, weights))
    if len(names) > MAX_LISTED or len(names) < 2:
        return some_of(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def counted(count: int, noun: str) -> str:
    """Return ``1 weight`` or ``12 weights``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

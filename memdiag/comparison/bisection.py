"""Finding the version in which a figure jumped."""

from collections.abc import Callable, Sequence

from memdiag.records.comparison import Column

Measure = Callable[[str], Column]
Differs = Callable[[Column, Column], bool]


def bisect(
    candidates: Sequence[str], measure: Measure, differs: Differs
) -> tuple[Column, Column] | None:
    """Return two columns of versions next to each other between which a figure `differs`.

    `candidates` are in the order of their age. Those that cannot be measured are passed over, so
    that the two are neighbours among the others. Where the figure jumps several times it is one of
    the jumps. None where the oldest and the newest do not differ.
    """
    left = list(candidates)
    low = _first(left, measure)
    high = _first(left[::-1], measure)
    if low is None or high is None or not differs(low, high):
        return None
    left = left[left.index(low.label) + 1 : left.index(high.label)]
    while left:
        middle = left[len(left) // 2]
        column = measure(middle)
        if column.measured is None:
            left.remove(middle)
        elif differs(low, column):
            high, left = column, left[: left.index(middle)]
        else:
            low, left = column, left[left.index(middle) + 1 :]
    return low, high


def _first(candidates: Sequence[str], measure: Measure) -> Column | None:
    for version in candidates:
        column = measure(version)
        if column.measured is not None:
            return column
    return None

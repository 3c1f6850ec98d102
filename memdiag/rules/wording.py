"""Lists of names in a finding's sentence."""

from collections.abc import Sequence

_MOST = 3


def some_of(names: Sequence[str], most: int = _MOST) -> str:
    """Return the first few of `names`, and how many more there are: ``a, b, c and 12 more``."""
    shown = ", ".join(names[:most])
    left = len(names) - most
    return f"{shown} and {left:,} more" if left > 0 else shown


def counted(count: int, noun: str) -> str:
    """Return ``1 weight`` or ``12 weights``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

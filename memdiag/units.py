"""Sizes, durations, counts and lists of names as text.

Output has binary units. Input may have binary or decimal units.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from memdiag.errors import UsageError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MIN_GROUP_GAP = 0.02
"""Share of the largest size by which two groups of sizes must differ."""

MAX_LISTED_NAMES = 3
"""Names that a sentence lists."""

MAX_LISTED_LENGTH = 120
"""Characters of the names that a sentence lists, if it lists more than one."""

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
}
_SIZE_TEXT = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Return the bytes that `text` means: ``2GB``, ``1.5 GiB``, ``800 MB`` or plain bytes.

    Raises:
        UsageError: the text is not a size.
    """
    match = _SIZE_TEXT.fullmatch(text)
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a size. Write it like 800MB, 1.5GiB or a number of bytes."
        )
    return round(float(match[1]) * factor)


_ALIKE_SHARE = 0.01

MAX_SIZE_BYTES = 1 << 63
"""Sizes from this one on are not written as numbers. Only damaged files have them."""


def format_size(size: int, *, signed: bool = False) -> str:
    """Return `size` bytes as text in GiB, MiB, KiB or B, with three digits where they matter."""
    sign = "-" if size < 0 else "+" if signed and size > 0 else ""
    size = abs(size)
    if size >= MAX_SIZE_BYTES:
        return f"{sign}more than 8,589,934,592 GiB"
    if size >= GIB:
        return f"{sign}{size / GIB:.2f} GiB"
    if size >= 10 * MIB:
        return f"{sign}{size / MIB:,.0f} MiB"
    if size >= MIB:
        return f"{sign}{size / MIB:.1f} MiB"
    if size >= KIB:
        return f"{sign}{size / KIB:.0f} KiB"
    return f"{sign}{size} B"


def format_rate(size: float, *, signed: bool = False) -> str:
    """Return bytes for each run, second or session as text.

    It is the text of `format_size`, but a few KiB have a decimal: ``1.5 KiB``.
    """
    rounded = round(size)
    if not KIB <= abs(rounded) < 9.95 * KIB:
        return format_size(rounded, signed=signed)
    text = f"{abs(rounded) / KIB:.1f}".removesuffix(".0")
    return f"{'-' if rounded < 0 else '+' if signed else ''}{text} KiB"


def format_sizes(*sizes: int) -> list[str]:
    """Return sizes for texts that compare them, each as `format_size` formats it.

    Two sizes that would look equal but differ by more than a hundredth get a decimal.
    """
    sizes_by_text: dict[str, list[int]] = {}
    for size in sizes:
        sizes_by_text.setdefault(format_size(size), []).append(size)
    if all(
        max(same_text) - min(same_text) <= _ALIKE_SHARE * abs(max(same_text))
        for same_text in sizes_by_text.values()
    ):
        return [format_size(size) for size in sizes]
    return [
        f"{size / MIB:,.1f} MiB" if 10 * MIB <= abs(size) < GIB else format_size(size)
        for size in sizes
    ]


def format_limit(limit: int) -> str:
    """Return a limit in bytes as text, as `format_size` does.

    A limit that is round in MB or GB is also shown in that unit. A small one has a decimal, so that
    a size just above it is not shown as the same.
    """
    if limit % (1000**2 // 10) or limit % MIB == 0:
        return format_size(limit)
    is_gb = limit >= 1000**3 and limit % (1000**3 // 100) == 0
    megabytes = f"{limit / 1000**2:,.1f}".removesuffix(".0")
    decimal = f"{limit / 1000**3:g} GB" if is_gb else f"{megabytes} MB"
    size = f"{limit / MIB:.1f} MiB" if MIB <= limit < 100 * MIB else format_size(limit)
    return f"{size} ({decimal})"


def format_duration(seconds: float) -> str:
    """Return `seconds` as text.

    Examples: ``410 µs``, ``28 ms``, ``1.9 s``, ``2 min 05 s``, ``3 h 10 min``, ``3 days``.
    """
    # Each bound is where rounding would reach the next unit.
    if seconds >= 47.99 * 3600:
        return f"{seconds / 86400:.0f} days"
    if seconds >= 119.5 * 60:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min"
    if seconds >= 119.5:
        minutes, remaining_s = divmod(round(seconds), 60)
        return f"{minutes} min {remaining_s:02d} s"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    if seconds >= 0.00995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds >= 0.0009995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


_DURATION_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION_TEXT = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)\s*")


def parse_duration(text: str) -> float:
    """Return the seconds that `text` means: ``500ms``, ``5s``, ``10min``, ``2h`` or seconds.

    Raises:
        UsageError: the text is not a duration above 0.
    """
    match = _DURATION_TEXT.fullmatch(text)
    factor = _DURATION_UNITS.get(match[2]) if match else None
    seconds = float(match[1]) * factor if match and factor else 0.0
    if not seconds:
        raise UsageError(f"{text!r} is not a duration. Write it like 500ms, 5s, 10min or 2h.")
    return seconds


def two_groups(sizes: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the smaller and the larger of `sizes` if they form two groups, else None.

    The gap between the groups is at least 1 MiB and 2 % of the largest size, and more than three
    times as wide as both groups together.
    """
    ordered = sorted(sizes)
    gaps = [after - before for before, after in pairwise(ordered)]
    gap = max(gaps, default=0)
    split = gaps.index(gap) + 1 if gaps else 0
    is_notable = gap >= max(MIB, MIN_GROUP_GAP * ordered[-1]) if gaps else False
    if not is_notable or gap <= 3 * (ordered[-1] - ordered[0] - gap):
        return None
    return ordered[:split], ordered[split:]


def plural(count: int, singular: str, plural_noun: str = "") -> str:
    """Return the noun for `count` things: ``weight``, ``weights``."""
    return singular if count == 1 else plural_noun or f"{singular}s"


def counted(count: int, singular: str, plural_noun: str = "") -> str:
    """Return `count` with its noun: ``1 weight``, ``1,200 weights``."""
    return f"{count:,} {plural(count, singular, plural_noun)}"


def some_of(names: Sequence[str], limit: int | None = None, separator: str = ", ") -> str:
    """Return the first few of `names`, and how many more there are: ``a, b, c and 12 more``.

    Without a `limit`, fewer names are listed if they are long, but at least one.
    """
    if limit is None:
        limit = MAX_LISTED_NAMES
        while limit > 1 and len(separator.join(names[:limit])) > MAX_LISTED_LENGTH:
            limit -= 1
    listed_names = separator.join(names[:limit])
    omitted_count = len(names) - limit
    return f"{listed_names} and {omitted_count:,} more" if omitted_count > 0 else listed_names

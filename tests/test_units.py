"""Sizes, rates, durations and limits as text, and sizes read from text."""

from collections.abc import Callable
from functools import partial

import pytest

from memdiag.errors import UsageError
from memdiag.units import (
    GIB,
    KIB,
    MIB,
    format_duration,
    format_limit,
    format_rate,
    format_size,
    format_sizes,
    parse_size,
    two_groups,
)

signed_size = partial(format_size, signed=True)
signed_rate = partial(format_rate, signed=True)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2_000_000_000),
        ("1.5 GiB", 3 * GIB // 2),
        ("800 mb", 800_000_000),
        ("64MiB", 64 * MIB),
        ("12 kb", 12_000),
        ("4096", 4096),
        ("7 B", 7),
    ],
)
def test_sizes_are_read_in_decimal_and_binary_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1MB", "1..5GB", "2 gigs", "1e9", "٣MB x", "9" * 400])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("formatted", "value", "text"),
    [
        (format_size, 0, "0 B"),
        (format_size, 1023, "1023 B"),
        (format_size, KIB, "1 KiB"),
        (format_size, MIB, "1.0 MiB"),
        (format_size, 10 * MIB, "10 MiB"),
        (format_size, 512 * MIB, "512 MiB"),
        (format_size, GIB, "1.00 GiB"),
        (format_size, 3 * GIB // 2, "1.50 GiB"),
        (format_size, -64 * MIB, "-64 MiB"),
        (format_size, 10**400, "more than 8,589,934,592 GiB"),
        (signed_size, 64 * MIB, "+64 MiB"),
        (signed_size, 0, "0 B"),
        # A small rate has a decimal.
        (signed_rate, 600.4, "+600 B"),
        (signed_rate, 1024, "+1 KiB"),
        (signed_rate, 1536, "+1.5 KiB"),
        (signed_rate, -1536, "-1.5 KiB"),
        (signed_rate, 9.94 * 1024, "+9.9 KiB"),
        (signed_rate, 9.96 * 1024, "+10 KiB"),
        (signed_rate, 25 * 1024, "+25 KiB"),
        (signed_rate, 1.5 * MIB, "+1.5 MiB"),
        (format_rate, 1.5 * MIB, "1.5 MiB"),
        (format_rate, -1536, "-1.5 KiB"),
        (format_duration, 0.00041, "410 µs"),
        (format_duration, 0.0028, "2.8 ms"),
        (format_duration, 0.028, "28 ms"),
        (format_duration, 1.94, "1.9 s"),
        (format_duration, 42.4, "42 s"),
        (format_duration, 125, "2 min 05 s"),
        (format_duration, 0.00099999, "1.0 ms"),
        (format_duration, 0.0099999, "10 ms"),
        (format_duration, 0.99999, "1.0 s"),
        (format_duration, 9.9999, "10 s"),
        (format_duration, 119.9, "2 min 00 s"),
        (format_duration, 7169, "119 min 29 s"),
        (format_duration, 7171, "2 h 00 min"),
        (format_duration, 11_400, "3 h 10 min"),
        (format_duration, 172_790, "2 days"),
        (format_duration, 291_933, "3 days"),
        # A limit in megabytes is shown as it was given.
        (format_limit, 300_000_000, "286 MiB (300 MB)"),
        (format_limit, 2_000_000_000, "1.86 GiB (2 GB)"),
        (format_limit, 1_250_000_000, "1.16 GiB (1.25 GB)"),
        (format_limit, 1_255_000_000, "1.17 GiB (1,255 MB)"),
        (format_limit, 18_500_000, "17.6 MiB (18.5 MB)"),
        (format_limit, 15_000_000, "14.3 MiB (15 MB)"),
        (format_limit, 104_000_000, "99.2 MiB (104 MB)"),
        (format_limit, 105_000_000, "100 MiB (105 MB)"),
        (format_limit, 300 * MIB, "300 MiB"),
        (format_limit, 300_000_001, "286 MiB"),
    ],
)
def test_quantities_print_in_one_style(
    formatted: Callable[[float], str], value: float, text: str
) -> None:
    assert formatted(value) == text


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        ((64.0, 32.0), ["64 MiB", "32 MiB"]),
        ((12.4, 11.7), ["12.4 MiB", "11.7 MiB"]),
        ((12.44, 12.36), ["12 MiB", "12 MiB"]),  # too near each other to be told apart
        ((12.4, 11.7, 9.26, 0.5), ["12.4 MiB", "11.7 MiB", "9.3 MiB", "512 KiB"]),
        ((-12.4, -11.7), ["-12.4 MiB", "-11.7 MiB"]),
        ((12.0, 12.0), ["12 MiB", "12 MiB"]),
        ((0.0, 0.0), ["0 B", "0 B"]),
        ((), []),
    ],
)
def test_sizes_next_to_each_other_are_told_apart(sizes: list[float], texts: list[str]) -> None:
    assert format_sizes(*(round(size * MIB) for size in sizes)) == texts


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([81, 94, 81, 94, 94], ([81, 81], [94, 94, 94])),
        ([94, 81], ([81], [94])),
        ([81, 82, 81, 94, 95], ([81, 81, 82], [94, 95])),
        ([], None),
        ([81], None),
        ([81, 81, 81], None),
        ([81, 84, 88, 91, 94], None),  # a range, not two groups
        ([93, 96, 97, 97], None),
        ([1000, 1010, 1010], None),  # 1 %
        ([10, 10, 11], ([10, 10], [11])),
        ([9 / 1024, 900 / 1024], None),
    ],
)
def test_two_groups(sizes: list[float], expected: tuple[list[int], list[int]] | None) -> None:
    found = two_groups([round(size * MIB) for size in sizes])
    in_mib = found and tuple([size // MIB for size in group] for group in found)
    assert in_mib == expected

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
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (MIB, "1.0 MiB"),
        (512 * MIB, "512 MiB"),
        (3 * GIB // 2, "1.50 GiB"),
        (-64 * MIB, "-64 MiB"),
        (10**400, "more than 8,589,934,592 GiB"),
    ],
)
def test_sizes_print_in_one_style(size: int, text: str) -> None:
    assert format_size(size) == text


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
def test_sizes_beside_each_other_are_told_apart(sizes: list[float], texts: list[str]) -> None:
    assert format_sizes(*(round(size * MIB) for size in sizes)) == texts


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (600.4, "+600 B"),
        (1024, "+1 KiB"),
        (1536, "+1.5 KiB"),
        (-1536, "-1.5 KiB"),
        (9.94 * 1024, "+9.9 KiB"),
        (9.96 * 1024, "+10 KiB"),
        (25 * 1024, "+25 KiB"),
        (1.5 * MIB, "+1.5 MiB"),
    ],
)
def test_a_small_rate_has_a_decimal(size: float, text: str) -> None:
    assert format_rate(size, signed=True) == text
    assert format_rate(size) == text.removeprefix("+")


def test_a_signed_size_shows_its_plus() -> None:
    assert format_size(64 * MIB, signed=True) == "+64 MiB"
    assert format_size(0, signed=True) == "0 B"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00041, "410 µs"),
        (0.0028, "2.8 ms"),
        (0.028, "28 ms"),
        (1.94, "1.9 s"),
        (42.4, "42 s"),
        (125, "2 min 05 s"),
        (0.00099999, "1.0 ms"),
        (0.0099999, "10 ms"),
        (0.99999, "1.0 s"),
        (9.9999, "10 s"),
        (119.9, "2 min 00 s"),
        (7169, "119 min 29 s"),
        (7171, "2 h 00 min"),
        (11_400, "3 h 10 min"),
        (172_790, "2 days"),
        (291_933, "3 days"),
    ],
)
def test_durations_print_as_people_say_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


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
    ],
)
def test_two_groups(sizes: list[int], expected: tuple[list[int], list[int]] | None) -> None:
    found = two_groups([size * MIB for size in sizes])
    wanted = expected and tuple([size * MIB for size in group] for group in expected)
    assert (found and tuple(map(list, found))) == wanted
    assert two_groups([9 * KIB, 900 * KIB]) is None


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (300_000_000, "286 MiB (300 MB)"),
        (2_000_000_000, "1.86 GiB (2 GB)"),
        (1_250_000_000, "1.16 GiB (1.25 GB)"),
        (1_255_000_000, "1.17 GiB (1,255 MB)"),
        (18_500_000, "17.6 MiB (18.5 MB)"),
        (15_000_000, "14.3 MiB (15 MB)"),
        (300 * MIB, "300 MiB"),
        (300_000_001, "286 MiB"),
    ],
)
def test_a_limit_in_megabytes_is_shown_as_it_was_given(limit: int, text: str) -> None:
    assert format_limit(limit) == text

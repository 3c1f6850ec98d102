"""The owners of the resident memory: their order, parts and sentences."""

import pytest

from memdiag.records.attribution import (
    WHOLE_FILE_COPY_NAME,
    Attribution,
    Owner,
    OwnerKind,
    Unidentifiable,
)
from memdiag.reports.xray import owners
from tests.reports import attributions, tied_xray
from tests.reports.profiles import MIB
from tests.reports.rendering import replaced

TIED = tied_xray.attribution()
HEAP_IN_USE = "blocks in use: graph, kernels, program"


def owner(kind: OwnerKind, name: str, mebibytes: int = 1) -> Owner:
    size = mebibytes * MIB
    return Owner(kind=kind, name=name, bytes=size, private_bytes=size)


def owned(*parts: Owner, **changes: object) -> Attribution:
    return replaced(TIED, owners=parts, resident_bytes=sum(p.bytes for p in parts), **changes)


def test_the_largest_comes_first_and_unnamed_memory_last() -> None:
    rows = owners.owner_rows(TIED)
    assert [(row.label, row.size_bytes // MIB) for row in rows] == [
        ("weights", 1506),
        ("Python", 46),
        ("arena slack", 12),
        ("retained by malloc", 6),
        ("arena, in use", 4),
        ("unnamed", 5),
    ]
    last = owners.owner_rows(owned(owner("unnamed", "unnamed", 9), owner("python", "objects")))[-1]
    assert last.label == "unnamed"
    assert sum(row.size_bytes for row in rows) == 1579 * MIB
    whole_arena = owners.owner_rows(owned(owner("arena", "in use or slack", 16)))
    assert [row.label for row in whole_arena] == ["arena"]


def test_owners_of_a_kind_are_added_up() -> None:
    rows = owners.owner_rows(attributions.attribution(*attributions.SHARED))
    assert [row.label for row in rows] == ["weights", "Python", "other heap", "unnamed"]
    assert [row.size_bytes // MIB for row in rows] == [137, 90, 9, 1]


def test_the_parts_of_an_owner_are_named_the_largest_first() -> None:
    rows = {row.id: row for row in owners.owner_rows(TIED)}
    assert rows["weights"].parts == "original 506 MiB · transposed 500 MiB · packed 500 MiB"
    assert rows["weights"].sentence == rows["weights"].parts
    assert rows["python"].parts == "objects"
    assert rows["unnamed"].parts == ""
    (hostile,) = owners.owner_rows(owned(owner("python", "\x1b[31mred")))
    assert hostile.parts == r"\x1b[31mred"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((WHOLE_FILE_COPY_NAME,), "the model file's bytes"),
        (("w", WHOLE_FILE_COPY_NAME), "original 20 MiB · the model file's bytes 20 MiB"),
        (("w",), "original"),
    ],
)
def test_the_bytes_of_the_model_file_are_a_part_of_the_weights(
    names: tuple[str, ...], expected: str
) -> None:
    """Where a program loaded the model from bytes and keeps them."""
    copies = [attributions.copy("original", 20 * MIB, name) for name in names]
    rows = owner_rows(attributions.attribution(*copies))
    (row,) = [row for row in rows if row.id == "weights"]
    assert (row.sentence, row.size_bytes) == (expected, 20 * MIB * len(copies))


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (8, "probably 8.0 MiB of weights that are not located, see below"),
        (4, HEAP_IN_USE),
        (10, HEAP_IN_USE),
    ],
)
def test_other_heap_that_is_mostly_weights_is_said_to_be(constant: int, expected: str) -> None:
    """Of 9 MiB: weights whose content cannot be told from other memory."""
    group = Unidentifiable(reason="few values", count=3, bytes=constant * MIB, weights=("c",))
    rows = owner_rows(attributions.attribution(indistinct=(group,)))
    assert [row.sentence for row in rows if row.kind == "other_heap"] == [expected]


@pytest.mark.parametrize(("trimmed", "size"), [(30 * MIB, 36 * MIB), (0, 6 * MIB)])
def test_memory_that_malloc_trim_returned_counts_as_retained(trimmed: int, size: int) -> None:
    rows = owners.owner_rows(TIED, trimmed_bytes=trimmed)
    (retained,) = [row for row in rows if row.label == "retained by malloc"]
    assert retained.size_bytes == size
    assert sum(row.size_bytes for row in rows) == 1579 * MIB + trimmed


def test_retained_memory_is_a_row_also_where_the_xray_saw_none() -> None:
    record = owned(owner("python", "objects"))
    labels = [row.label for row in owners.owner_rows(record, trimmed_bytes=2 * MIB)]
    assert labels == ["retained by malloc", "Python"]


@pytest.mark.parametrize(
    ("allocator", "name", "sentence", "returned_by"),
    [
        ("glibc", "blocks in use", HEAP_IN_USE, "malloc_trim"),
        (None, "blocks in use", HEAP_IN_USE, "malloc_trim"),
        ("jemalloc", "blocks in use", f"jemalloc's {HEAP_IN_USE}", "jemalloc"),
        (
            *("mimalloc", "blocks in use or retained"),
            *("mimalloc's heap, in use or kept, and private mappings", "mimalloc"),
        ),
    ],
)
def test_the_allocator_of_the_other_heap_is_named_unless_it_is_glibcs(
    allocator: str | None, name: str, sentence: str, returned_by: str
) -> None:
    record = owned(owner("other_heap", name), allocator=allocator)
    rows = owners.owner_rows(record, trimmed_bytes=2 * MIB)
    assert [(row.label, row.sentence) for row in rows] == [
        ("retained by malloc", "freed, not returned to the system"),
        ("other heap", sentence),
    ]
    assert rows[0].parts == f"returned by {returned_by}"


def test_without_a_baseline_the_share_is_of_all_that_is_resident() -> None:
    share = owners.identified_share(TIED)
    assert share == "99.6 % of the memory above the baseline is identified"
    whole = replaced(TIED, baseline_bytes=None)
    assert owners.identified_share(whole) == "99.6 % of the resident memory is identified"


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50 %"), (0.0004, "< 0.1 %"), (0.0, "0 %")],
)
def test_shares_are_never_rounded_up(share: float, text: str) -> None:
    assert percent_text(share) == text


@pytest.mark.parametrize(
    ("size", "digits", "text"),
    [(0, 0, "0"), (1, 0, "<1"), (MIB, 0, "1"), (1, 1, "<0.1"), (MIB // 2, 1, "0.5"), (0, 1, "0.0")],
)
def test_a_little_is_not_nothing(size: int, digits: int, text: str) -> None:
    assert owners.rounded_mebibytes(size, digits) == text

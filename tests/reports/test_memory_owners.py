import msgspec
import pytest

from memdiag.records.attribution import WHOLE_FILE_COPY_NAME, Attribution, Owner, Unidentifiable
from memdiag.reports.xray.memory_owners import (
    identified_share,
    owner_rows,
    percent_text,
    rounded_mebibytes,
)
from tests.reports import attributions, tied_xray
from tests.reports.profiles import MIB


def owned(*owners: Owner, **changes: object) -> Attribution:
    resident = sum(owner.bytes for owner in owners)
    return msgspec.structs.replace(
        tied_xray.attribution(), owners=owners, resident_bytes=resident, **changes
    )


def test_the_largest_comes_first_and_unnamed_memory_last() -> None:
    rows = owner_rows(tied_xray.attribution())
    assert [row.label for row in rows] == [
        "weights", "Python", "arena slack", "retained by malloc", "arena, in use", "unnamed",
    ]  # fmt: skip
    larger = Owner(kind="unnamed", name="unnamed", bytes=9 * MIB, private_bytes=9 * MIB)
    last = owner_rows(
        owned(larger, Owner(kind="python", name="objects", bytes=MIB, private_bytes=MIB))
    )[-1]
    assert last.label == "unnamed"
    assert sum(row.size_bytes for row in rows) == 1579 * MIB


def test_the_parts_of_an_owner_are_named_the_largest_first() -> None:
    rows = {row.id: row for row in owner_rows(tied_xray.attribution())}
    assert rows["weights"].parts == "original 506 MiB · transposed 500 MiB · packed 500 MiB"
    assert rows["weights"].sentence == rows["weights"].parts
    assert rows["python"].parts == "objects"
    assert rows["unnamed"].parts == ""


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
        (4, "blocks in use: graph, kernels, program"),
        (10, "blocks in use: graph, kernels, program"),
    ],
)
def test_other_heap_that_is_mostly_weights_is_said_to_be(constant: int, expected: str) -> None:
    """Of 9 MiB: weights whose content cannot be told from other memory."""
    group = Unidentifiable(reason="few values", count=3, bytes=constant * MIB, weights=("c",))
    rows = owner_rows(attributions.attribution(indistinct=(group,)))
    assert [row.sentence for row in rows if row.kind == "other_heap"] == [expected]


def test_slack_and_retained_memory_are_rows_of_their_own_with_a_sentence() -> None:
    rows = {row.label: row for row in owner_rows(tied_xray.attribution())}
    slack, retained = rows["arena slack"], rows["retained by malloc"]
    assert (slack.size_bytes, slack.sentence) == (
        12 * MIB,
        "free, kept by onnxruntime for later runs",
    )
    assert (retained.size_bytes, retained.sentence) == (
        6 * MIB,
        "freed, not returned to the system",
    )
    assert rows["arena, in use"].size_bytes == 4 * MIB
    arena = Owner(kind="arena", name="in use or slack", bytes=16 * MIB, private_bytes=16 * MIB)
    assert [row.label for row in owner_rows(owned(arena))] == ["arena"]


@pytest.mark.parametrize(("trimmed", "size"), [(30 * MIB, 36 * MIB), (0, 6 * MIB)])
def test_memory_that_malloc_trim_returned_counts_as_retained(trimmed: int, size: int) -> None:
    rows = owner_rows(tied_xray.attribution(), trimmed_bytes=trimmed)
    (retained,) = [row for row in rows if row.label == "retained by malloc"]
    assert retained.size_bytes == size
    assert sum(row.size_bytes for row in rows) == 1579 * MIB + trimmed


@pytest.mark.parametrize(
    ("allocator", "name", "sentence", "returned_by"),
    [
        ("glibc", "blocks in use", "blocks in use: graph, kernels, program", "malloc_trim"),
        (None, "blocks in use", "blocks in use: graph, kernels, program", "malloc_trim"),
        (
            "jemalloc",
            "blocks in use",
            "jemalloc's blocks in use: graph, kernels, program",
            "jemalloc",
        ),
        (
            "mimalloc",
            "blocks in use or retained",
            "mimalloc's heap, in use or kept, and private mappings",
            "mimalloc",
        ),
    ],
)
def test_the_allocator_of_the_other_heap_is_named_unless_it_is_glibcs(
    allocator: str | None, name: str, sentence: str, returned_by: str
) -> None:
    record = owned(Owner(kind="other_heap", name=name, bytes=MIB, private_bytes=MIB))
    record = msgspec.structs.replace(record, allocator=allocator)
    rows = owner_rows(record, trimmed_bytes=2 * MIB)
    assert [(row.label, row.sentence) for row in rows] == [
        ("retained by malloc", "freed, not returned to the system"),
        ("other heap", sentence),
    ]
    assert rows[0].parts == f"returned by {returned_by}"


def test_retained_memory_is_a_row_also_where_the_xray_saw_none() -> None:
    record = owned(Owner(kind="python", name="objects", bytes=MIB, private_bytes=MIB))
    labels = [row.label for row in owner_rows(record, trimmed_bytes=2 * MIB)]
    assert labels == ["retained by malloc", "Python"]
    assert [row.label for row in owner_rows(record)] == ["Python"]


def test_without_a_baseline_the_share_is_of_all_that_is_resident() -> None:
    record = tied_xray.attribution()
    assert identified_share(record) == "99.6 % of the memory above the baseline is identified"
    whole = msgspec.structs.replace(record, baseline_bytes=None)
    assert identified_share(whole) == "99.6 % of the resident memory is identified"


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
    assert rounded_mebibytes(size, digits) == text


def test_a_part_called_like_control_characters_is_plain() -> None:
    (row,) = owner_rows(
        owned(Owner(kind="python", name="\x1b[31mred", bytes=MIB, private_bytes=MIB))
    )
    assert row.parts == r"\x1b[31mred"

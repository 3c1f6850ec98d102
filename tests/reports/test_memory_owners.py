"""The owners of the resident memory: their order, sizes, parts and sentences."""

import pytest

from memdiag.records.attribution import (
    WHOLE_FILE_COPY_NAME,
    Attribution,
    Owner,
    Unidentifiable,
)
from memdiag.reports.xray import memory_owners
from tests.reports import tied_xray
from tests.reports.attributions import SHARED, attribution, copy, owner
from tests.reports.profiles import MIB
from tests.reports.rendering import assert_sentences_approved, replaced

TIED = tied_xray.attribution()


def owned(*parts: Owner, **changes: object) -> Attribution:
    resident = sum(part.bytes for part in parts)
    return replaced(TIED, owners=parts, resident_bytes=resident, **changes)


def original(*names: str) -> Attribution:
    return attribution(*(copy("original", 20 * MIB, name) for name in names))


def constant(mebibytes: int) -> Attribution:
    """Return weights whose content cannot be told from other memory, of 9 MiB of heap."""
    size = mebibytes * MIB
    return attribution(
        indistinct=(Unidentifiable(reason="few values", count=3, bytes=size, weights=("c",)),)
    )


def heap(allocator: str | None, name: str = "blocks in use") -> Attribution:
    return owned(owner("other_heap", name, MIB), allocator=allocator)


PYTHON = owner("python", "objects", MIB)
RECORDS: dict[str, tuple[Attribution, int]] = {
    "tied weight": (TIED, 0),
    "unnamed memory is last": (owned(owner("unnamed", "unnamed", 9 * MIB), PYTHON), 0),
    "owners of a kind are added up": (attribution(*SHARED), 0),
    "whole arena": (owned(owner("arena", "in use or slack", 16 * MIB)), 0),
    # A program loaded the model from bytes and keeps them.
    "bytes of the file": (original(WHOLE_FILE_COPY_NAME), 0),
    "bytes of the file, and a weight": (original("w", WHOLE_FILE_COPY_NAME), 0),
    "a weight": (original("w"), 0),
    "most of the heap are constant weights": (constant(8), 0),
    "less than half of the heap": (constant(4), 0),
    "more than the heap": (constant(10), 0),
    "malloc_trim returned 30 MiB": (TIED, 30 * MIB),
    "malloc_trim returned what the X-ray did not see": (owned(PYTHON), 2 * MIB),
    "glibc": (heap("glibc"), 2 * MIB),
    "allocator is not known": (heap(None), 2 * MIB),
    "jemalloc": (heap("jemalloc"), 2 * MIB),
    "mimalloc": (heap("mimalloc", "blocks in use or retained"), 2 * MIB),
}


def test_owners_have_a_size_a_sentence_and_parts() -> None:
    lines = {}
    for case, (record, trimmed) in RECORDS.items():
        rows = memory_owners.owner_rows(record, trimmed_bytes=trimmed)
        assert sum(row.size_bytes for row in rows) == record.resident_bytes + trimmed
        lines[case] = [
            f"{row.size_bytes / MIB:6.1f} MiB  {row.label:18}  {row.sentence:45}  {row.parts}"
            for row in rows
        ]
    assert_sentences_approved("owners", lines)


def test_without_a_baseline_the_share_is_of_all_that_is_resident() -> None:
    share = memory_owners.identified_share(TIED)
    assert share == "99.6 % of the memory above the baseline is identified"
    whole = replaced(TIED, baseline_bytes=None)
    assert memory_owners.identified_share(whole) == "99.6 % of the resident memory is identified"


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50 %"), (0.0004, "< 0.1 %"), (0.0, "0 %")],
)
def test_shares_are_never_rounded_up(share: float, text: str) -> None:
    assert memory_owners.percent_text(share) == text


@pytest.mark.parametrize(
    ("size", "digits", "text"),
    [(0, 0, "0"), (1, 0, "<1"), (MIB, 0, "1"), (1, 1, "<0.1"), (MIB // 2, 1, "0.5"), (0, 1, "0.0")],
)
def test_a_little_is_not_nothing(size: int, digits: int, text: str) -> None:
    assert memory_owners.rounded_mebibytes(size, digits) == text

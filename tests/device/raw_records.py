"""The recorded files read in a few lines of their own, to compare memdiag's figures with."""

from typing import Any

MIB = 1 << 20
PAGE = 2 * MIB
DEVICE_KIND, PINNED_KIND, STATIC_KIND = 3, 2, 6


def raw_mark(data: Any, name: str) -> Any:
    """Return the last mark of that name."""
    return [mark for mark in data["marks"] if mark["name"] == name][-1]


def raw_live(data: Any, until_ns: int) -> list[Any]:
    """Return the allocations of the device that are not released until then."""
    live: dict[int, Any] = {}
    for record in data["cupti_records"]:
        if record[0] <= until_ns and record[2] == DEVICE_KIND:
            if record[1] == 1:
                live[record[3]] = record
            else:
                del live[record[3]]
    return list(live.values())


def raw_pages(records: list[Any]) -> set[int]:
    """Return the pages of 2 MiB that allocations touch."""
    return {
        page
        for record in records
        for page in range(record[3] // PAGE, (record[3] + record[4] + PAGE - 1) // PAGE)
    }


def raw_bytes_of(records: list[Any], library: str) -> int:
    """Return the bytes that libraries asked for whose names contain `library`."""
    return sum(record[4] for record in records if library in record[10])


def raw_chunks(data: Any, memory: str = "Cuda") -> tuple[int, int]:
    """Return the bytes of the arena's chunks in use, and of its free ones."""
    for name, in_use, free, _, _ in data["arenas"]["objects"]:
        if name == memory:
            return in_use, free
    return 0, 0

"""What two columns have on a GPU: the parts that differ, and which difference is no chance."""

from collections import Counter

from memdiag.device.ledger import COARSE_CONTEXT_LABEL, OWNER_LABELS
from memdiag.records.comparison import ColumnFigures
from memdiag.records.device import DeviceMemory, DeviceOwner, Ledger, LedgerRow
from memdiag.units import MIB

MIN_DEVICE_CHANGE_BYTES = 4 * MIB
"""The context and code of equal sessions were within 3 MiB of each other in recorded processes."""

RECORDER_BYTES = 16 * MIB
"""The most that CUPTI was seen to take itself: a process without it takes as much less."""

RELEASED_PART = "memory that was released by the end of the runs"

_NOT_IN_COARSE_ROW: frozenset[DeviceOwner] = frozenset(
    {"weights", "weight_copies", "values", "empty_arena", "unread_arena", "other_processes"}
)
"""What a ledger without CUPTI tells apart from the context, the code and the libraries."""


def device_tolerance(before: ColumnFigures, after: ColumnFigures) -> int:
    """Return the bytes by which the memory on a GPU may differ without a cause."""
    has_cupti = [figures.device_peak is not None for figures in (before, after)]
    return MIN_DEVICE_CHANGE_BYTES + (RECORDER_BYTES if len({*has_cupti}) > 1 else 0)


def device_part_differences(
    before: DeviceMemory, after: DeviceMemory, *, of_peak: bool
) -> dict[str, int]:
    """Return the bytes that each part has more in `after` than in `before`, by its name.

    What one of the two does not tell apart is one part. The parts are those after the runs, and of
    a peak also what was released until then: their sum is the difference. Empty if they are not
    known.
    """
    if before.ledger is None or after.ledger is None:
        return {}
    if _has_arena(before.ledger) != _has_arena(after.ledger):
        return {}
    differences: Counter[str] = Counter()
    is_coarse = before.ledger.is_coarse or after.ledger.is_coarse
    value_labels = {*_value_labels(before.ledger), *_value_labels(after.ledger)}
    for memory, ledger, sign in ((before, before.ledger, -1), (after, after.ledger, 1)):
        for row in ledger.rows:
            if row.owner != "other_processes":
                name = _part_name(row, is_coarse=is_coarse, joins_values=len(value_labels) > 1)
                differences[name] += sign * row.bytes
        if of_peak and memory.peak_bytes is not None:
            differences[RELEASED_PART] += sign * (memory.peak_bytes - ledger.own_bytes)
    return dict(differences)


def _has_arena(ledger: Ledger) -> bool:
    return any(row.owner == "empty_arena" for row in ledger.rows)


def _value_labels(ledger: Ledger) -> list[str]:
    """Return the label of values: it says whether copies of weights were told apart."""
    return [row.label for row in ledger.rows if row.owner == "values"]


def _part_name(row: LedgerRow, *, is_coarse: bool, joins_values: bool) -> str:
    if is_coarse and row.owner not in _NOT_IN_COARSE_ROW:
        return COARSE_CONTEXT_LABEL
    if joins_values and row.owner in ("values", "weight_copies"):
        return OWNER_LABELS["values"]
    return row.label

"""Who has the memory of a device at its exact peak, against the raw records."""

from typing import Any

import pytest

from memdiag.device.ledger import device_ledger
from memdiag.device.peak import peak_ledger
from tests.device.raw_records import MIB, PAGE, raw_bytes_of, raw_live, raw_pages
from tests.device.recorded_sessions import (
    RECORDED_WITH_CUPTI,
    RECORDED_WITHOUT_CUPTI,
    failed_in_last_run,
    mark_named,
    raw,
    recorded,
    with_loss_after,
)

ONNXRUNTIME_OWNERS = ("weights", "unread_arena", "runtime", "values", "empty_arena")


def raw_peak(data: Any) -> tuple[int, list[Any]]:
    """Return the most that was in use on the device until the deletion, and the allocations then.

    Context and code are not among the allocations: they are what a reading has besides.
    """
    peaks = []
    for before, mark in zip(data["marks"], data["marks"][1:-1], strict=False):
        at_end = len(raw_pages(raw_live(data, mark["cupti_ns"])))
        times = [record[0] for record in data["cupti_records"]]
        for time_ns in (before["cupti_ns"], *times):
            if before["cupti_ns"] <= time_ns <= mark["cupti_ns"]:
                live = raw_live(data, time_ns)
                above_end = (len(raw_pages(live)) - at_end) * PAGE
                peaks.append((mark["mem_get_info_used"] + above_end, live))
    return max(peaks, key=lambda peak: peak[0])


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_each_owner_at_the_peak_is_what_the_raw_records_say(name: str) -> None:
    ledger = peak_ledger(recorded(name))
    assert ledger is not None
    used_bytes, live = raw_peak(raw(name))
    assert ledger.used_bytes == sum(row.bytes for row in ledger.rows) == used_bytes
    assert ledger.bytes_of("cublas") == raw_bytes_of(live, "libcublas")
    assert ledger.bytes_of("cudnn") == raw_bytes_of(live, "libcudnn")
    onnxruntime = sum(row.bytes for row in ledger.rows if row.owner in ONNXRUNTIME_OWNERS)
    assert onnxruntime == raw_bytes_of(live, "libcudart")
    pages = len(raw_pages(live)) * PAGE
    assert ledger.bytes_of("rounding") == pages - sum(record[4] for record in live)


def test_the_arena_returned_what_it_had_at_the_peak() -> None:
    recording = recorded("conv_shrink")
    peak, after = peak_ledger(recording), device_ledger(recording, mark_named(recording, "steady"))
    assert peak is not None
    assert after is not None
    assert peak.mark == "run 8"
    assert peak.used_bytes - after.used_bytes == 400 * MIB
    assert after.bytes_of("unread_arena") == after.bytes_of("empty_arena") == 0
    rounding = peak.bytes_of("rounding") - after.bytes_of("rounding")
    assert peak.bytes_of("unread_arena") + rounding == 400 * MIB > 100 * rounding > 0


def test_before_an_error_the_context_is_what_is_left() -> None:
    whole, failed = (
        peak_ledger(recording)
        for recording in (recorded("conv_default"), failed_in_last_run(recorded("conv_default")))
    )
    assert whole is not None
    assert failed is not None
    assert failed.used_bytes == whole.used_bytes
    (context,) = (row for row in failed.rows if row.owner == "context")
    assert context.basis == "remainder"


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_without_cupti_nothing_is_said(name: str) -> None:
    assert peak_ledger(recorded(name)) is None


def test_a_loss_of_records_before_the_last_run_leaves_the_peak_open() -> None:
    recording = recorded("conv_shrink")
    assert peak_ledger(with_loss_after(recording, "run 8")) is None
    # What is lost while the session is deleted is no part of it.
    whole, until_deletion = (
        peak_ledger(made) for made in (recording, with_loss_after(recording, "before delete"))
    )
    assert whole is not None
    assert until_deletion is not None
    assert until_deletion.used_bytes == whole.used_bytes

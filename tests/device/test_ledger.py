"""The ledger of a device: each row against the raw records, and the sum against cudaMemGetInfo."""

import msgspec
import pytest

from memdiag.device.ledger import (
    CUPTI_NOTE,
    MANAGED_NOTE,
    OTHERS_NOTE,
    context_bytes_after_deletion,
    device_ledger,
    other_process_bytes,
)
from memdiag.device.recording import ArenaChunks, DeviceMark, DeviceRecording
from memdiag.records.device import DeviceCopy, DeviceXray, Ledger, MissingSource
from memdiag.runner.log import ArenaReservation
from memdiag.units import MIB
from tests.device.raw_records import (
    PAGE,
    raw_bytes_of,
    raw_chunks,
    raw_live,
    raw_mark,
    raw_pages,
)
from tests.device.recorded_sessions import (
    NAMES,
    RECORDED_WITH_CUPTI,
    RECORDED_WITHOUT_CUPTI,
    mark_named,
    raw,
    recorded,
    without_mark_after_deletion,
)
from tests.device.test_allocations import allocated


def at_rest(recording: DeviceRecording) -> Ledger:
    mark = recording.mark_at_rest
    assert mark is not None
    ledger = device_ledger(recording, mark)
    assert ledger is not None
    return ledger


def sum_of(ledger: Ledger) -> int:
    return sum(row.bytes for row in ledger.rows)


def only(ledger: Ledger) -> dict[str, int]:
    return {row.label: row.bytes for row in ledger.rows if row.bytes}


def with_marks(name: str, **changes: object) -> DeviceRecording:
    """Return a recording with other fields in all its marks."""
    recording = recorded(name)
    marks = tuple(msgspec.structs.replace(mark, **changes) for mark in recording.marks)
    return msgspec.structs.replace(recording, marks=marks)


def test_there_are_twenty_recordings() -> None:
    assert len(NAMES) == 20
    assert len(RECORDED_WITHOUT_CUPTI) == 2


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_each_row_at_rest_is_what_the_raw_records_say(name: str) -> None:
    data, ledger = raw(name), at_rest(recorded(name))
    mark = raw_mark(data, "steady")
    records = raw_live(data, mark["cupti_ns"])
    in_use, free = raw_chunks(data)
    weights = sum(size for _, size in data["weights"])
    onnxruntime = raw_bytes_of(records, "libcudart")
    assert ledger.used_bytes == mark["mem_get_info_used"]
    assert ledger.bytes_of("cublas") == raw_bytes_of(records, "libcublas")
    assert ledger.bytes_of("cudnn") == raw_bytes_of(records, "libcudnn")
    assert ledger.bytes_of("empty_arena") == free
    # The arena and what it reserved outside of its regions are all that onnxruntime allocated.
    assert ledger.bytes_of("runtime") == ledger.bytes_of("unread_arena") == 0
    assert ledger.bytes_of("weights") + ledger.bytes_of("values") == onnxruntime - free
    assert ledger.bytes_of("weights") == weights
    assert ledger.bytes_of("values") == in_use - (weights if in_use else 0)
    rounding = len(raw_pages(records)) * PAGE - sum(record[4] for record in records)
    assert ledger.bytes_of("rounding") == rounding
    assert not ledger.is_coarse
    assert CUPTI_NOTE in ledger.notes


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_add_up_to_what_is_used_without_an_unexplained_byte(name: str) -> None:
    # Context and code are measured after the deletion, apart from the other rows: a row that
    # counted too much or too little would appear as `not explained`.
    recording, ledger = recorded(name), at_rest(recorded(name))
    deleted = raw_mark(raw(name), "deleted")
    left = raw_pages(raw_live(raw(name), deleted["cupti_ns"]))
    assert context_bytes_after_deletion(recording) == (
        deleted["mem_get_info_used"] - len(left) * PAGE
    )
    assert ledger.bytes_of("context") == context_bytes_after_deletion(recording)
    assert sum_of(ledger) == ledger.used_bytes
    assert ledger.bytes_of("unexplained") == 0


def test_a_row_that_counts_too_much_leaves_an_unexplained_rest() -> None:
    recording = recorded("resnet50_same")
    assert recording.allocations is not None
    lost = [allocation for allocation in recording.allocations if allocation.bytes != 64 * MIB]
    ledger = at_rest(msgspec.structs.replace(recording, allocations=tuple(lost)))
    assert ledger.bytes_of("unexplained") == 128 * MIB  # two workspaces of cuBLAS
    assert sum_of(ledger) == ledger.used_bytes


@pytest.mark.parametrize("name", RECORDED_WITH_CUPTI)
def test_without_a_deletion_the_remainder_is_the_context_within_a_narrow_band(name: str) -> None:
    ledger = at_rest(without_mark_after_deletion(recorded(name)))
    (context,) = (row for row in ledger.rows if row.owner == "context")
    assert context.basis == "remainder"
    # Measured on one H100 with one driver: 558.8 and 560.8 MiB. Convolutions of batch 8 load more.
    largest = 571 if name == "conv_shrink" else 561
    assert 558 * MIB < context.bytes < largest * MIB
    assert abs(sum_of(ledger) - ledger.used_bytes) == 0


@pytest.mark.parametrize("name", RECORDED_WITHOUT_CUPTI)
def test_without_cupti_libraries_and_rounding_are_one_row(name: str) -> None:
    data, ledger = raw(name), at_rest(recorded(name))
    used = raw_mark(data, "steady")["mem_get_info_used"]
    left = raw_mark(data, "deleted")["mem_get_info_used"]
    in_use, free = raw_chunks(data)
    assert ledger.is_coarse
    assert ledger.bytes_of("context") == left
    assert ledger.bytes_of("libraries_and_rounding") == used - left - in_use - free
    # The same session with CUPTI: what it has as rows of libraries and rounding.
    finer = at_rest(recorded(name.replace("_nocupti", "_default")))
    split = sum(finer.bytes_of(owner) for owner in ("cublas", "cudnn", "rounding"))
    assert split == ledger.bytes_of("libraries_and_rounding")
    assert "CUPTI" in ledger.notes[0]
    assert "the recording was made without it" in ledger.notes[0]
    assert CUPTI_NOTE not in ledger.notes


def test_cupti_itself_takes_what_the_note_says() -> None:
    contexts = {
        model: [
            context_bytes_after_deletion(recorded(f"{model}_{kind}")) or 0
            for kind in ("default", "nocupti")
        ]
        for model in ("conv", "dense")
    }
    costs = [with_cupti - without for with_cupti, without in contexts.values()]
    assert costs == [16 * MIB, 14 * MIB]


def test_without_cupti_and_a_deletion_the_remainder_names_all_that_is_in_it() -> None:
    recording = without_mark_after_deletion(recorded("dense_nocupti"))
    ledger = at_rest(recording)
    (context,) = (row for row in ledger.rows if row.owner == "context")
    assert context.label == "context, code and libraries"
    assert context.bytes == ledger.used_bytes - 256 * MIB


def test_an_arena_that_was_not_read_is_one_row_and_nothing_of_it_is_zero() -> None:
    recording = recorded("dense_default")
    ledger = device_ledger(recording, mark_named(recording, "session"))
    assert ledger is not None
    assert ledger.bytes_of("unread_arena") == 128 * MIB
    owners = {row.owner for row in ledger.rows}
    assert not owners & {"weights", "values", "empty_arena"}
    coarse = recorded("dense_nocupti")
    ledger = device_ledger(coarse, mark_named(coarse, "session"))
    assert ledger is not None
    assert {row.owner for row in ledger.rows} == {"context", "libraries_and_rounding"}


def test_an_arena_that_has_returned_its_regions_is_empty() -> None:
    # Its bookkeeping has no region, so that the heap shows no arena of the device.
    ledger = at_rest(recorded("conv_shrink"))
    assert raw_chunks(raw("conv_shrink")) == (0, 0)
    assert {"values", "empty_arena"} <= {row.owner for row in ledger.rows}
    assert ledger.bytes_of("values") == ledger.bytes_of("empty_arena") == 0


def test_what_is_not_reported_makes_no_ledger() -> None:
    recording = with_marks("dense_default", used_bytes=None)
    assert recording.mark_at_rest is not None
    assert device_ledger(recording, recording.mark_at_rest) is None
    assert context_bytes_after_deletion(recording) is None


def built(*allocations: object, used: int, **fields: object) -> Ledger:
    """Return the ledger of a recording with one mark."""
    recording = msgspec.structs.replace(
        recorded("dense_default"),
        marks=(
            DeviceMark(name="steady", seconds=1.0, is_alive=True, used_bytes=used * MIB, arenas=()),
        ),
        allocations=tuple(allocations),
        **{"regions": (), "reservations": (), "weights": (), **fields},
    )
    return at_rest(recording)


def test_libraries_are_told_apart_by_name() -> None:
    ledger = built(
        allocated(0, 4 * MIB, library="libcufft.so.12"),
        allocated(8 * MIB, 2 * MIB, library="libcublasLt.so.13"),
        allocated(16 * MIB, 6 * MIB, library=""),
        used=100,
    )
    assert only(ledger) == {
        "context and code": 88 * MIB,
        "cuBLAS": 2 * MIB,
        "libcufft.so.12": 4 * MIB,
        "unknown library": 6 * MIB,
    }


def test_what_onnxruntime_allocates_outside_its_arena_is_a_weight_if_the_log_reserved_it() -> None:
    events = (allocated(0, 4 * MIB), allocated(8 * MIB, 6 * MIB))
    assert only(built(*events, used=100))["runtime outside the arena"] == 10 * MIB
    reservation = ArenaReservation("Cuda", 6 * MIB, 0.0)
    ledger = built(*events, used=100, reservations=(reservation,))
    assert ledger.bytes_of("weights") == 6 * MIB
    assert ledger.bytes_of("runtime") == 4 * MIB
    elsewhere = reservation._replace(memory="Other")
    assert built(*events, used=100, reservations=(elsewhere,)).bytes_of("weights") == 0


def test_unused_memory_of_pools_and_managed_memory_are_said() -> None:
    ledger = built(
        allocated(0, MIB, pool_bytes=32 * MIB),
        allocated(64 * MIB, 8 * MIB, kind="managed"),
        used=100,
    )
    assert ledger.bytes_of("pools") == 31 * MIB
    assert MANAGED_NOTE in ledger.notes


def test_other_processes_are_what_the_device_held_before_this_one() -> None:
    recording = recorded("dense_default")
    rest = recording.mark_at_rest
    assert rest is not None
    assert other_process_bytes(recording, rest) == 0
    # Another process holds 300 MiB all the time: both figures of the whole device rise by it.
    marks = tuple(
        msgspec.structs.replace(
            mark,
            used_bytes=None if mark.used_bytes is None else mark.used_bytes + 300 * MIB,
            nvml_used_bytes=(mark.nvml_used_bytes or 0) + 300 * MIB,
        )
        for mark in recording.marks
    )
    shared = msgspec.structs.replace(recording, marks=marks)
    ledger = at_rest(shared)
    assert ledger.bytes_of("other_processes") == 300 * MIB
    assert ledger.bytes_of("unexplained") == 0
    assert ledger.bytes_of("context") == at_rest(recording).bytes_of("context")


def test_other_processes_are_unknown_without_nvml() -> None:
    recording = with_marks("dense_default", nvml_used_bytes=None)
    assert recording.mark_at_rest is not None
    assert other_process_bytes(recording, recording.mark_at_rest) is None
    assert OTHERS_NOTE in at_rest(recording).notes
    assert OTHERS_NOTE not in at_rest(recorded("dense_default")).notes


def test_chunks_of_another_memory_are_not_the_devices() -> None:
    pinned = ArenaChunks(memory="CudaPinned", in_use=((0, MIB),), free=((MIB, 3 * MIB),))
    recording = with_marks("dense_nocupti", arenas=(pinned,))
    ledger = at_rest(msgspec.structs.replace(recording, missing=()))
    assert ledger.bytes_of("empty_arena") == 0
    assert {row.owner for row in ledger.rows} == {"context", "libraries_and_rounding"}


def test_a_missing_source_has_its_reason() -> None:
    missing = MissingSource(source="NVML", reason="the process is not in its list")
    recording = msgspec.structs.replace(recorded("dense_default"), missing=(missing,))
    assert recording.missing_reason("NVML") == "the process is not in its list"
    assert recording.missing_reason("CUPTI") == ""


def copy_at(address: int, size: int, kind: str = "original", is_stale: bool = False) -> DeviceCopy:
    return DeviceCopy(
        weights=(f"w{address}",),
        kind=kind,  # type: ignore[arg-type] # one of the kinds
        layout=kind,
        parameters={},
        bytes=size,
        address=address,
        verified_bytes=size,
        is_stale=is_stale,
    )


def compared(recording: DeviceRecording, *copies: DeviceCopy) -> DeviceRecording:
    xray = DeviceXray(
        copies=copies,
        indistinct=(),
        absent=(),
        searched_bytes=0,
        copied_bytes=0,
        duration_s=0.0,
    )
    return msgspec.structs.replace(recording, xray=xray)


def first_chunk(recording: DeviceRecording) -> tuple[int, int]:
    """Return the address range of the first chunks in use of the device's arena."""
    assert recording.mark_at_rest is not None
    arenas = recording.mark_at_rest.arenas or ()
    return next(arena.in_use[0] for arena in arenas if arena.memory == "Cuda")


@pytest.mark.parametrize("name", ["dense_default", "dense_nocupti", "conv_nhwc", "encoder_same"])
def test_with_contents_the_arena_has_the_weights_that_were_found(name: str) -> None:
    recording = recorded(name)
    in_use, free = raw_chunks(raw(name))
    start, end = first_chunk(recording)
    half = (end - start) // 2
    ledger = at_rest(
        compared(
            recording,
            copy_at(start, half),
            copy_at(start + half, end - start - half, "transposed"),
            copy_at(start, half, "cast", is_stale=True),
        )
    )
    before = at_rest(recording)
    assert ledger.bytes_of("weights") == half
    assert ledger.bytes_of("weight_copies") == end - start - half
    assert ledger.bytes_of("values") == in_use - (end - start)
    assert ledger.bytes_of("empty_arena") == free
    assert sum_of(ledger) == ledger.used_bytes == before.used_bytes
    assert ledger.bytes_of("context") == before.bytes_of("context")


def test_bytes_of_overlapping_copies_count_once() -> None:
    recording = recorded("dense_default")
    start, _ = first_chunk(recording)
    ledger = at_rest(
        compared(
            recording,
            copy_at(start + MIB, 4 * MIB),
            copy_at(start + 3 * MIB, 4 * MIB, "transposed"),
            copy_at(start, 2 * MIB),
        )
    )
    assert ledger.bytes_of("weights") == 5 * MIB
    assert ledger.bytes_of("weight_copies") == 2 * MIB


def test_with_contents_weights_in_allocations_of_their_own_are_told_apart() -> None:
    events = (allocated(0, 4 * MIB), allocated(8 * MIB, 6 * MIB))
    reservation = ArenaReservation("Cuda", 6 * MIB, 0.0)
    xray = compared(recorded("dense_default"), copy_at(0, 3 * MIB), copy_at(3 * MIB, MIB, "cast"))
    ledger = built(*events, used=100, reservations=(reservation,), xray=xray.xray)
    assert only(ledger) == {
        "context and code": 90 * MIB,
        "weights": 3 * MIB,
        "weights in another layout": MIB,
        "runtime outside the arena": 6 * MIB,
    }


def test_without_cupti_reserved_weights_are_counted_by_size_next_to_those_found() -> None:
    recording = recorded("dense_nocupti")
    start, _ = first_chunk(recording)
    found = compared(recording, copy_at(start, MIB))
    reservation = ArenaReservation("Cuda", 6 * MIB, 0.0)
    reserved = msgspec.structs.replace(found, reservations=(reservation,))
    for changed, size, basis in ((found, MIB, "exact"), (reserved, 7 * MIB, "computed")):
        (row,) = (row for row in at_rest(changed).rows if row.owner == "weights")
        assert (row.bytes, row.basis) == (size, basis)

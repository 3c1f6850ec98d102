"""An error of a device that has too little memory, explained from a recording."""

import msgspec
import pytest

from memdiag.device.out_of_memory import out_of_memory_text
from memdiag.device.recording import ArenaChunks, DeviceRecording
from memdiag.units import MIB
from tests.device.recorded_sessions import failed_in_last_run, recorded

ARENA_ERROR = (
    "Non-zero status code returned while running Conv node. Failed to allocate memory for"
    " requested buffer of size 67108864"
)
LIMIT_ERROR = "Available memory of 33554432 is smaller than requested bytes of 67108864"


def failed(name: str = "conv_default") -> DeviceRecording:
    return failed_in_last_run(recorded(name))


def test_an_error_of_the_arena_names_request_holders_and_what_was_free() -> None:
    recording = failed()
    assert recording.device.total_bytes is not None
    free = recording.device.total_bytes - (recording.marks[-1].used_bytes or 0)
    text = out_of_memory_text(recording, ARENA_ERROR)
    assert text.startswith("onnxruntime asked for 64 MiB. No free chunk")
    assert "Before the error, allocations of the process took" in text
    assert "onnxruntime 515 MiB, cuBLAS 128 MiB" in text
    assert f"After it {free / (1 << 30):.2f} GiB of" in text


def test_an_error_of_the_limit_says_what_the_limit_left() -> None:
    text = out_of_memory_text(failed(), LIMIT_ERROR)
    assert text.startswith("onnxruntime asked for 64 MiB where gpu_mem_limit left 32 MiB.")
    assert "were free" not in text  # the limit decides, not the device


def with_arenas(recording: DeviceRecording, *largest_free_bytes: int | None) -> DeviceRecording:
    """Return `recording` with arenas on the device that were read at its last mark."""
    arenas = [
        ArenaChunks(memory="Cuda", in_use=(), free=((0, 900 * MIB),), largest_free_bytes=size)
        for size in largest_free_bytes
    ]
    pinned = ArenaChunks(memory="CudaPinned", in_use=(), free=(), largest_free_bytes=4096 * MIB)
    *marks, last = recording.marks
    last = msgspec.structs.replace(last, arenas=(*arenas, pinned))
    return msgspec.structs.replace(recording, marks=(*marks, last))


def test_the_arena_had_no_chunk_for_the_request_and_its_largest_is_read_after_it() -> None:
    # The free range is longer: two chunks of adjacent regions.
    text = out_of_memory_text(with_arenas(failed(), 256 * MIB, 40 * MIB), ARENA_ERROR)
    assert text.startswith(
        "onnxruntime asked for 64 MiB. No free chunk of its arena could take it; the largest had"
        " 256 MiB once the run had released its values. Before the error"
    )
    limited = out_of_memory_text(with_arenas(failed(), 16 * MIB), LIMIT_ERROR)
    assert "the largest had 16 MiB" in limited


@pytest.mark.parametrize(
    "recording", [failed(), with_arenas(failed()), with_arenas(failed(), None)]
)
def test_the_largest_chunk_of_an_arena_that_was_not_read_is_not_said(
    recording: DeviceRecording,
) -> None:
    text = out_of_memory_text(recording, ARENA_ERROR)
    assert "No free chunk of its arena could take it. Before the error" in text


def test_a_request_that_no_arena_made_says_nothing_of_chunks() -> None:
    text = out_of_memory_text(with_arenas(failed(), 256 * MIB), "CUDA failure 2: out of memory")
    assert "chunk" not in text


def test_without_cupti_and_size_what_is_known_is_said() -> None:
    text = out_of_memory_text(failed("conv_nocupti"), "CUDA failure 2: out of memory")
    assert text.startswith("After it ")
    unread = msgspec.structs.replace(failed("conv_nocupti"), marks=())
    assert out_of_memory_text(unread, "CUDA failure 2: out of memory") == ""


@pytest.mark.parametrize("message", ["", "no kernel for Foo", "allocate memory wisely"])
def test_other_errors_are_not_explained(message: str) -> None:
    assert out_of_memory_text(failed(), message) == ""

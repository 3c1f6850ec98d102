"""An error of a device that has too little memory, explained from a recording."""

import msgspec
import pytest

from memdiag.device.out_of_memory import out_of_memory_text
from memdiag.device.recording import DeviceRecording
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
    assert text.startswith("onnxruntime asked for 64 MiB. Before the error, allocations of the")
    assert "onnxruntime 515 MiB, cuBLAS 128 MiB" in text
    assert f"After it {free / (1 << 30):.2f} GiB of" in text


def test_an_error_of_the_limit_says_what_the_limit_left() -> None:
    text = out_of_memory_text(failed(), LIMIT_ERROR)
    assert text.startswith("onnxruntime asked for 64 MiB where gpu_mem_limit left 32 MiB.")
    assert "were free" not in text  # the limit decides, not the device


def test_without_cupti_and_size_what_is_known_is_said() -> None:
    text = out_of_memory_text(failed("conv_nocupti"), "CUDA failure 2: out of memory")
    assert text.startswith("After it ")
    unread = msgspec.structs.replace(failed("conv_nocupti"), marks=())
    assert out_of_memory_text(unread, "CUDA failure 2: out of memory") == ""


@pytest.mark.parametrize("message", ["", "no kernel for Foo", "allocate memory wisely"])
def test_other_errors_are_not_explained(message: str) -> None:
    assert out_of_memory_text(failed(), message) == ""

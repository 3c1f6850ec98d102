"""Reading a device in parts: the device is an array, and this process has the block."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from memdiag.attribution.device_contents import (
    MAX_GAP_BYTES,
    CopyRequest,
    DeviceContents,
    copy_requests,
)
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.errors import XrayError
from memdiag.runner.scripts.device import BLOCK_BYTES
from memdiag.units import MIB
from tests.builders import noise

START = 0x7E0000000000
ALLOCATIONS = np.array([[0, 5 * MIB], [5 * MIB, 12 * MIB], [13 * MIB, 14 * MIB]]) + START
DEVICE = noise(14 * MIB // 4).view(np.uint8)


class Device:
    """Copies into a block as a child does, and refuses what CUDA refuses."""

    def __init__(self) -> None:
        self.block = np.zeros(BLOCK_BYTES, np.uint8)
        self.requests: list[list[tuple[int, int]]] = []

    def copy(self, ranges: Sequence[tuple[int, int]]) -> int:
        self.requests.append([*ranges])
        position = 0
        for address, length in ranges:
            assert any(first <= address and address + length <= end for first, end in ALLOCATIONS)
            content = DEVICE[address - START : address - START + length]
            self.block[position : position + length] = content
            position += length
        return int(self.block.ctypes.data)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def contents(device: Device) -> Iterator[DeviceContents]:
    with ProcessMemory(os.getpid()) as process:
        yield DeviceContents(process, ALLOCATIONS, device.copy)


def test_every_byte_is_read_once_in_parts_of_one_allocation_each(
    contents: DeviceContents, device: Device
) -> None:
    buffer = np.empty(2 * MIB, np.uint8)
    parts = []
    for address, length in contents.iter_chunks(ALLOCATIONS, buffer):
        parts.append(address - START)
        assert (buffer[:length] == DEVICE[address - START : address - START + length]).all()
    assert parts == [mib * MIB for mib in (0, 2, 4, 5, 7, 9, 11, 13)]
    assert contents.copied_bytes == 13 * MIB


@pytest.mark.parametrize(
    ("spans", "requests"),
    [
        ([(0, 64), (MIB, 64)], [[(0, 64), (MIB, 64)]]),
        ([(0, 64), (100, 64)], [[(0, 164)]]),
        ([(0, 64), (64 + MAX_GAP_BYTES, 64)], [[(0, 128 + MAX_GAP_BYTES)]]),
        ([(0, 64), (65 + MAX_GAP_BYTES, 64)], [[(0, 64), (65 + MAX_GAP_BYTES, 64)]]),
        ([(100, 64), (0, 64)], [[(100, 64), (0, 64)]]),
        ([(0, 64), (32, 64)], [[(0, 64), (32, 64)]]),
        ([(5 * MIB - 8, 16)], [[(5 * MIB - 8, 8), (5 * MIB, 8)]]),
        ([(0, 5 * MIB)], [[(0, 4 * MIB)], [(4 * MIB, MIB)]]),
        ([(0, 3 * MIB), (3 * MIB, 2 * MIB)], [[(0, 3 * MIB)], [(3 * MIB, 2 * MIB)]]),
    ],
    ids=[
        *("far", "near", "at the limit", "beyond the limit", "descending", "overlapping"),
        *("two allocations", "larger than the block", "together larger"),
    ],
)
def test_spans_are_copied_in_few_requests(
    contents: DeviceContents,
    device: Device,
    spans: list[tuple[int, int]],
    requests: list[list[tuple[int, int]]],
) -> None:
    buffer = np.empty(sum(length for _, length in spans), np.uint8)
    assert contents.read_spans([(START + offset, size) for offset, size in spans], buffer) == len(
        buffer
    )
    expected = np.concatenate([DEVICE[offset : offset + size] for offset, size in spans])
    assert (buffer == expected).all()
    assert [[(at - START, size) for at, size in ranges] for ranges in device.requests] == requests


@pytest.mark.parametrize(
    ("offset", "length", "read"),
    [(12 * MIB - 8, 16, 8), (12 * MIB, 16, 0), (-16, 8, 0), (14 * MIB, 8, 0)],
    ids=["into a gap", "in a gap", "before all", "after all"],
)
def test_reading_stops_where_no_allocation_is(
    contents: DeviceContents, device: Device, offset: int, length: int, read: int
) -> None:
    buffer = np.empty(length + 8, np.uint8)
    assert contents.read_spans([(START + offset, length), (START, 8)], buffer) == read
    assert contents.copied_bytes == read


def test_a_process_that_cannot_copy_ends_the_reading() -> None:
    def fail(ranges: Sequence[tuple[int, int]]) -> int:
        raise XrayError("cudaMemcpy failed with error 1")

    with ProcessMemory(os.getpid()) as process, pytest.raises(XrayError, match="error 1"):
        DeviceContents(process, ALLOCATIONS, fail).read_spans([(START, 8)], np.empty(8, np.uint8))


def test_nothing_to_read_is_no_request() -> None:
    assert list(copy_requests(iter([]))) == []
    assert CopyRequest([(1, 5), (9, 2)], []).copied_bytes == 7

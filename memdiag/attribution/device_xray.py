"""The X-ray of a device: find a model's weights in the memory that onnxruntime has on it."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from memdiag.attribution.address_space import read_address_space
from memdiag.attribution.device_contents import DeviceContents
from memdiag.attribution.intervals import ByteRanges, intersect, normalized_ranges, total_bytes
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.search import FoundCopy, fused_contents, search_targets
from memdiag.attribution.search_target import SearchTarget
from memdiag.records.attribution import WHOLE_FILE_COPY_NAME, CopyKind, DeviceArena
from memdiag.records.device import DeviceCopy, DeviceXray
from memdiag.runner.log import AddressRanges


def take_device_xray(
    pid: int,
    targets: Sequence[SearchTarget],
    allocations: AddressRanges,
    copy: Callable[[Sequence[tuple[int, int]]], int],
    arenas: Sequence[DeviceArena],
) -> DeviceXray:
    """Return the copies of the weights of `targets` on the device that process `pid` uses.

    Args:
        pid: the process, which waits.
        targets: the models to search for.
        allocations: the address ranges on the device to search, each of them in one allocation.
        copy: has the process copy ranges into its block; see `runner.child.Child.copy_from_device`.
        arenas: the arenas on the device, as the bookkeeping of the process has them.

    Raises:
        XrayError: the process cannot be read, or cannot copy.
    """
    started = time.perf_counter()
    ranges = np.array(sorted(allocations), np.int64).reshape(-1, 2)
    searched = [_without_whole_file(target) for target in targets]
    with ProcessMemory(pid) as process:
        contents = DeviceContents(process, ranges, copy)
        libraries = read_address_space(pid).mapped_names
        found = search_targets(contents, ranges, libraries, searched).found
    fused = fused_contents(searched)
    free = normalized_ranges([chunk for arena in arenas for chunk in arena.slack_ranges])
    return DeviceXray(
        copies=tuple(
            _copy_record(found_copy, found_copy.kind(fused), free) for found_copy in found
        ),
        indistinct=tuple(group for target in targets for group in target.unidentifiable),
        absent=_absent_names(searched, found),
        searched_bytes=total_bytes(ranges),
        copied_bytes=contents.copied_bytes,
        duration_s=round(time.perf_counter() - started, 6),
    )


def _without_whole_file(target: SearchTarget) -> SearchTarget:
    """Return `target` without the bytes of the file, which nobody copies to a device."""
    weights = tuple(
        content for content in target.weights if content.names != (WHOLE_FILE_COPY_NAME,)
    )
    return target._replace(weights=weights)


def _absent_names(
    targets: Sequence[SearchTarget], found: Sequence[FoundCopy]
) -> tuple[tuple[str, ...], ...]:
    """Return the names of the weights of the user's model without any copy, equal ones together."""
    present = {name for copy in found for name in copy.content.names}
    names = {
        content.names: None
        for target in targets
        if not target.fused
        for content in target.weights
        if content.names[0] not in present
    }
    return tuple(names)


def _copy_record(found: FoundCopy, kind: CopyKind, free: ByteRanges) -> DeviceCopy:
    extent = np.array([[found.address, found.address + found.copy.nbytes]], np.int64)
    return DeviceCopy(
        weights=found.content.names,
        layout=found.copy.layout,
        kind=kind,
        parameters=found.copy.parameters,
        bytes=found.copy.nbytes,
        address=found.address,
        verified_bytes=found.verified_bytes,
        is_stale=bool(total_bytes(intersect(free, extent))),
    )

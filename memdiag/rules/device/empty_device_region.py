"""The arena's last region on the device was opened for a small value, and is empty between runs.

## Why it costs

By default the arena doubles: each region is as large as all regions before it. Weights of sizes
that are powers of two fill their regions to the last byte. The first value of a run then opens one
more, however small the value is: 512 MiB for a value of 16 KiB were seen. onnxruntime caps a
region at 1 GiB.

The bytes are those of the region without the value that opened it. Other values of a run may be in
it, too, while the model runs, so that they are an upper bound of the saving.

## What to do

Set the provider option `arena_extend_strategy` to `kSameAsRequested`: a region is then as large as
the request. With inputs of many sizes the pieces may not fit later requests. Compare both.

## Not reported

Regions in which a chunk is in use, and regions opened for a value of more than a sixteenth of
their size: runs need much of them. Earlier regions: the arena opens one when those before are full.
"""

from collections.abc import Iterator

from memdiag.device.recording import DEVICE_ARENA, DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule
from memdiag.session_options import ARENA_STRATEGY_OPTION
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD901",
    name="empty-device-region",
    summary="The arena's last region on the device is empty between runs",
)

_MIN_REGION_BYTES = 16 * MIB
_MAX_REQUESTED_SHARE = 1 / 16


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield at most one finding: the last region, if it is empty at rest."""
    mark = recording.mark_at_rest
    if mark is None or not recording.device_regions:
        return
    region = recording.device_regions[-1]
    size, requested = region.end - region.start, region.requested_bytes
    if requested is None or size < _MIN_REGION_BYTES or requested > _MAX_REQUESTED_SHARE * size:
        return
    is_empty = any(
        start <= region.start and region.end <= end
        for arena in mark.arenas or ()
        if arena.memory == DEVICE_ARENA
        for start, end in arena.free
    )
    if is_empty:
        yield DeviceFinding(
            rule=RULE.code,
            name=RULE.name,
            message=f"The arena opened a region of {format_size(size)} on the device for a value"
            f" of {format_size(requested)}; between runs all of it is empty.",
            detail="The arena doubles with each region. Other values of a run may be in it, too.",
            bytes=size - requested,
            owner="empty_arena",
            provider_options={ARENA_STRATEGY_OPTION: "kSameAsRequested"},
        )

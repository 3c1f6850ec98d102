"""The provider option `gpu_mem_limit` is below the size of the weights.

## Why it costs

The limit is that of the arena, which has the weights. The session cannot be created:
"Available memory of 33554432 is smaller than requested bytes of 67108864".

## What to do

Raise the limit, or take the weights out of the arena: the session entry
`session.use_device_allocator_for_initializers` set to `1` allocates them on their own, without the
limit.

## Not reported

Limits that leave room for the weights and too little for the values of a run.
"""

from collections.abc import Iterator

from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule
from memdiag.units import format_size

RULE = Rule(
    code="MD906",
    name="device-memory-limit-below-weights",
    summary="gpu_mem_limit is below the size of the weights",
)

_MEMORY_LIMIT = "gpu_mem_limit"
_WEIGHTS_OUTSIDE_ARENA = "session.use_device_allocator_for_initializers"


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield a finding if the limit of the arena is below the weights that it has to hold."""
    session = recording.session
    if session is None or session.entries.get(_WEIGHTS_OUTSIDE_ARENA) == "1":
        return
    text = session.provider_options.get(_MEMORY_LIMIT, "")
    if text.isdecimal() and int(text) < recording.weight_bytes:
        yield DeviceFinding(
            rule=RULE.code,
            name=RULE.name,
            message=f"{_MEMORY_LIMIT} is {format_size(int(text))}. The weights alone take"
            f" {format_size(recording.weight_bytes)}, so that the session cannot be created.",
            bytes=recording.weight_bytes - int(text),
            session_options={_WEIGHTS_OUTSIDE_ARENA: "1"},
        )

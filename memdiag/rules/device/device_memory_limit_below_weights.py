"""The provider option `gpu_mem_limit` is below the size of the weights.

## Why it costs

The limit is that of the arena, which has the weights. If those on the GPU do not fit, the session
cannot be created: "Available memory of 33554432 is smaller than requested bytes of 67108864".

The weights are those of the file. Weights that no node reads, that constant folding replaces, or
that nodes on the CPU read are not on the GPU, so the limit may not be the reason: the error of the
session says it.

## What to do

Raise the limit, or take the weights out of the arena: the session entry
`session.use_device_allocator_for_initializers` set to `1` allocates them on their own, without the
limit.

## Not reported

Sessions that were created, whose weights fit. A limit of 0, which is none. Limits that leave room
for the weights and too little for the values of a run.
"""

from collections.abc import Iterator

from memdiag.device.recording import DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule
from memdiag.session_options import DEVICE_LIMIT_OPTION, OWN_WEIGHTS_OPTION
from memdiag.units import format_size

RULE = Rule(
    code="MD906",
    name="device-memory-limit-below-weights",
    summary="gpu_mem_limit is below the size of the weights",
)


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield a finding if no session was created and the arena's limit is below the weights."""
    session = recording.session
    if session is None or session.providers is not None:
        return
    if session.entries.get(OWN_WEIGHTS_OPTION) == "1":
        return
    text = session.provider_options.get(DEVICE_LIMIT_OPTION, "")
    limit_bytes = int(text) if text.isdecimal() else 0
    weight_bytes = recording.weight_bytes
    if 0 < limit_bytes < weight_bytes:
        yield DeviceFinding(
            rule=RULE.code,
            name=RULE.name,
            message=f"The session was not created. {DEVICE_LIMIT_OPTION} is"
            f" {format_size(limit_bytes)}, and the weights of the file take"
            f" {format_size(weight_bytes)}.",
            detail="Weights that no node on the GPU reads do not count to the limit.",
            bytes=weight_bytes - limit_bytes,
            session_options={OWN_WEIGHTS_OPTION: "1"},
        )

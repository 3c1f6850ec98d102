"""A weight is on the device twice, because constant folding made a changed copy of it.

## Why it costs

If a weight is used as it is and also through a Transpose or a Cast, folding computes the second
form at load time and keeps both: the device holds the weight twice.

The rule compares the arena's requests while the session was created with the sizes of the model's
weights. The log names a request only if it opened a region, or was reserved outside of the arena:
copies that fit into a region that was open are not seen.

## What to do

Rewrite the model so that one form of the weight serves both uses. `memdiag check` names the weight
and the rewrite.

## Not reported

Copies of less than 1 MiB. Requests of a size that as many weights of the model have.
"""

from collections import Counter
from collections.abc import Iterator

from memdiag.device.recording import DEVICE_ARENA, DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size, some_of

RULE = Rule(
    code="MD903",
    name="folded-copy-on-device",
    summary="Constant folding made a second copy of a weight on the device",
)

_MIN_COPY_BYTES = MIB


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield a finding for each size that the arena was asked for more often than weights have."""
    requests = _requests_of_creation(recording)
    weights = Counter(weight.bytes for weight in recording.weights)
    for size, count in requests.items():
        copies = count - weights[size]
        if size < _MIN_COPY_BYTES or copies <= 0 or not weights[size]:
            continue
        names = [weight.name for weight in recording.weights if weight.bytes == size]
        yield DeviceFinding(
            rule=RULE.code,
            name=RULE.name,
            message=f"The session allocated {format_size(size)}, the size of {some_of(names)},"
            f" {counted(copies, 'time')} more than the model has weights of this size.",
            bytes=copies * size,
        )


def _requests_of_creation(recording: DeviceRecording) -> Counter[int]:
    """Return the sizes that the device's arena was asked for until the session existed."""
    created = next((mark for mark in recording.marks if mark.is_alive), None)
    if created is None:
        return Counter()
    end_epoch_s = recording.start_epoch_s + created.seconds
    requests = [
        region.requested_bytes
        for region in recording.device_regions
        if region.requested_bytes is not None and region.epoch_s <= end_epoch_s
    ]
    reservations = [
        reservation.bytes
        for reservation in recording.reservations
        if reservation.memory == DEVICE_ARENA and reservation.epoch_s <= end_epoch_s
    ]
    return Counter(requests + reservations)

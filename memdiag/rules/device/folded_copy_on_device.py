"""A weight is on the device twice, because constant folding made a changed copy of it.

## Why it costs

If a weight is used as it is and also through a Transpose or a Cast, folding computes the second
form at load time and keeps both: the device holds the weight twice.

Where the contents of the device were compared with the model, the rule names the weights that are
there as the file has them and in another form as well.

Otherwise it compares the arena's requests while the session was created with the sizes of the
model's weights. The log names a request only if it opened a region, or was reserved outside of the
arena: copies that fit into a region that was open are not seen.

## What to do

Rewrite the model so that one form of the weight serves both uses. `memdiag check` names the weight
and the rewrite.

## Not reported

Copies of less than 1 MiB, and copies in free chunks. Filters of convolutions with their channels
last, which kernels make. Without contents: requests of a size that as many weights of the model
have.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from memdiag.device.recording import DEVICE_ARENA, DeviceRecording
from memdiag.records.device import DeviceCopy, DeviceFinding, DeviceXray
from memdiag.rules.rule import Rule
from memdiag.units import MIB, counted, format_size, some_of

RULE = Rule(
    code="MD903",
    name="folded-copy-on-device",
    summary="Constant folding made a second copy of a weight on the device",
)

_MIN_COPY_BYTES = MIB
_FOLDED_LAYOUTS = frozenset({"transposed", "cast", "dequantized"})


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield the findings by contents, or by sizes if contents were not compared."""
    if recording.xray is None:
        yield from _findings_by_size(recording)
    else:
        yield from _findings_by_content(recording.xray)


def _findings_by_content(xray: DeviceXray) -> Iterator[DeviceFinding]:
    """Yield a finding for each layout in which weights are on the device besides their own."""
    used = [copy for copy in xray.copies if not copy.is_stale]
    unchanged = {name for copy in used if copy.kind == "original" for name in copy.weights}
    folded: dict[str, list[DeviceCopy]] = defaultdict(list)
    for copy in used:
        is_large = copy.bytes >= _MIN_COPY_BYTES
        if copy.layout in _FOLDED_LAYOUTS and is_large and unchanged & {*copy.weights}:
            folded[copy.layout].append(copy)
    for layout, copies in folded.items():
        names = sorted({copy.weights[0] for copy in copies})
        nbytes = sum(copy.bytes for copy in copies)
        verb = "is" if len(names) == 1 else "are"
        yield DeviceFinding(
            rule=RULE.code,
            name=RULE.name,
            message=f"{some_of(names)} {verb} on the device twice, once {layout}:"
            f" {format_size(nbytes)} more.",
            bytes=nbytes,
        )


def _findings_by_size(recording: DeviceRecording) -> Iterator[DeviceFinding]:
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

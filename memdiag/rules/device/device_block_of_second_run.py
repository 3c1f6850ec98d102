"""A run with inputs of the same sizes as before opens further regions of the arena.

## Why it costs

The first run with inputs of new sizes allocates its values one by one, and records when each is
alive. From the second run on, they are placed in one block by that memory pattern. The block
seldom fits into a free chunk, so that the arena holds both: the chunks of the first run, and the
block. On an H100, the second run of ResNet-50 took 256 MiB more than the first, and the second run
of a stack of convolutions 128 MiB.

The bytes are those by which the memory in use on the device grew.

## What to do

Set the session option `enable_mem_pattern` to `False`. The stack of convolutions and ResNet-50 then
kept the memory of their first run, with latencies within 5 %.

## Not reported

Growth with sizes of inputs that are new, growth of less than 8 MiB, and regions that are opened
again in each run because the arena returns them (`memory.enable_memory_arena_shrinkage`).
"""

from collections.abc import Iterator
from itertools import pairwise

from memdiag.device.recording import DeviceMark, DeviceRecording
from memdiag.records.device import DeviceFinding
from memdiag.rules.rule import Rule
from memdiag.session_options import PATTERN_OPTION
from memdiag.units import MIB, format_size

RULE = Rule(
    code="MD902",
    name="device-block-of-second-run",
    summary="A second run of the same sizes opens further regions on the device",
)

_MIN_GROWTH_BYTES = 8 * MIB


def detect(recording: DeviceRecording) -> Iterator[DeviceFinding]:
    """Yield a finding for each run, the second with its sizes or later, that takes more."""
    known_inputs: set[str] = set()
    for before, after in pairwise(recording.marks):
        if before.inputs:
            known_inputs.add(before.inputs)
        if after.inputs in known_inputs:
            yield from _growth_findings(recording, before, after)


def _growth_findings(
    recording: DeviceRecording, before: DeviceMark, after: DeviceMark
) -> Iterator[DeviceFinding]:
    if before.used_bytes is None or after.used_bytes is None:
        return
    regions = recording.regions_opened_between(before, after)
    growth = min(
        after.used_bytes - before.used_bytes,
        sum(region.end - region.start for region in regions),
    )
    if growth < _MIN_GROWTH_BYTES:
        return
    largest = max(region.requested_bytes or 0 for region in regions)
    request = f", for a block of {format_size(largest)}" if largest else ""
    yield DeviceFinding(
        rule=RULE.code,
        name=RULE.name,
        message=f"The arena on the device grew by {format_size(growth)} in a run"
        f" with the same sizes of inputs as a run before{request}.",
        detail="With memory patterns, all values of such a run are in one block from the second run"
        " on, and the chunks of the first run stay in the arena.",
        bytes=growth,
        session_options={PATTERN_OPTION: "0"},
    )

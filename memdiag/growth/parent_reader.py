"""The process that reads the memory of its parent between calls of a function.

No process can read its own heap well, because reading allocates. `memdiag.api.leak_calls` starts
this one.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from memdiag.attribution import intervals
from memdiag.errors import MemdiagError
from memdiag.growth.growing_blocks import (
    grown_blocks,
    recognised_contents,
    repeated_contents,
)
from memdiag.growth.growing_sizes import growing_heap, min_growth_of_program
from memdiag.growth.growth_record import growth_record
from memdiag.growth.moment import MemoryMoment, read_moment
from memdiag.growth.observation import GrowthObservation
from memdiag.growth.verdict import kept_values
from memdiag.records.base import Record
from memdiag.records.codec import encode
from memdiag.records.growth import Growth, LargestInput

FUNCTION_THREADS = 2
"""Threads that may have a cache of freed blocks: the calling thread, and one more."""


class ReadingRequest(Record, frozen=True, kw_only=True):
    """A line of standard input.

    Attributes:
        run: the number of calls until now.
        sessions: the number of sessions that are alive.
        largest_input: the inputs of the run whose inputs had the most bytes; None if not known.
        starts: the first bytes of values of an earlier run in hexadecimal, and their sizes in
            bytes, by description.
        alive: at the end, how many values of earlier runs are alive, and how many there were, by
            description; None before.
        sizes: at the end, the mean bytes of these values in a call, by description.
    """

    run: int
    sessions: int = 0
    largest_input: LargestInput | None = None
    starts: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    alive: dict[str, tuple[int, int]] | None = None
    sizes: dict[str, float] = msgspec.field(default_factory=dict)


def main() -> None:
    """Read process PID for each line of standard input, and print an empty line or an error.

    The arguments are PID and the subject of the record. The last request is answered with the
    record.
    """
    pid, subject = int(sys.argv[1]), sys.argv[2]
    readings: list[MemoryMoment] = []
    contents: list[dict[int, str]] = []
    started_s = time.perf_counter()
    for line in sys.stdin:
        request = msgspec.json.decode(line, type=ReadingRequest)
        if request.alive is not None:
            sys.stdout.buffer.write(encode(_parent_growth(readings, contents, request, subject)))
            return
        answer = ""
        try:
            reading = read_moment(pid, run=request.run, time_s=time.perf_counter() - started_s)
            moment = msgspec.structs.replace(
                reading.moment,
                sessions=request.sessions,
                largest_input=request.largest_input,
            )
            if readings and request.starts:
                contents.append(recognised_contents(pid, readings[0], reading, request.starts))
            # The first moment alone keeps the addresses of its blocks.
            blocks = intervals.empty_ranges() if readings else reading.blocks
            readings.append(replace(reading, moment=moment, blocks=blocks))
        except MemdiagError as error:
            answer = str(error)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _parent_growth(
    readings: list[MemoryMoment],
    contents: Sequence[Mapping[int, str]],
    request: ReadingRequest,
    subject: str,
) -> Growth:
    first_reading, last_reading = readings[1], readings[-1]
    min_growth = min_growth_of_program(
        FUNCTION_THREADS, last_reading.moment.run - first_reading.moment.run
    )
    heap = growing_heap(readings, 1, "run", min_growth)
    content_by_size = repeated_contents(contents, heap.sizes)
    blocks = grown_blocks(first_reading, last_reading, sizes=heap.sizes, contents=content_by_size)
    observation = GrowthObservation(
        moments=tuple(reading.moment for reading in readings),
        unit="run",
        warm_up=1,
        blocks=blocks,
        growing_heap_bytes=heap.bytes_at,
        caller_keeps_nothing=False,
        kept=kept_values(request.alive or {}, blocks, request.sizes),
    )
    return growth_record(
        observation,
        subject=subject,
        kind="process",
        runs=request.run,
        warm_up_runs=first_reading.moment.run,
        warm_up_s=first_reading.moment.time_s,
        onnxruntime=None,
    )

"""Growth records, built by hand: one for each verdict."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from memdiag.growth.device_growth import device_growth
from memdiag.records.attribution import OwnerKind
from memdiag.records.growth import (
    GrowingBlocks,
    Growth,
    Moment,
    OwnerBytes,
    RunSample,
    Slope,
)
from memdiag.units import KIB, MIB
from tests.growth.histories import device_moment, observed

RUNS, WARM_UP = 1000, 100
BASE: Mapping[OwnerKind, int] = {
    "python": 19 * MIB,
    "runtime_libraries": 18 * MIB,
    "other_heap": 20 * MIB,
    "arena": 6 * MIB,
    "allocator_retained": 2 * MIB,
    "unnamed": 2 * MIB,
}
Grow = Callable[[int], int]


def growth(
    heap: Grow = lambda run: 0,
    arena: Grow = lambda run: 0,
    slack: Grow = lambda run: 0,
    retained: Grow = lambda run: 0,
    patterns: Grow = lambda run: 0,
    **fields: Any,
) -> Growth:
    """Return a record whose owners grow from `BASE` by functions of the number of runs."""

    def moment(run: int) -> Moment:
        grown: dict[str, int] = {
            "other_heap": heap(run) + 16 * KIB * patterns(run),
            "arena": arena(run) + slack(run),
            "allocator_retained": retained(run),
        }
        owners = tuple(
            OwnerBytes(kind=kind, bytes=size + grown.get(kind, 0)) for kind, size in BASE.items()
        )
        return Moment(
            run=run,
            time_s=run / 100,
            resident_bytes=sum(owner.bytes for owner in owners),
            owners=owners,
            heap_bytes=21 * MIB + heap(run),
            heap_blocks=90_000,
            patterns=patterns(run),
            pattern_bytes=16 * KIB * patterns(run),
            arena_used_bytes=4 * MIB + arena(run),
            arena_slack_bytes=2 * MIB + slack(run),
            arenas=1,
        )

    def sample(run: int) -> RunSample:
        resident = moment(run).resident_bytes
        return RunSample(
            run=run,
            resident_bytes=resident,
            anonymous_bytes=resident - 20 * MIB,
            duration_s=0.01,
        )

    moments = [1, *(WARM_UP + (RUNS - WARM_UP) * number // 11 for number in range(12))]
    made = Growth(
        subject="models/encoder.onnx",
        kind="model",
        verdict="flat",
        sentence="no growth: the resident set is 67 MiB after 1,000 runs",
        advice="",
        owner=None,
        slope=None,
        slope_bytes_per_run=0.0,
        grown_bytes=0,
        trim_returned_bytes=None,
        runs=RUNS,
        warm_up_runs=WARM_UP,
        warm_up_s=WARM_UP / 100,
        unit="run",
        varied=("content",),
        dimensions={},
        blocks=(GrowingBlocks(block_bytes=576, blocks=2, blocks_per_run=0.002),),
        moments=tuple(map(moment, moments)),
        samples=tuple(map(sample, range(1, RUNS + 1))),
        notes=(),
        onnxruntime="1.32.0",
    )
    if "slope" in fields:
        fields["slope_bytes_per_run"] = fields["slope"].bytes_per_unit
    return msgspec.structs.replace(made, **fields)


def flat() -> Growth:
    """Return a record without growth."""
    return growth()


def plateau() -> Growth:
    """Return a record whose heap grows by 10 MiB in 60 runs, and then no more."""
    return growth(
        heap=lambda run: min(run, 60) * 10 * MIB // 60,
        verdict="plateau",
        sentence="warm-up, not a leak: the resident set grew by 9.8 MiB (malloc blocks in use) and"
        " stopped at 77 MiB after 100 of 1,000 runs",
        owner="heap",
        slope=Slope(bytes_per_unit=0.0, low=0.0, high=0.0),
        grown_bytes=10 * MIB,
    )


def high_water() -> Growth:
    """Return a record whose arena grows at four runs with new largest inputs."""
    return growth(
        slack=lambda run: sum(run >= at for at in (5, 40, 300, 700)) * 4 * MIB,
        verdict="high_water",
        sentence="no leak: the process grew from 67 MiB to 83 MiB with new largest inputs, and"
        " stays there: 18 MiB is free arena memory",
        advice="limit the size of inputs",
        owner="arena_slack",
        slope=Slope(bytes_per_unit=9000.0, low=0.0, high=20000.0),
        grown_bytes=16 * MIB,
        varied=("content", "shape"),
        dimensions={"N": (1, 512)},
    )


def patterns() -> Growth:
    """Return a record with a memory pattern of 16 KiB for the new input sizes of each run."""
    return growth(
        patterns=lambda run: run,
        verdict="patterns",
        sentence="no leak: the resident set grew by 16 MiB since the start in 1,000 runs, mostly 16"
        " MiB of memory patterns: onnxruntime keeps one of 16 KiB for each combination of input"
        " sizes (999 more)",
        advice="create the session with enable_mem_pattern = False",
        owner="patterns",
        slope=Slope(bytes_per_unit=16.0 * KIB, low=16.0 * KIB, high=16.0 * KIB),
        grown_bytes=16 * MIB,
        varied=("content", "shape"),
        dimensions={"N": (1, 512)},
    )


def retained() -> Growth:
    """Return a record in which malloc keeps what was freed."""
    return growth(
        retained=lambda run: min(run, 30) * MIB + (run % 7) * 100 * KIB,
        verdict="retained",
        sentence="not a leak: malloc keeps freed memory; the resident set grew by 30 MiB in 1,000"
        " runs",
        advice="malloc_trim(0) returned 30 MiB; fewer arenas of malloc keep less",
        owner="allocator_retained",
        slope=Slope(bytes_per_unit=0.0, low=-100.0, high=100.0),
        grown_bytes=30 * MIB,
        trim_returned_bytes=30 * MIB,
    )


def kept() -> Growth:
    """Return a record of a program that keeps every output, of 25 KiB."""
    return growth(
        heap=lambda run: run * 25 * KIB,
        subject="python server.py --port 80",
        kind="program",
        verdict="kept",
        sentence="kept values: the program keeps outputs of earlier runs; malloc blocks in use grow"
        " by 25 KiB a run; 1 GiB after 41,943 runs",
        advice="copy what is needed of an output, and drop the output or its binding",
        owner="heap",
        slope=Slope(bytes_per_unit=25.0 * KIB, low=25.0 * KIB, high=25.0 * KIB),
        kept_values="output 'y'",
        grown_bytes=24 * MIB,
        varied=(),
        blocks=(
            GrowingBlocks(
                block_bytes=25 * KIB, blocks=900, blocks_per_run=1.0, content="output 'y'"
            ),
            GrowingBlocks(block_bytes=96, blocks=900, blocks_per_run=1.0),
        ),
    )


def leak() -> Growth:
    """Return a record in which a block of 112 bytes stays four times after each run."""
    return growth(
        heap=lambda run: run * 448 + (run < WARM_UP) * -8 * MIB,
        verdict="leak",
        sentence="a leak: malloc blocks in use grow by 448 B a run (95 % interval 440 B to 456 B);"
        " 1 GiB after 2,396,745 runs",
        advice="try the newest release of onnxruntime",
        owner="heap",
        slope=Slope(bytes_per_unit=448.0, low=440.0, high=456.0),
        grown_bytes=8 * MIB,
        blocks=(GrowingBlocks(block_bytes=112, blocks=3600, blocks_per_run=4.0),),
        notes=("a note",),
    )


def undecided() -> Growth:
    """Return a record of a run that failed while the memory outside of malloc still grew."""
    return growth(
        heap=lambda run: round(run**0.5) * MIB,
        verdict="undecided",
        sentence="undecided: the resident set grew by 31 MiB (malloc blocks in use) and had not"
        " stopped after 1,000 runs",
        advice="observe more runs",
        owner="heap",
        slope=Slope(bytes_per_unit=28_000.0, low=20_000.0, high=40_000.0),
        grown_bytes=31 * MIB,
        message="models/encoder.onnx: a run failed (out of memory)",
    )


def counters_only() -> Growth:
    """Return a record whose moments have the resident set only."""
    made = flat()
    moments = tuple(
        Moment(run=each.run, time_s=each.time_s, resident_bytes=each.resident_bytes)
        for each in made.moments
    )
    return msgspec.structs.replace(
        made, moments=moments, samples=(), notes=("blocks in use were not counted",)
    )


def on_gpu(**figures: Grow) -> Growth:
    """Return a record without growth on the host; the parts on a GPU grow by the `figures`."""
    made = flat()
    moments = []
    for moment in made.moments:
        parts: Any = {part: 128 * MIB + grow(moment.run) for part, grow in figures.items()}
        device = device_moment(**parts)
        moments.append(msgspec.structs.replace(moment, device=device))
    observation = observed(moments, caller_keeps_nothing=True)
    return msgspec.structs.replace(made, moments=tuple(moments), device=device_growth(observation))


def leak_on_gpu() -> Growth:
    """Return a record in which each run keeps 4 KiB in the arena of the GPU."""
    return on_gpu(arena=lambda run: 4 * KIB * run)


def thread_on_gpu() -> Growth:
    """Return a record with a handle of cuBLAS for another thread, from the second run on."""
    return on_gpu(cublas=lambda run: 72 * MIB * (run > 1))


VERDICTS: dict[str, Callable[[], Growth]] = {
    "flat": flat,
    "plateau": plateau,
    "high_water": high_water,
    "patterns": patterns,
    "retained": retained,
    "kept": kept,
    "leak": leak,
    "undecided": undecided,
}

"""Growth: memory over many runs, and whether it is a leak (schema ``memdiag.growth/1``)."""

from collections.abc import Mapping
from typing import Final, Literal

from memdiag.records.attribution import OwnerKind
from memdiag.records.base import PlottableRecord, Record

GROWTH_SCHEMA: Final = "memdiag.growth/1"

Verdict = Literal[
    "flat", "plateau", "high_water", "patterns", "retained", "kept", "leak", "undecided"
]
"""``flat``: no growth after the first run; ``plateau``: memory grew and stopped; ``high_water``:
memory grows with each new largest input, otherwise not; ``patterns``: onnxruntime stores a memory
pattern for each new combination of input sizes; ``retained``: malloc keeps freed memory;
``kept``: the caller keeps values of the runtime; ``leak``: memory in use grows with each run;
``undecided``: memory still grew at the end, but not steadily."""

GrowingOwner = Literal[
    "heap",
    "patterns",
    "arena",
    "arena_slack",
    "allocator_retained",
    "python",
    "sessions",
    "files",
    "other",
]
"""``heap``: blocks of malloc in use, outside of arenas and memory patterns; ``patterns``: blocks of
malloc that hold memory patterns; ``arena``: chunks in use of onnxruntime's arenas;
``arena_slack``: free chunks of arenas; ``allocator_retained``: freed blocks that malloc keeps;
``python``: Python's heap; ``sessions``: sessions that are alive; ``files``: mapped files and
libraries; ``other``: memory outside of malloc, such as stacks and private mappings."""

GROWING_OWNERS: Final[Mapping[OwnerKind, GrowingOwner]] = {
    "weights": "heap",
    "kv_cache": "heap",
    "external_data": "files",
    "arena": "arena",
    "allocator_retained": "allocator_retained",
    "runtime_libraries": "files",
    "provider_libraries": "files",
    "python": "python",
    "other_libraries": "files",
    "mapped_files": "files",
    "thread_stacks": "other",
    "other_heap": "heap",
    "unnamed": "other",
}
"""The owner that a verdict names, by the kind of owner. Free chunks of arenas (``arena_slack``),
``patterns`` and ``sessions`` are parts of others."""


def kinds_of(owner: GrowingOwner) -> tuple[OwnerKind, ...]:
    """Return the kinds of owners that a verdict calls `owner`."""
    return tuple(kind for kind, growing in GROWING_OWNERS.items() if growing == owner)


Unit = Literal["run", "reload", "second"]
"""Unit of the horizontal axis: growth is bytes for each of these."""

Varied = Literal["content", "shape", "none"]
"""Kinds of variation from run to run."""


class OwnerBytes(Record, frozen=True, kw_only=True):
    """The resident bytes of one kind of owner, as in an X-ray without models."""

    kind: OwnerKind
    bytes: int


class LargestInput(Record, frozen=True, kw_only=True):
    """The first run whose inputs had the most bytes together.

    Attributes:
        run: its number, counted from 1.
        bytes: the bytes of its inputs, as far as they are arrays.
        shapes: their shapes, by name.
    """

    run: int
    bytes: int
    shapes: dict[str, tuple[int, ...]]


class Moment(Record, frozen=True, kw_only=True):
    """The memory of the process between two runs.

    Attributes:
        run: the number of runs until then.
        time_s: seconds since the first moment.
        resident_bytes: the resident set.
        owners: the resident bytes by owner, which sum up to `resident_bytes`; empty if only the
            counters of the process could be read.
        heap_bytes, heap_blocks: the blocks of malloc in use outside of arenas and memory patterns,
            resident or not; None if the heap could not be read.
        patterns, pattern_bytes: the number of onnxruntime's memory patterns, one for each
            combination of input sizes of a session, and the blocks of malloc that hold them; None
            if the heap could not be read.
        arena_used_bytes, arena_slack_bytes: the chunks in use and the free chunks of all arenas of
            onnxruntime; None if the heap could not be read.
        arenas: the number of arenas with memory; None if the heap could not be read.
        sessions: the number of sessions that are alive; None if it is not known.
        mapped_bytes: the size of all mappings of files and shared memory, resident or not; None if
            only the counters of the process could be read.
        largest_input: of the run until then whose inputs had the most bytes; None if it is not
            known.
    """

    run: int
    time_s: float
    resident_bytes: int
    owners: tuple[OwnerBytes, ...] = ()
    heap_bytes: int | None = None
    heap_blocks: int | None = None
    patterns: int | None = None
    pattern_bytes: int | None = None
    arena_used_bytes: int | None = None
    arena_slack_bytes: int | None = None
    arenas: int | None = None
    sessions: int | None = None
    mapped_bytes: int | None = None
    largest_input: LargestInput | None = None

    @property
    def largest_input_bytes(self) -> int:
        """The most bytes that all inputs of a run had together until then; 0 if not known."""
        return self.largest_input.bytes if self.largest_input else 0

    def position(self, unit: Unit) -> float:
        """Return the runs or reloads, or the seconds, until this moment."""
        return self.time_s if unit == "second" else self.run

    def bytes_of(self, *kinds: OwnerKind) -> int:
        """Return the resident bytes of the owners of `kinds`."""
        return sum(owner.bytes for owner in self.owners if owner.kind in kinds)


class Slope(Record, frozen=True, kw_only=True):
    """Growth in bytes for each unit (see `Growth.unit`), with its 95 % confidence interval."""

    bytes_per_unit: float
    low: float
    high: float


class GrowingBlocks(Record, frozen=True, kw_only=True):
    """Blocks of malloc of one size whose number grew.

    Attributes:
        block_bytes: the size of one block, including malloc's header.
        blocks: the number of blocks that came into use and stayed.
        blocks_per_run: the same for each run; None if the runs are not known.
        content: content of the newest of them, such as "output 'y'"; empty if not recognised.
    """

    block_bytes: int
    blocks: int
    blocks_per_run: float | None
    content: str = ""


class RunSample(Record, frozen=True, kw_only=True, array_like=True):
    """The counters after one run: number of the run, resident bytes, anonymous bytes, seconds."""

    run: int
    resident_bytes: int
    anonymous_bytes: int
    duration_s: float


class Growth(PlottableRecord, frozen=True, kw_only=True):
    """The memory of a process over many runs, and the verdict.

    Attributes:
        subject: the model, the command, or the process.
        kind: a ``model`` that ran in a child, a ``program`` that was started, or a ``process`` that
            ran already.
        verdict: the verdict.
        sentence: the verdict with its figures in one sentence.
        advice: advice in a sentence; empty if there is nothing to do.
        owner: the owner of most of the growth; None if nothing grew.
        slope: the growth of that owner after the warm-up; None if nothing grew.
        slope_bytes_per_run: the same without its interval, in bytes for each `unit`; 0 if nothing
            grew.
        kept_values: the values of earlier runs that the program keeps, such as ``output 'y'``,
            ``output 'y' (2 KiB) and output 'z' (4 B)`` or ``copies of output 'y'``; empty for none.
        grown_bytes: the growth of the resident set from the first run to the end.
        trim_returned_bytes: the resident bytes that malloc returned when asked at the end; None if
            it was not asked.
        runs: the number of runs; 0 if it is not known.
        is_run_count_exact: whether `runs` are all runs. If a program was killed, later runs are not
            known.
        is_of_calibration: whether the values that are kept are outputs of a calibration of
            ``onnxruntime.quantization``, which releases them at its end.
        warm_up_runs: the runs before growth is judged.
        warm_up_s: the seconds before growth is judged.
        unit: a run of a session, a reload of a session, or a second of a program whose runs are not
            known.
        varied: the kinds of variation from run to run.
        dimensions: the ranges of the free dimensions that varied, by name.
        blocks: the sizes of blocks that grew, most bytes first.
        moments: the memory by owner, in time.
        samples: the counters after the runs; thinned out if there are many.
        notes: sentences on figures that could not be read.
        onnxruntime: the version; None if it is not known.
        message: why the observation ended early; empty if it did not.
    """

    schema: Literal["memdiag.growth/1"] = GROWTH_SCHEMA
    subject: str
    kind: Literal["model", "program", "process"]
    verdict: Verdict
    sentence: str
    advice: str
    owner: GrowingOwner | None
    slope: Slope | None
    slope_bytes_per_run: float
    kept_values: str = ""
    grown_bytes: int
    trim_returned_bytes: int | None
    runs: int
    warm_up_runs: int
    warm_up_s: float
    unit: Unit
    varied: tuple[Varied, ...]
    dimensions: dict[str, tuple[int, int]]
    blocks: tuple[GrowingBlocks, ...]
    moments: tuple[Moment, ...]
    samples: tuple[RunSample, ...]
    notes: tuple[str, ...]
    onnxruntime: str | None
    message: str = ""
    is_run_count_exact: bool = True
    is_of_calibration: bool = False

    @property
    def is_leak_or_kept(self) -> bool:
        """Whether memory in use grows without an end: commands exit with 1, and budgets fail."""
        return self.verdict in ("leak", "kept") and not self.is_of_calibration

"""Growth: memory over many runs, and whether it is a leak (schema ``memdiag.growth/1``)."""

from typing import Final, Literal

from memdiag.records.attribution import OwnerKind
from memdiag.records.base import PlottableRecord, Record

GROWTH_SCHEMA: Final = "memdiag.growth/1"

Verdict = Literal["flat", "plateau", "high_water", "retained", "kept", "leak", "undecided"]
"""``flat``: no growth after the first run; ``plateau``: it grew and stopped; ``high_water``: it
grows with each new largest input, otherwise not; ``retained``: malloc keeps freed memory; ``kept``:
the caller keeps values of the runtime; ``leak``: memory in use grows with each run; ``undecided``:
it still grew at the end, but not steadily."""

BAD_VERDICTS: Final = ("leak", "kept")
"""The verdicts for which commands exit with 1 and budgets fail."""

GrowingOwner = Literal[
    "heap", "arena", "arena_slack", "allocator_retained", "python", "sessions", "files", "other"
]
"""``heap``: blocks of malloc in use, outside of arenas; ``arena``: chunks in use of onnxruntime's
arenas; ``arena_slack``: free chunks of arenas; ``allocator_retained``: freed blocks that malloc
keeps;
``python``: Python's heap; ``sessions``: sessions that are alive; ``files``: mapped files and
libraries; ``other``: memory outside of malloc, such as stacks and private mappings."""

Unit = Literal["run", "reload", "second"]
"""What growth is counted by."""

Varied = Literal["content", "shape", "none"]
"""What differs from run to run."""


class OwnerBytes(Record, frozen=True, kw_only=True):
    """The resident bytes of one kind of owner, as in an X-ray without models."""

    kind: OwnerKind
    bytes: int


class Moment(Record, frozen=True, kw_only=True):
    """The memory of the process between two runs.

    Attributes:
        run: the number of runs until then.
        time_s: seconds since the first moment.
        resident_bytes: the resident set.
        owners: the resident bytes by owner, which sum up to `resident_bytes`; empty if only the
            counters of the process could be read.
        heap_bytes, heap_blocks: the blocks of malloc in use outside of arenas, resident or not;
            None if the heap could not be read.
        arena_used_bytes, arena_slack_bytes: the chunks in use and the free chunks of all arenas of
            onnxruntime; None if the heap could not be read.
        arenas: the number of arenas with memory; None if the heap could not be read.
        sessions: the number of sessions that are alive; None if it is not known.
    """

    run: int
    time_s: float
    resident_bytes: int
    owners: tuple[OwnerBytes, ...] = ()
    heap_bytes: int | None = None
    heap_blocks: int | None = None
    arena_used_bytes: int | None = None
    arena_slack_bytes: int | None = None
    arenas: int | None = None
    sessions: int | None = None

    def bytes_of(self, *kinds: OwnerKind) -> int:
        """Return the resident bytes of the owners of `kinds`."""
        return sum(owner.bytes for owner in self.owners if owner.kind in kinds)


class Slope(Record, frozen=True, kw_only=True):
    """A growth in bytes per run, with its 95 % confidence interval.

    Where the runs are not known, it is a growth in bytes per second (see `Growth.unit`).
    """

    bytes_per_run: float
    low: float
    high: float


class GrowingBlocks(Record, frozen=True, kw_only=True):
    """Blocks of malloc of one size whose number grew.

    Attributes:
        block_bytes: the size of one block, including malloc's header.
        blocks: the number of blocks that came into use and stayed.
        blocks_per_run: the same for each run; None if the runs are not known.
        content: what the newest of them contain, such as "output 'y'"; empty if not recognised.
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
        kind: what was observed: a ``model`` in a child, a ``program`` that was started, or a
            ``process`` that ran already.
        verdict: the verdict.
        sentence: the verdict with its figures in one sentence.
        remedy: what to do; empty if there is nothing to do.
        owner: the owner of most of the growth; None if nothing grew.
        slope: the growth of that owner after the warm-up; None if nothing grew.
        grown_bytes: the growth of the resident set from the first run to the end.
        trim_returned_bytes: the resident bytes that malloc returned when asked at the end; None if
            it was not asked.
        runs: the number of runs; 0 if it is not known.
        warm_up_runs: the runs before growth is judged.
        warm_up_s: the seconds before growth is judged.
        unit: what is counted as a run: calls of sessions, reloads of a session, or seconds of a
            program whose runs are not known.
        varied: what differed from run to run.
        threads: the number of concurrent callers.
        dimensions: the ranges of the free dimensions that varied, by name.
        blocks: the sizes of blocks that grew, most bytes first.
        moments: the memory by owner, in time.
        samples: the counters after the runs; thinned out if there are many.
        notes: sentences on what could not be seen.
        onnxruntime: the version; None if it is not known.
        message: why it ended early; empty if it did not.
    """

    schema: Literal["memdiag.growth/1"] = GROWTH_SCHEMA
    subject: str
    kind: Literal["model", "program", "process"]
    verdict: Verdict
    sentence: str
    remedy: str
    owner: GrowingOwner | None
    slope: Slope | None
    grown_bytes: int
    trim_returned_bytes: int | None
    runs: int
    warm_up_runs: int
    warm_up_s: float
    unit: Unit
    varied: tuple[Varied, ...]
    threads: int
    dimensions: dict[str, tuple[int, int]]
    blocks: tuple[GrowingBlocks, ...]
    moments: tuple[Moment, ...]
    samples: tuple[RunSample, ...]
    notes: tuple[str, ...]
    onnxruntime: str | None
    message: str = ""

    @property
    def slope_bytes_per_run(self) -> float:
        """The growth in bytes per run; 0 if nothing grew."""
        return self.slope.bytes_per_run if self.slope is not None else 0.0

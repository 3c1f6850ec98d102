"""The verdict in one sentence, and what to do about it."""

from memdiag.growth.verdict import Judgement, grown_bytes
from memdiag.records.growth import GrowingBlocks, GrowingOwner, Moment, Slope, Unit
from memdiag.units import GIB, counted, format_duration, format_size

_OWNERS: dict[GrowingOwner, str] = {
    "heap": "malloc blocks in use",
    "arena": "values in onnxruntime's arena",
    "arena_slack": "free memory of onnxruntime's arena",
    "allocator_retained": "freed memory that malloc keeps",
    "python": "Python objects",
    "sessions": "sessions that are alive",
    "files": "mapped files",
    "other": "memory outside of malloc",
}


def owner_name(owner: GrowingOwner) -> str:
    """Return the words for `owner`."""
    return _OWNERS[owner]


def rate(slope: Slope, unit: Unit) -> str:
    """Return a slope in words: ``25 KiB a run (95 % interval 24.9 to 25.1 KiB)``."""
    low, mean, high = (
        format_size(round(value)) for value in (slope.low, slope.bytes_per_run, slope.high)
    )
    text = f"{mean} a {unit}"
    return text if low == high else f"{text} (95 % interval {low} to {high})"


def sentence(
    judgement: Judgement,
    moments: tuple[Moment, ...],
    blocks: tuple[GrowingBlocks, ...],
    unit: Unit,
) -> str:
    """Return the verdict with its figures in one sentence.

    Args:
        judgement: the verdict.
        moments: the moments; at least one.
        blocks: the blocks that grew, most bytes first.
        unit: what is counted as a run.
    """
    last = moments[-1]
    runs = _progress(last, unit)
    grown = format_size(grown_bytes(moments))
    size = format_size(last.resident_bytes)
    owner = owner_name(judgement.owner) if judgement.owner else "the resident set"
    match judgement.verdict:
        case "flat":
            return f"no growth: the resident set is {size} after {runs}"
        case "plateau":
            reached = format_size(_reached(moments).resident_bytes)
            return (
                f"warm-up, not a leak: it grew by {grown} ({owner}) and stopped at {reached} after"
                f" {_part(_reached(moments), unit)} of {runs}"
            )
        case "high_water":
            return (
                f"high-water mark, not a leak: it grows with each new largest input ({owner}), by"
                f" {grown} in {runs}"
            )
        case "retained":
            return (
                f"not a leak: malloc keeps freed memory; the resident set grew by {grown} in {runs}"
            )
        case "undecided" if judgement.slope is None:
            return f"undecided: too few readings in {runs} to judge growth"
        case "undecided":
            return f"undecided: it grew by {grown} ({owner}) and had not stopped after {runs}"
    assert judgement.slope is not None
    per_run = rate(judgement.slope, unit)
    until = GIB / judgement.slope.bytes_per_run
    when = format_duration(until) if unit == "second" else counted(round(until), unit)
    content = next((f" ({each.content})" for each in blocks if each.content), "")
    word = "a leak" if judgement.verdict == "leak" else "kept values"
    return f"{word}: {owner}{content} grow by {per_run}; 1 GiB after {when}"


def remedy(judgement: Judgement, trim_returned_bytes: int | None) -> str:
    """Return what to do about the growth; empty if there is nothing to do."""
    match judgement.verdict, judgement.owner:
        case "kept", "sessions":
            return "release sessions that are no longer used, or create one and keep it"
        case "kept", _:
            return "copy what is needed of an output, and drop the output or its binding"
        case "leak", "sessions":
            return "keep one session instead of reloading it, or reload in a child process"
        case "leak", _:
            return (
                "try the newest release of onnxruntime (with --python, one in another"
                " environment), and report the rate with this record"
            )
        case "high_water", _:
            return (
                "limit the size of inputs, or let runs shrink the arena: run config entry"
                " memory.enable_memory_arena_shrinkage = cpu:0"
            )
        case "retained", _:
            returned = (
                f" (here it returned {format_size(trim_returned_bytes)})"
                if trim_returned_bytes
                else ""
            )
            return (
                f"call malloc_trim(0){returned}, or start the process with MALLOC_ARENA_MAX=2 and"
                " MALLOC_TRIM_THRESHOLD_=131072, with which malloc keeps less"
            )
        case "undecided", _:
            return "observe more runs, or for a longer time"
    return ""


def _progress(moment: Moment, unit: Unit) -> str:
    """Return the runs or the time until `moment`."""
    return format_duration(moment.time_s) if unit == "second" else counted(moment.run, unit)


def _part(moment: Moment, unit: Unit) -> str:
    """Return the runs, without their noun, or the time until `moment`."""
    return f"{moment.run:,}" if unit != "second" else format_duration(moment.time_s)


def _reached(moments: tuple[Moment, ...]) -> Moment:
    """Return the first moment at which the resident set was within 1 % of its end."""
    end = moments[-1].resident_bytes
    return next(moment for moment in moments if moment.resident_bytes >= 0.99 * end)

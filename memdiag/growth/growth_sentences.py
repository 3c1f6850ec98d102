"""The verdict in one sentence, and advice."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from memdiag.defaults import PINNED_TEXT
from memdiag.growth.observation import GrowthObservation
from memdiag.growth.verdict import (
    GrowthJudgement,
    compared_moments,
    grown_bytes,
    grows_after_warm_up,
    largest_growth,
    total_slope,
    unseen_growth,
)
from memdiag.records.growth import (
    GrowingBlocks,
    GrowingOwner,
    LargestInput,
    Moment,
    Slope,
    Unit,
)
from memdiag.session_options import SHRINKAGE_OPTION
from memdiag.units import GIB, KIB, MIB, counted, format_duration, format_rate, format_size, some_of

OWNER_LABELS: Final[Mapping[GrowingOwner, str]] = {
    "heap": "malloc blocks in use",
    "patterns": "memory patterns",
    "arena": "arena values in use",
    "arena_slack": "arena slack",
    "allocator_retained": "retained by malloc",
    "python": "Python objects",
    "sessions": "sessions that are alive",
    "files": "mapped files",
    "other": "stacks and private mappings",
}
"""Names of owners, in the sentence of the verdict and in tables."""

PATTERN_ADVICE: Final = (
    "create the session with enable_mem_pattern = False, or pad inputs to a few sizes"
)

UNDECIDED_ADVICE: Final = "observe more runs, or for a longer time: this may or may not be a leak"
RELEASE_SESSIONS_ADVICE: Final = (
    "release sessions that are no longer used, or create one and keep it"
)

_CALIBRATORS_FOLDER = "onnxruntime/quantization/"
CALIBRATORS_KEEP: Final = (
    "onnxruntime.quantization keeps the outputs of all samples until the calibration ends"
)
CALIBRATORS_HAVE: Final = (
    "A calibration by quantize_static holds the model three times: twice in Python, once in its"
    " session"
)
"""Why a calibration takes memory that does not grow (read in onnxruntime 1.32.0)."""

CALIBRATION_ADVICE: Final = (
    'calibrate in parts: quantize_static(..., extra_options={"CalibStridedMinMax": 10}) keeps the'
    " outputs of 10 samples at a time. 10 must divide the number of samples, and the data reader"
    " needs __len__ and set_range(start_index, end_index)."
    " CalibrationMethod.MinMax then chooses the same ranges, unless CalibMovingAverage is set."
    " Other methods choose other ranges, so compare the accuracy. Do not set"
    " CalibMaxIntermediateOutputs, which discards samples"
)

OTHER_PROFILERS: Final = (
    "start the program under a memory profiler of its language, such as memray run (Python) or"
    " heaptrack (C, C++, Rust), to see which calls allocate"
)
"""What tells more about a process in which onnxruntime was not recognized."""

MIN_CALIBRATION_SHARE = 0.25
"""Outputs explain the growth of a calibration if values in arenas are this share of it or more. (A
number took about 730 bytes: 256 in the arena, the others in the heap and in Python objects.)"""

MIN_ADVISED_SHARE = 0.1
"""The outputs of a calibration are worth a remedy if they are this share of the resident set."""

MIN_PATTERN_BYTES = 16 * KIB
"""Growth of memory patterns in bytes from which a note names them."""

MIN_STEP_SHARE = 0.5
"""The run with the largest input is named as the cause if this share of the growth came with it."""


def is_calibrator(site: str) -> bool:
    """Return whether `site`, where a session was created or run, is in onnxruntime.quantization."""
    return _CALIBRATORS_FOLDER in site


def slope_text(slope: Slope, unit: Unit) -> str:
    """Return a slope in words: ``25 KiB a run (95 % interval 24.9 to 25.1 KiB)``."""
    low, mean, high = (
        format_rate(value) for value in (slope.low, slope.bytes_per_unit, slope.high)
    )
    text = f"{mean} a {unit}"
    return text if low == high else f"{text} (95 % interval {low} to {high})"


def growth_sentence(judgement: GrowthJudgement, observation: GrowthObservation) -> str:
    """Return the verdict with its figures in one sentence; for reloads also whether they ratchet.

    Args:
        judgement: the verdict.
        observation: the figures that were judged; at least one moment.
    """
    text = _verdict_sentence(judgement, observation)
    ratchet = _ratchet_sentence(judgement, observation) if observation.unit == "reload" else ""
    return f"{text}. {ratchet}" if ratchet else text


def _ratchet_sentence(judgement: GrowthJudgement, observation: GrowthObservation) -> str:
    """Return a sentence on whether memory keeps growing with reloads; empty if not known."""
    match judgement.verdict:
        case "undecided":
            return ""
        case "leak" | "kept":
            is_growing = True
        case "retained":
            is_growing = grows_after_warm_up(observation)
        case _:
            is_growing = False
    if is_growing:
        return "Each reload adds memory, which grows steadily"
    return "Memory does not grow steadily with reloads"


def elapsed_text(moment: Moment, unit: Unit) -> str:
    """Return the runs or the time until `moment`."""
    return format_duration(moment.time_s) if unit == "second" else counted(moment.run, unit)


def gibibyte_clause(slopes: Sequence[Slope], unit: Unit) -> str:
    """Return after how long memory with these slopes has grown by 1 GiB together."""
    until = GIB / total_slope(slopes).bytes_per_unit
    when = format_duration(until) if unit == "second" else counted(round(until), unit)
    return f"1 GiB after {when}"


def _verdict_sentence(judgement: GrowthJudgement, observation: GrowthObservation) -> str:
    moments, unit = observation.moments, observation.unit
    last = moments[-1]
    runs_text = elapsed_text(last, unit)
    growth_text = (
        f"the resident set grew by {format_size(listed_growth_bytes(moments))} since the start"
    )
    owner = OWNER_LABELS[judgement.owner] if judgement.owner else "owner not known"
    if _may_be_heap(judgement, observation):
        owner = f"the heap, {owner}"
    match judgement.verdict:
        case "flat":
            size = format_size(last.resident_bytes)
            return (
                f"no growth: the resident set is {size} after {runs_text}"
                f"{_unseen_growth_clause(observation)}"
            )
        case "plateau":
            plateau = _plateau_moment(moments)
            return (
                f"warm-up, not a leak: {growth_text} ({owner}) and stopped at"
                f" {format_size(plateau.resident_bytes)} after {_bare_moment_text(plateau, unit)}"
                f" of {runs_text}"
            )
        case "high_water":
            return f"no leak: {_rise_text(observation)}"
        case "patterns":
            return f"no leak: {growth_text} in {runs_text}, mostly {_pattern_growth(moments)[0]}"
        case "retained":
            stopped_clause = (
                "" if grows_after_warm_up(observation) else ", and does not grow any more"
            )
            return (
                f"not a leak: malloc keeps freed memory; {growth_text} in"
                f" {runs_text}{stopped_clause}"
            )
        case "undecided" if judgement.slope is None:
            text = f"undecided: too few readings in {runs_text} to judge growth"
            counts = _session_counts(moments)
            if not counts or counts[-1] <= counts[0] + 1:
                return text
            return f"{text}, with {counts[0]} sessions at the first and {counts[-1]} at the last"
        case "undecided":
            rate = judgement.slope.bytes_per_unit if judgement.slope else 0.0
            rate_clause = f", by {format_rate(rate)} a {unit}" if rate > 0 else ""
            return (
                f"undecided: {growth_text} ({owner}){rate_clause}, and had not stopped after"
                f" {runs_text}"
            )
    assert judgement.slope is not None
    other_rates = [
        f"{OWNER_LABELS[other_owner]} by {slope_text(slope, unit)}"
        for other_owner, slope in judgement.others
    ]
    slopes = [judgement.slope, *(slope for _, slope in judgement.others)]
    growth_clause = (
        f"grow by {', '.join([slope_text(judgement.slope, unit), *other_rates])};"
        f" {gibibyte_clause(slopes, unit)}"
    )
    growth_clause += _other_growth(judgement, observation)
    if is_of_calibration(judgement, observation):
        kept_text = f"about {format_size(_kept_bytes(judgement, observation))} in {runs_text}"
        kept_text += f", of {format_size(last.resident_bytes)} of the process"
        cause = f"{CALIBRATORS_KEEP}: {kept_text}. The runs are at {observation.kept_from}"
        if not _is_large_share(judgement, observation):
            return f"{cause}. That is little of it. {CALIBRATORS_HAVE}"
        return f"{cause}. {owner[0].upper()}{owner[1:]} {growth_clause}"
    if judgement.verdict == "leak":
        return (
            f"a leak: {owner}{_blocks_content_text(judgement, observation.blocks)} {growth_clause}"
        )
    if judgement.owner == "sessions":
        counts = _session_counts(moments)
        counts_clause = f" ({counts[0]} at the start, {counts[-1]} at the end)" if counts else ""
        return (
            f"the program keeps its sessions{counts_clause}{_session_bytes_clause(observation)}:"
            f" they {growth_clause}"
        )
    if judgement.kept.names:
        call_clause = f" of the run at {observation.kept_from}" if observation.kept_from else ""
        kept_text = f"the program keeps {judgement.kept.names}{call_clause}"
        if judgement.kept.bytes_per_run is not None:
            kept_text += f": {format_rate(judgement.slope.bytes_per_unit)} more after each {unit}"
        return f"{kept_text}. {owner[0].upper()}{owner[1:]} {growth_clause}"
    return f"kept values: {owner} {growth_clause}"


def growth_advice(
    judgement: GrowthJudgement, observation: GrowthObservation, trim_returned_bytes: int | None
) -> str:
    """Return what to do about the growth; empty if there is nothing to do."""
    if is_of_calibration(judgement, observation):
        return CALIBRATION_ADVICE if _is_large_share(judgement, observation) else ""
    if judgement.verdict == "leak" and _may_be_heap(judgement, observation):
        return (
            "the heap could not be read; if the process is busy, observe it again with --pause"
            " to see whether sessions, values or other blocks grow"
        )
    match judgement.verdict, judgement.owner:
        case "kept", "sessions":
            return RELEASE_SESSIONS_ADVICE
        case "kept", "arena":
            return (
                "drop the outputs or bindings of earlier runs: look for lists, caches and globals"
                " of the program. Copying a part saves memory only if the output itself is dropped"
            )
        case "kept", _:
            return "drop the values of earlier runs: look for lists, caches and globals that grow"
        case "leak", "sessions":
            return "keep one session instead of reloading it, or reload in a child process"
        case "leak", _ if not observation.caller_keeps_nothing:
            tool = "--trace-python-allocators" if judgement.owner == "python" else "--native"
            return (
                "look for lists, caches and globals of the program that grow, and for native code"
                f" that frees nothing: memray run {tool} shows what allocates. memdiag leak with"
                " the model alone shows whether it is the program: if the model grows as well, try"
                " another release of onnxruntime"
            )
        case "leak", _:
            return (
                "try the newest release of onnxruntime, and report the rate with this record;"
                " memdiag compare --bisect growth finds the release that brought it"
            )
        case "high_water", _:
            return (
                "limit the size of inputs, or let runs shrink the arena: run config entry"
                f" {SHRINKAGE_OPTION} = cpu:0, and {PINNED_TEXT} in the"
                " environment, without which malloc keeps much of it"
            )
        case "patterns", _:
            return PATTERN_ADVICE
        case "retained", _:
            returned_clause = (
                f" (here it returned {format_size(trim_returned_bytes)})"
                if trim_returned_bytes
                else ""
            )
            return (
                f"start the process with {PINNED_TEXT}, so that malloc returns freed"
                f" blocks from 128 KiB on at once, or call malloc_trim(0){returned_clause}"
            )
        case "undecided", _:
            return UNDECIDED_ADVICE
    return ""


def is_of_calibration(judgement: GrowthJudgement, observation: GrowthObservation) -> bool:
    """Return whether outputs that onnxruntime's calibrators keep explain the growth."""
    if judgement.verdict != "kept" or not is_calibrator(observation.kept_from):
        return False
    rates = _owner_rates(judgement)
    return rates.get("arena", 0.0) >= MIN_CALIBRATION_SHARE * sum(rates.values())


def _owner_rates(judgement: GrowthJudgement) -> dict[GrowingOwner | None, float]:
    """Return the steady growth of each owner, in bytes per unit."""
    slopes = [(judgement.owner, judgement.slope), *judgement.others]
    return {owner: slope.bytes_per_unit for owner, slope in slopes if slope is not None}


def _kept_bytes(judgement: GrowthJudgement, observation: GrowthObservation) -> int:
    """Return the bytes that grew steadily: in all runs, or since the first reading if the unit is
    seconds."""
    unit, moments = observation.unit, observation.moments
    start = moments[0].time_s if unit == "second" else 0
    return round(sum(_owner_rates(judgement).values()) * (moments[-1].position(unit) - start))


def _is_large_share(judgement: GrowthJudgement, observation: GrowthObservation) -> bool:
    resident = observation.moments[-1].resident_bytes
    return _kept_bytes(judgement, observation) >= MIN_ADVISED_SHARE * resident


def listed_growth_bytes(moments: tuple[Moment, ...]) -> int:
    """Return the growth of the resident set in bytes, as the table shows it: from start to end.

    If the resident set did not grow until the last moment, the last third of the moments counts.
    """
    compared = compared_moments(moments)
    growth_bytes = compared[-1].resident_bytes - compared[0].resident_bytes
    return growth_bytes if growth_bytes > 0 else grown_bytes(compared)


def _rise_text(observation: GrowthObservation) -> str:
    """Return a clause on the growth of the process with the largest inputs, and its free memory."""
    moments = compared_moments(observation.moments)
    first, last = moments[0], moments[-1]
    growth_bytes = listed_growth_bytes(observation.moments)
    largest = observation.moments[-1].largest_input
    input_clause = "with new largest inputs"
    if largest is not None:
        growth_at_largest = sum(
            after.resident_bytes - before.resident_bytes
            for before, after in pairwise(moments)
            if before.run < largest.run <= after.run
        )
        run_text = f"{observation.unit} {largest.run:,}: {_largest_input_text(largest)}"
        if growth_at_largest >= MIN_STEP_SHARE * growth_bytes:
            input_clause = f"when the largest input came ({run_text})"
        else:
            input_clause = f"with new largest inputs (the last one in {run_text})"
    slack = last.bytes_of("arena") - (last.arena_used_bytes or 0)
    return (
        f"the process grew from {format_size(first.resident_bytes)} to"
        f" {format_size(first.resident_bytes + growth_bytes)} {input_clause}, and stays there:"
        f" {format_size(slack)} is free arena memory"
    )


def _largest_input_text(largest: LargestInput) -> str:
    """Return the shapes of inputs: ``text 1×1500, mask 1×1500``."""
    return some_of(
        [
            f"{name} {'×'.join(map(str, shape)) or 'scalar'}"
            for name, shape in largest.shapes.items()
        ]
    )


def pattern_note(moments: Sequence[Moment]) -> str:
    """Return a sentence on memory patterns, which are not a leak; empty if they hardly grew."""
    growth_text, nbytes = _pattern_growth(moments)
    arenas = [moment.arenas or 0 for moment in moments]
    # More sessions have more patterns, without new sizes.
    if nbytes < MIN_PATTERN_BYTES or arenas[-1] > arenas[0]:
        return ""
    return f"{growth_text}. This is no leak, but grows with each new one: {PATTERN_ADVICE}"


def _pattern_growth(moments: Sequence[Moment]) -> tuple[str, int]:
    """Return the growth of memory patterns in words and in bytes: empty and 0 if there is none."""
    pattern_moments = [moment for moment in moments if moment.patterns is not None]
    if not pattern_moments:
        return "", 0
    count = (pattern_moments[-1].patterns or 0) - (pattern_moments[0].patterns or 0)
    nbytes = (pattern_moments[-1].pattern_bytes or 0) - (pattern_moments[0].pattern_bytes or 0)
    if count <= 0:
        return "", 0
    return (
        f"{format_size(nbytes)} of memory patterns: onnxruntime keeps one of"
        f" {format_rate(nbytes / count)} for each combination of input sizes ({count:,} more)"
    ), nbytes


def _other_growth(judgement: GrowthJudgement, observation: GrowthObservation) -> str:
    """Return a sentence on other memory that grew more than the judged memory; empty for none."""
    moments = compared_moments(observation.moments)
    owner, nbytes = largest_growth(moments[0], moments[-1])
    named_owners = {judgement.owner, *(other_owner for other_owner, _ in judgement.others)}
    if (
        judgement.slope is None
        or owner is None
        or owner in named_owners
        or judgement.owner == "sessions"
    ):
        return ""
    first, last = (moment.position(observation.unit) for moment in (moments[0], moments[-1]))
    judged_bytes = judgement.slope.bytes_per_unit * (last - first)
    if nbytes < max(MIB, judged_bytes):
        return ""
    return (
        f". Most of the growth is other memory: {OWNER_LABELS[owner]} grew by"
        f" {format_size(nbytes)} since the start"
    )


def _unseen_growth_clause(observation: GrowthObservation) -> str:
    """Return a clause on the growth that is too small to be seen; empty if it is not known."""
    rates = unseen_growth(observation)
    if not rates:
        return ""
    python, other = (format_rate(rates[owner]) for owner in ("python", "other"))
    return (
        f". Growth below {python} a {observation.unit} of Python objects, or {other} of stacks and"
        " private mappings, would not be seen"
    )


def _session_bytes_clause(observation: GrowthObservation) -> str:
    """Return a clause with the bytes of one more session; empty if that is not known."""
    counted_moments = [
        moment
        for moment in compared_moments(observation.moments_after_warm_up)
        if moment.sessions is not None
    ]
    if not counted_moments:
        return ""
    first, last = counted_moments[0], counted_moments[-1]
    new_sessions = (last.sessions or 0) - (first.sessions or 0)
    growth_bytes = last.resident_bytes - first.resident_bytes
    return (
        f", {format_rate(growth_bytes / new_sessions)} a session"
        if new_sessions > 0 and growth_bytes > 0
        else ""
    )


def _session_counts(moments: tuple[Moment, ...]) -> list[int]:
    return [moment.sessions for moment in moments if moment.sessions is not None]


def _may_be_heap(judgement: GrowthJudgement, observation: GrowthObservation) -> bool:
    """Return whether the owner is unnamed memory, which may be a heap that was not read."""
    moments = observation.with_heap().moments
    return judgement.owner == "other" and any(moment.heap_bytes is None for moment in moments)


def _blocks_content_text(judgement: GrowthJudgement, blocks: tuple[GrowingBlocks, ...]) -> str:
    """Return the content of the largest blocks whose content is known, in brackets."""
    if judgement.owner != "heap":
        return ""
    return next((f" ({block.content})" for block in blocks if block.content), "")


def _bare_moment_text(moment: Moment, unit: Unit) -> str:
    """Return the runs, without their noun, or the time until `moment`."""
    return f"{moment.run:,}" if unit != "second" else format_duration(moment.time_s)


def _plateau_moment(moments: tuple[Moment, ...]) -> Moment:
    """Return the first moment at which the resident set was within 1 % of its end."""
    end = moments[-1].resident_bytes
    return next(moment for moment in moments if moment.resident_bytes >= 0.99 * end)

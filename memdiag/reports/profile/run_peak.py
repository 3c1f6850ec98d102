"""The peak of a run: sentences from the runtime's figures, and the values in memory at the peak."""

from memdiag.records.profile import WITH_GRAPHS, PeakNode, Profile
from memdiag.reports.estimate.tables import live_tensor_table
from memdiag.reports.table import Table
from memdiag.reports.text import plain
from memdiag.units import format_size


def run_peak_sentences(profile: Profile) -> tuple[str, ...]:
    """Return the runtime's figures in sentences, or why they are missing.

    Empty if the user did not ask for the peak of a run.
    """
    if profile.run_peak_failure:
        return (f"The peak of a run is not known: {plain(profile.run_peak_failure)}.",)
    peak = profile.run_peak
    if peak is None:
        return ()
    parts = [f"{format_size(peak.values_bytes)} of values{_estimated_peak_words(profile)}"]
    if peak.rounding_bytes > 0:
        parts.append(
            f"{format_size(peak.rounding_bytes)} of unused ends of their"
            f" chunks{_resident_ends_words(peak)}"
        )
    if peak.op_type in WITH_GRAPHS and peak.scratch_bytes:
        parts.append(f"{format_size(peak.scratch_bytes)} inside its graph")
    elif peak.scratch_bytes == 0:
        parts.append("no working memory of the kernel")
    elif peak.scratch_bytes is not None:
        parts.append(f"{format_size(peak.scratch_bytes)} of working memory of the kernel")
    unknown_sentence = (
        " Working memory of kernels is not known: more was in use before the run."
        if peak.scratch_bytes is None
        else ""
    )
    free_clause = (
        f"; {format_size(peak.free_resident_bytes)} of its free memory was resident after it"
        if peak.free_resident_bytes is not None
        else ""
    )
    return (
        f"The first run used most of the arena at {_peak_node_words(peak)}:"
        f" {format_size(peak.peak_bytes)} in use. These are {_joined_with_and(parts)}."
        f"{unknown_sentence}{_highest_inside_sentence(peak)}",
        *_largest_outputs_sentence(peak),
        f"The arena took {format_size(peak.grown_bytes)} from the system for the run{free_clause}.",
    )


def _peak_node_words(peak: PeakNode) -> str:
    node = _node_words(peak.node, peak.op_type, peak.inside)
    if peak.highest_inside is None:
        return node
    return f"{node}, when it wrote its outputs after the last node of its graph"


def _highest_inside_sentence(peak: PeakNode) -> str:
    highest = peak.highest_inside
    if highest is None:
        return ""
    node = _node_words(highest.node, highest.op_type, highest.inside)
    return f" In its graph most was in use at {node}: {format_size(highest.in_use_bytes)}."


def _node_words(node: str, op_type: str, inside: str) -> str:
    """Return a node in words: ``join (Concat) inside loop``."""
    place = f" inside {plain(inside)}" if inside else ""
    return f"{plain(node)} ({plain(op_type)}){place}"


def _resident_ends_words(peak: PeakNode) -> str:
    """Return how much of the unused ends of chunks may be resident; empty if it is not known."""
    resident_bytes = peak.resident_rounding_bytes
    if resident_bytes is None:
        return ""
    if resident_bytes == peak.rounding_bytes:
        return " (reserved; how much of it is resident is not known)"
    if not resident_bytes:
        return " (only reserved, not resident)"
    return f" (reserved; at most {format_size(resident_bytes)} of it is resident)"


def _largest_outputs_sentence(peak: PeakNode) -> tuple[str, ...]:
    output_texts = [
        f"{format_size(output.bytes)} of {_node_words(output.node, output.op_type, output.inside)}"
        for output in peak.largest
        if output.bytes
    ]
    return (
        (f"Largest outputs of the first run: {_joined_with_and(output_texts)}.",)
        if output_texts
        else ()
    )


def run_peak_table(profile: Profile, *, max_tensors: int | None = None) -> Table:
    """Return the values in memory at the estimated peak of a run, at most `max_tensors`.

    It has no rows if the user did not ask for the peak of a run.
    """
    if profile.run_peak is None or profile.estimate is None:
        return Table(columns=(), rows=())
    return live_tensor_table(profile.estimate, max_tensors=max_tensors)


def _estimated_peak_words(profile: Profile) -> str:
    peak = profile.run_peak
    if peak is None or peak.estimated_bytes is None:
        return ""
    node = plain(peak.estimated_node)
    place = f", at {node}" if node and node != plain(peak.node) else ""
    return f" (estimated {format_size(peak.estimated_bytes)}{place})"


def _joined_with_and(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]

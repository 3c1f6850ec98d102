"""Why the peak of a profile is above its steady state."""

from collections import Counter
from collections.abc import Iterator

from memdiag.records.estimate import EstimatedPhase, TermName
from memdiag.records.profile import Profile
from memdiag.reports.profile.phases import span_row
from memdiag.reports.text import plain, shortened
from memdiag.units import MIB, format_size

MIN_ABOVE_BYTES = 8 * MIB
MIN_ABOVE_SHARE = 0.1
"""Share of the peak above the baseline by which the peak must exceed the steady state to be
explained by itself."""

MAX_PREDICTION_ERROR = 0.1
"""A predicted cause is stated if the predicted peak differs from the measured peak by at most this
share of it, both above the baseline."""

_MIN_PART_SHARE = 0.2
"""Share of the memory that only the peak needs from which on a part of it is named."""

_MAX_CAUSE_NAME = 60
_WEIGHT_TERMS: frozenset[TermName] = frozenset(
    {
        "weights",
        "mapped weights",
        "stale weights",
        "folded constants",
        "fused weights",
        "reordered filters",
        "packed weights",
    }
)
"""Forms of the weights, one of which replaces another while the session is created."""

_FOLDING_VALUES_TEXT = "inputs and results of constant folding until its last node is evaluated"
_RUN_TERMS: frozenset[TermName] = frozenset({"activations", "unused arena", "kernel scratch"})


def is_above_steady(profile: Profile) -> bool:
    """Return whether the peak is so far above the steady state that it has a separate cause."""
    if profile.steady_rss_bytes is None:
        return False
    peak_above_bytes = profile.peak_above_bytes
    return _transient_bytes(profile) >= max(MIN_ABOVE_BYTES, MIN_ABOVE_SHARE * peak_above_bytes)


def transient_peak_sentence(profile: Profile) -> str:
    """Return by how much the peak is above the steady state, in which step, and what it holds."""
    start = f"The peak is {format_size(_transient_bytes(profile))} above the steady state"
    parts = list(_predicted_parts(profile))
    if parts:
        rule = _peak_rule_text(profile)
        return f"{start}: {profile.peak_phase} briefly keeps {' and '.join(parts)}{rule}."
    spans = [span for span in profile.spans if span.phase == profile.peak_phase]
    highest = max(spans, key=lambda span: span.peak_rss_bytes, default=None)
    place = f"{start}, in {profile.peak_phase}"
    if highest is None:
        return f"{place}."
    row = span_row(highest)
    return f"{place} ({row.title}: {row.sentence})."


def _transient_bytes(profile: Profile) -> int:
    assert profile.steady_rss_bytes is not None
    return profile.peak_rss_bytes - profile.steady_rss_bytes


def _predicted_parts(profile: Profile) -> Iterator[str]:
    """Yield what is predicted to be in memory only at the peak, the largest part first."""
    estimate = profile.estimate
    phase = estimate.phase(profile.peak_phase) if estimate else None
    if estimate is None or phase is None:
        return
    measured_bytes = profile.peak_above_bytes
    if abs(phase.peak_bytes - measured_bytes) > MAX_PREDICTION_ERROR * measured_bytes:
        return
    parts = _transient_parts(phase, estimate.phases[-1])
    min_bytes = _MIN_PART_SHARE * sum(parts.values())
    for text, nbytes in parts.most_common():
        if nbytes >= min_bytes:
            yield f"{text} ({format_size(nbytes)})"


def _transient_parts(phase: EstimatedPhase, last_phase: EstimatedPhase) -> Counter[str]:
    """Return by text the bytes at the peak of `phase` that the end of `last_phase` lacks."""
    excess_by_term = {term.name: term.bytes for term in phase.peak_terms}
    for term in last_phase.kept_terms:
        excess_by_term[term.name] = excess_by_term.get(term.name, 0) - term.bytes
    cause = shortened(plain(phase.cause), _MAX_CAUSE_NAME) or "a weight"
    excess_by_text = Counter(
        {
            f"a converted copy of {cause}": excess_by_term.get("weight being converted", 0),
            _FOLDING_VALUES_TEXT: excess_by_term.get("operands of folding", 0),
            "the parsed file": excess_by_term.get("model file", 0),
            "the lists of tree ensembles": excess_by_term.get("tree tables", 0),
            "the values of a run": sum(excess_by_term.get(name, 0) for name in _RUN_TERMS),
        }
    )
    excess_by_text[_superseded_weights_text(phase, excess_by_term)] += sum(
        excess_by_term.get(name, 0) for name in _WEIGHT_TERMS
    )
    return +excess_by_text


def _superseded_weights_text(phase: EstimatedPhase, excess_by_term: dict[TermName, int]) -> str:
    """Return which forms of weights are in memory at the peak of `phase` and freed after it."""
    if phase.name == "constant_fold":
        return _FOLDING_VALUES_TEXT
    if phase.name == "prepack" and phase.cause:
        return f"{shortened(plain(phase.cause), _MAX_CAUSE_NAME)} next to its packed copy"
    if excess_by_term.get("reordered filters", 0) > 0:
        return "filters of convolutions as they were until the last one is reordered"
    if excess_by_term.get("fused weights", 0) > 0:
        return "filters as they were until BatchNormalization is merged into the last one"
    return "weights that are freed later"


def _peak_rule_text(profile: Profile) -> str:
    """Return the rule of the finding about this peak in brackets; empty if there is none."""
    phase = profile.estimate.phase(profile.peak_phase) if profile.estimate else None
    cause = phase.cause if phase else ""
    findings = [
        finding
        for finding in profile.findings
        if finding.peak_bytes and finding.evidence != "refuted"
        if finding.phase == profile.peak_phase or (cause and cause in finding.weights)
    ]
    # A finding that costs nothing at steady state is about the peak alone.
    finding_about_peak = min(
        findings, key=lambda finding: (finding.bytes > 0, -finding.peak_bytes), default=None
    )
    return f" [{finding_about_peak.name}]" if finding_about_peak else ""

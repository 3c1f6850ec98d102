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
"""A peak is explained apart from the steady state if it is so far above it: as a share of the peak
above the baseline."""

MAX_PREDICTION_ERROR = 0.1
"""A predicted cause is stated if the prediction misses the measured peak by at most this share of
it, above the baseline."""

_MIN_PART_SHARE = 0.2
"""Share of all that only the peak needs from which on a part is named."""

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
    """Return whether the peak is so far above the steady state that it has a cause of its own."""
    if profile.steady_rss_bytes is None:
        return False
    above = profile.peak_above_bytes
    return _transient_bytes(profile) >= max(MIN_ABOVE_BYTES, MIN_ABOVE_SHARE * above)


def transient_peak_sentence(profile: Profile) -> str:
    """Return by how much the peak is above the steady state, in which step, and what it holds."""
    start = f"The peak is {format_size(_transient_bytes(profile))} above the steady state"
    parts = list(_predicted_parts(profile))
    if parts:
        rule = _peak_rule_text(profile)
        return f"{start}: {profile.peak_phase} briefly keeps {' and '.join(parts)}{rule}."
    spans = [span for span in profile.spans if span.phase == profile.peak_phase]
    highest = max(spans, key=lambda span: span.peak_rss_bytes, default=None)
    where = f"{start}, in {profile.peak_phase}"
    if highest is None:
        return f"{where}."
    row = span_row(highest)
    return f"{where} ({row.title}: {row.sentence})."


def _transient_bytes(profile: Profile) -> int:
    assert profile.steady_rss_bytes is not None
    return profile.peak_rss_bytes - profile.steady_rss_bytes


def _predicted_parts(profile: Profile) -> Iterator[str]:
    """Yield what is predicted to be in memory at the peak only, the largest first."""
    estimate = profile.estimate
    phase = estimate.phase(profile.peak_phase) if estimate else None
    if estimate is None or phase is None:
        return
    measured = profile.peak_above_bytes
    if abs(phase.peak_bytes - measured) > MAX_PREDICTION_ERROR * measured:
        return
    parts = _transient_parts(phase, estimate.phases[-1])
    least = _MIN_PART_SHARE * sum(parts.values())
    for text, nbytes in parts.most_common():
        if nbytes >= least:
            yield f"{text} ({format_size(nbytes)})"


def _transient_parts(phase: EstimatedPhase, last: EstimatedPhase) -> Counter[str]:
    """Return what the peak of `phase` has more than the end of `last`, in words."""
    more = {term.name: term.bytes for term in phase.peak_terms}
    for term in last.kept_terms:
        more[term.name] = more.get(term.name, 0) - term.bytes
    cause = shortened(plain(phase.cause), _MAX_CAUSE_NAME) or "a weight"
    found = Counter(
        {
            f"a converted copy of {cause}": more.get("weight being converted", 0),
            _FOLDING_VALUES_TEXT: more.get("operands of folding", 0),
            "the parsed file": more.get("model file", 0),
            "the lists of tree ensembles": more.get("tree tables", 0),
            "the values of a run": sum(more.get(name, 0) for name in _RUN_TERMS),
        }
    )
    found[_superseded_weights_text(phase, more)] += sum(more.get(name, 0) for name in _WEIGHT_TERMS)
    return +found


def _superseded_weights_text(phase: EstimatedPhase, more: dict[TermName, int]) -> str:
    """Return which forms of weights are in memory at the peak of `phase` and freed after it."""
    if phase.name == "constant_fold":
        return _FOLDING_VALUES_TEXT
    if phase.name == "prepack" and phase.cause:
        return f"{shortened(plain(phase.cause), _MAX_CAUSE_NAME)} next to its packed copy"
    if more.get("reordered filters", 0) > 0:
        return "filters of convolutions as they were until the last one is reordered"
    if more.get("fused weights", 0) > 0:
        return "filters as they were until BatchNormalization is merged into the last one"
    return "weights that are freed later"


def _peak_rule_text(profile: Profile) -> str:
    """Return the rule of the finding about this peak, in brackets; empty if there is none."""
    phase = profile.estimate.phase(profile.peak_phase) if profile.estimate else None
    cause = phase.cause if phase else ""
    found = [
        finding
        for finding in profile.findings
        if finding.peak_bytes and finding.evidence != "refuted"
        if finding.phase == profile.peak_phase or (cause and cause in finding.weights)
    ]
    # What costs nothing at steady state is about the peak alone.
    best = min(found, key=lambda each: (each.bytes > 0, -each.peak_bytes), default=None)
    return f" [{best.name}]" if best else ""

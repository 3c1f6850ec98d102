"""Comparison of predicted findings with a measurement: the phases and the X-ray of a profile."""

import msgspec

from memdiag.records.attribution import Attribution, Copy
from memdiag.records.finding import Evidence, ExpectedCopies, Finding
from memdiag.records.profile import Profile
from memdiag.session_options import ARENA_OPTION, FOLDING_LIMIT_OPTION, is_on

MIN_COPIES_SHARE = 0.05
"""A finding about copies is refuted if the X-ray found this share of its bytes or less."""

MIN_RUN_SHARE = 0.95
"""A finding about activations is refuted if the first run added less than this share of what they
take at least."""

MIN_FOLDING_SHARE = 0.5
"""A finding about the peak of constant folding is refuted if folding added less than this share of
it: the rest may reuse other memory."""


def match_profile(finding: Finding, profile: Profile) -> Finding:
    """Return `finding` as measured or refuted by `profile`; predicted if the profile cannot decide.

    Activations are compared with the growth of the first run, copies of weights with the X-ray. The
    peak bytes of a finding are limited to the measured peak.
    """
    if finding.phase == "constant_fold" and _is_folding_disabled(profile, finding):
        return msgspec.structs.replace(finding, evidence="refuted", measured_bytes=0)
    if finding.run_bytes:
        matched = _match_run(finding, profile)
    elif finding.phase == "constant_fold" and not finding.bytes:
        matched = _match_folding(finding, profile)
    elif profile.attribution is not None:
        matched = match_attribution(finding, profile.attribution)
    else:
        matched = finding
    peak_bytes = max(0, profile.peak_above_bytes)
    return msgspec.structs.replace(matched, peak_bytes=min(matched.peak_bytes, peak_bytes))


def _is_folding_disabled(profile: Profile, finding: Finding) -> bool:
    """Return whether session options disabled constant folding, wholly or for large results."""
    names = {phase.name for phase in profile.phases}
    if "prepack" in names and "constant_fold" not in names:
        return True
    is_limited = FOLDING_LIMIT_OPTION in profile.session.options
    growth = _folding_growth(profile)
    largest = max(finding.bytes, finding.peak_bytes)
    return is_limited and growth is not None and growth <= MIN_COPIES_SHARE * largest


def _folding_growth(profile: Profile) -> int | None:
    """Return the bytes that constant folding added at its peak; None if it was not measured."""
    spans = [span for span in profile.spans if span.phase == "constant_fold"]
    if not spans:
        return None
    return max(0, *(span.peak_rss_bytes - span.start_rss_bytes for span in spans))


def _match_run(finding: Finding, profile: Profile) -> Finding:
    """Return a finding about activations as measured or refuted.

    The first run must have grown by them, and the arena must keep them at steady state: it does not
    where it is off, or shrinks after each run.
    """
    run = profile.phase("first_run") or profile.phase("prefill")
    if run is None or not profile.outcome.completed:
        return finding
    mapped_bytes = 0  # pages of mapped weights that this run read first
    if run.start.file_bytes is not None and run.end.file_bytes is not None:
        mapped_bytes = max(0, run.end.file_bytes - run.start.file_bytes)
    growth = max(0, run.peak_rss_bytes - run.start.rss_bytes - mapped_bytes)
    evidence: Evidence = "measured" if growth >= MIN_RUN_SHARE * finding.run_bytes else "refuted"
    slack = _arena_slack_bytes(profile)
    if slack is not None and slack < MIN_COPIES_SHARE * finding.bytes:
        evidence, growth = "refuted", slack
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=growth)


def _arena_slack_bytes(profile: Profile) -> int | None:
    """Return the free bytes that arenas keep at steady state; None if they are not known."""
    if not is_on(profile.session.options, ARENA_OPTION, default=True):
        return 0
    attribution = profile.attribution
    if attribution is None or attribution.partial or not attribution.bytes_of("arena"):
        return None
    return attribution.arena_slack_bytes


def _match_folding(finding: Finding, profile: Profile) -> Finding:
    """Return a finding about the peak of constant folding as measured or refuted."""
    growth = _folding_growth(profile)
    if growth is None:
        return finding
    evidence: Evidence = (
        "measured" if growth >= MIN_FOLDING_SHARE * finding.peak_bytes else "refuted"
    )
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=growth)


def match_attribution(finding: Finding, attribution: Attribution) -> Finding:
    """Return `finding` as measured or refuted by the copies that were resident at steady state.

    A finding stays predicted if the X-ray cannot decide: it expects no copies, its weights have no
    distinctive content, or not all memory could be read. The measured bytes are limited to what the
    process has above its baseline.
    """
    measured_bytes = measure_finding(finding, attribution)
    if measured_bytes is None:
        return finding
    if attribution.baseline_bytes is not None:
        bytes_above_baseline = attribution.resident_bytes - attribution.baseline_bytes
        measured_bytes = min(measured_bytes, max(0, bytes_above_baseline))
    measured, waste = measured_bytes, finding.bytes
    if not waste:  # the expected copies cost only at the peak: they are there or not
        measured = sum(copy.bytes for copy in _finding_copies(finding, attribution))
        waste = sum(expected.bytes for expected in finding.expected)
    evidence: Evidence = "measured" if measured > MIN_COPIES_SHARE * waste else "refuted"
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=measured_bytes)


def measure_finding(finding: Finding, attribution: Attribution) -> int | None:
    """Return the bytes of `finding` that the X-ray confirms; None if it cannot decide.

    Copies beyond the expected ones are added to the bytes of the finding, missing copies are
    subtracted. Of a copy that is mapped from a file, only the resident part counts.
    """
    if not finding.expected or attribution.partial or _has_indistinct_weights(finding, attribution):
        return None
    copies = _finding_copies(finding, attribution)
    copies_bytes = sum(copy.bytes for copy in copies)
    surplus = copies_bytes - sum(expected.bytes for expected in finding.expected)
    measured_bytes = max(0, finding.bytes + surplus)
    if copies_bytes:
        resident_bytes = sum(copy.resident_bytes for copy in copies)
        measured_bytes = measured_bytes * resident_bytes // copies_bytes
    return measured_bytes


def _finding_copies(finding: Finding, attribution: Attribution) -> list[Copy]:
    return [
        copy
        for copy in attribution.copies
        if any(_is_expected_copy(copy, expected) for expected in finding.expected)
    ]


def _is_expected_copy(copy: Copy, expected: ExpectedCopies) -> bool:
    """Return whether `copy` is of the expected kind and weight, and not a freed block."""
    return (
        copy.kind == expected.kind
        and copy.in_use is not False
        and not {*expected.weights}.isdisjoint(copy.weights)
    )


def _has_indistinct_weights(finding: Finding, attribution: Attribution) -> bool:
    """Return whether the X-ray could not search for one of the finding's weights."""
    indistinct = {name for group in attribution.indistinct for name in group.weights}
    return any(not indistinct.isdisjoint(expected.weights) for expected in finding.expected)

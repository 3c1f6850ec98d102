"""Confronting a prediction with what a run took, and what its X-ray saw."""

import msgspec

from memdiag.records.attribution import Attribution, Copy
from memdiag.records.finding import Evidence, ExpectedCopies, Finding
from memdiag.records.profile import Profile

_SLACK, _UNSETTLED = "slack", "in use or slack"
"""What the X-ray calls the parts of an arena that are free, and those that may be."""

MIN_COPIES_SHARE = 0.05
"""A finding about copies is refuted where the X-ray saw this share of its bytes or less."""

MIN_RUN_SHARE = 0.95
"""A finding about the values of a run is refuted where the first run added less than this share of
what they take at least."""

MIN_FOLDING_SHARE = 0.5
"""A finding about the peak of constant folding is refuted where folding added less than this share
of it: other memory may be reused for the rest."""


def confront_with_profile(finding: Finding, profile: Profile) -> Finding:
    """Return `finding` as measured or refuted by `profile`, as far as that can tell.

    What the values of a run take is held against the growth in the first run, copies of weights
    against the X-ray. No finding costs more at the peak than was seen there.
    """
    if finding.phase == "constant_fold" and _folds_nothing(profile):
        return msgspec.structs.replace(finding, evidence="refuted", measured_bytes=0)
    if finding.run_bytes:
        found = _confront_with_run(finding, profile)
    elif finding.phase == "constant_fold" and not finding.bytes:
        found = _confront_with_folding(finding, profile)
    elif profile.attribution is not None:
        found = confront(finding, profile.attribution)
    else:
        found = finding
    peak_bytes = max(0, profile.peak_rss_bytes - profile.baseline_rss_bytes)
    return msgspec.structs.replace(found, peak_bytes=min(found.peak_bytes, peak_bytes))


def _folds_nothing(profile: Profile) -> bool:
    """Return whether the session was created without constant folding, as options can have it."""
    names = {phase.name for phase in profile.phases}
    return "prepack" in names and "constant_fold" not in names


def _confront_with_run(finding: Finding, profile: Profile) -> Finding:
    run = profile.phase("first_run")
    if run is None or profile.outcome.status != "completed":
        return finding
    mapped = 0  # weights that were mapped before, and read now
    if run.start.file_bytes is not None and run.end.file_bytes is not None:
        mapped = max(0, run.end.file_bytes - run.start.file_bytes)
    growth = max(0, run.peak_rss_bytes - run.start.rss_bytes - mapped)
    evidence: Evidence = "measured" if growth >= MIN_RUN_SHARE * finding.run_bytes else "refuted"
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=growth)


def _confront_with_folding(finding: Finding, profile: Profile) -> Finding:
    """Return a finding about the peak of folding as measured or refuted by what folding added."""
    spans = [span for span in profile.spans if span.phase == "constant_fold"]
    if not spans:
        return finding
    growth = max(0, *(span.peak_rss_bytes - span.start_rss_bytes for span in spans))
    evidence: Evidence = (
        "measured" if growth >= MIN_FOLDING_SHARE * finding.peak_bytes else "refuted"
    )
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=growth)


def confront(finding: Finding, attribution: Attribution) -> Finding:
    """Return `finding` as measured or refuted by what was resident at steady state.

    What the X-ray cannot tell stays predicted: findings that expect no copies, weights without
    distinctive content, and everything where not all could be read. No finding is measured as more
    than the process has above its baseline.
    """
    measured_bytes = seen_bytes(finding, attribution)
    if measured_bytes is None:
        return finding
    if attribution.baseline_bytes is not None:
        above = attribution.resident_bytes - attribution.baseline_bytes
        measured_bytes = min(measured_bytes, max(0, above))
    evidence: Evidence = (
        "measured" if measured_bytes > MIN_COPIES_SHARE * finding.bytes else "refuted"
    )
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=measured_bytes)


def seen_bytes(finding: Finding, attribution: Attribution) -> int | None:
    """Return what the X-ray saw of the bytes of `finding`; None where it cannot tell.

    What was seen beside the expected copies counts to the finding, what was not seen of them does
    not. A copy counts once, and as far as it is resident: a file is mapped as a whole, but resident
    where it was read.

    What was freed but stays in the arena counts as far as the arena has slack: the next values
    overwrite some of it, so that its content tells no more whose place it was.
    """
    if attribution.partial or _indistinct(finding, attribution):
        return None
    if not finding.expected and not finding.retained_bytes:
        return None
    slack, unsettled = (_arena(attribution, name) for name in (_SLACK, _UNSETTLED))
    missing = max(0, finding.retained_bytes - slack)
    if missing and unsettled:
        return None
    seen = [
        copy
        for copy in attribution.copies
        if any(_is_meant(copy, expected) for expected in finding.expected)
    ]
    extent = sum(copy.bytes for copy in seen)
    surplus = extent - sum(expected.bytes for expected in finding.expected)
    measured_bytes = max(0, finding.bytes + surplus - missing)
    if extent:
        measured_bytes = measured_bytes * sum(copy.resident_bytes for copy in seen) // extent
    return measured_bytes


def _arena(attribution: Attribution, name: str) -> int:
    owners = (owner for owner in attribution.owners if owner.kind == "arena")
    return sum(owner.bytes for owner in owners if owner.name == name)


def _is_meant(copy: Copy, expected: ExpectedCopies) -> bool:
    """Return whether `copy` is of the expected kind, and no block that was freed."""
    return (
        copy.kind == expected.kind
        and copy.live is not False
        and not {*expected.weights}.isdisjoint(copy.weights)
    )


def _indistinct(finding: Finding, attribution: Attribution) -> bool:
    """Return whether a weight of the finding has no content to be told by."""
    vague = {name for group in attribution.indistinct for name in group.weights}
    return any(not vague.isdisjoint(expected.weights) for expected in finding.expected)

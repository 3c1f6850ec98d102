"""Confronting a prediction with what the X-ray of a run saw."""

import msgspec

from memdiag.records.attribution import Attribution, Copy
from memdiag.records.finding import Evidence, ExpectedCopies, Finding

_SLACK, _UNSETTLED = "slack", "in use or slack"
"""What the X-ray calls the parts of an arena that are free, and those that may be."""

_ENOUGH = 0.05
"""A finding of which less than this share was seen is refuted."""


def confront(finding: Finding, attribution: Attribution) -> Finding:
    """Return `finding` as measured or refuted by what was resident at steady state.

    What the X-ray cannot tell stays predicted: findings that expect no copies, weights without
    distinctive content, and everything where not all could be read. What was seen beside the
    expected copies counts to the finding, what was not seen of them does not.

    What was freed but stays in the arena counts as far as the arena has slack: the next values
    overwrite some of it, so that its content tells no more whose place it was.
    """
    if attribution.partial or _indistinct(finding, attribution):
        return finding
    if not finding.expected and not finding.retained_bytes:
        return finding
    slack, unsettled = (_arena(attribution, name) for name in (_SLACK, _UNSETTLED))
    missing = max(0, finding.retained_bytes - slack)
    if missing and unsettled:
        return finding
    surplus = sum(_seen(expected, attribution) - expected.bytes for expected in finding.expected)
    measured_bytes = max(0, finding.bytes + surplus - missing)
    evidence: Evidence = "measured" if measured_bytes > _ENOUGH * finding.bytes else "refuted"
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=measured_bytes)


def _arena(attribution: Attribution, name: str) -> int:
    owners = (owner for owner in attribution.owners if owner.kind == "arena")
    return sum(owner.bytes for owner in owners if owner.name == name)


def _seen(expected: ExpectedCopies, attribution: Attribution) -> int:
    """Return the bytes of the copies of the expected kind, apart from blocks that were freed."""
    return sum(copy.bytes for copy in attribution.copies if _is_meant(copy, expected))


def _is_meant(copy: Copy, expected: ExpectedCopies) -> bool:
    return (
        copy.kind == expected.kind
        and copy.live is not False
        and not {*expected.weights}.isdisjoint(copy.weights)
    )


def _indistinct(finding: Finding, attribution: Attribution) -> bool:
    """Return whether a weight of the finding has no content to be told by."""
    vague = {name for group in attribution.indistinct for name in group.weights}
    return any(not vague.isdisjoint(expected.weights) for expected in finding.expected)

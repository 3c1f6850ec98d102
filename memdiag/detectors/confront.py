"""Confronting a prediction with what the X-ray of a run saw."""

import msgspec

from memdiag.records.attribution import Attribution, Copy
from memdiag.records.finding import Evidence, ExpectedCopies, Finding

_ENOUGH = 0.05
"""A finding of which less than this share was seen is refuted."""


def confront(finding: Finding, attribution: Attribution) -> Finding:
    """Return `finding` as measured or refuted by what was resident at steady state.

    What the X-ray cannot tell stays predicted: findings that expect no copies, weights without
    distinctive content, and everything where not all could be read. What was seen beside the
    expected copies counts to the finding, what was not seen of them does not.
    """
    if not finding.expected or attribution.partial or _indistinct(finding, attribution):
        return finding
    surplus = sum(_seen(expected, attribution) - expected.bytes for expected in finding.expected)
    measured_bytes = max(0, finding.bytes + surplus)
    evidence: Evidence = "measured" if measured_bytes > _ENOUGH * finding.bytes else "refuted"
    return msgspec.structs.replace(finding, evidence=evidence, measured_bytes=measured_bytes)


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

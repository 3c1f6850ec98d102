"""What an estimate says of fp16 that the CPU computes in fp32: findings of the rule about it."""

from memdiag.api.check import Selection, find_waste
from memdiag.ort.session_estimate import SessionEstimate
from memdiag.records.finding import Finding

_RULE = "half-precision-cast"


def half_precision_findings(session: SessionEstimate) -> tuple[Finding, ...]:
    """Return what the rule finds at the sizes of `session`.

    It knows the copies of the level ALL; at lower levels nothing is said.
    """
    if session.options.level != "all":
        return ()
    findings, _ = find_waste(session.ctx, Selection(select=(_RULE,)))
    return findings

"""What rules found, as sentences: where, what it costs, how that is known, what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.finding import Check, Finding
from memdiag.records.profile import Profile
from memdiag.reports.views.text import plain
from memdiag.units import format_duration, format_size

_NEAR = 0.05


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One finding in words, all of it plain text."""

    model: str
    rule: str
    name: str
    message: str
    detail: str
    cost: str
    evidence: str
    is_refuted: bool
    remedies: tuple[str, ...]

    @property
    def facts(self) -> str:
        """Cost, evidence and remedies in one line."""
        remedy = f"remedy: {', '.join(self.remedies)}" if self.remedies else ""
        return " · ".join(part for part in (self.cost, self.evidence, remedy) if part)


def build(finding: Finding) -> FindingView:
    """Return `finding` in words."""
    return FindingView(
        model=plain(finding.model),
        rule=plain(finding.rule),
        name=plain(finding.name),
        message=plain(finding.message),
        detail=plain(finding.detail),
        cost=_cost(finding),
        evidence=_evidence(finding),
        is_refuted=finding.evidence == "refuted",
        remedies=tuple(map(plain, finding.remedies)),
    )


def summary(
    findings: Sequence[Finding],
    *,
    models: int = 1,
    duration_s: float | None = None,
    most_bytes: int | None = None,
) -> str:
    """Return the line that ends a list of findings.

    Findings may be about the same bytes: no more than `most_bytes` are said to be avoidable.
    """
    standing = [one for one in findings if one.evidence != "refuted"]
    noun = "finding" if len(standing) == 1 else "findings"
    parts = [f"{len(standing):,} {noun}" if standing else "no findings"]
    if models != 1:
        parts[0] += f" in {models:,} models"
    avoidable = sum(map(_avoidable, standing))
    if most_bytes is not None:
        avoidable = min(avoidable, max(0, most_bytes))
    if avoidable:
        parts.append(f"up to {format_size(avoidable)} avoidable at steady state")
    if len(findings) > len(standing):
        parts.append(f"{len(findings) - len(standing):,} more refuted by the measurement")
    if duration_s is not None:
        parts.append(f"in {format_duration(duration_s)}")
    return ", ".join(parts)


def profile_summary(profile: Profile) -> str:
    """Return the line that ends the findings of a profile."""
    steady = profile.steady_rss_bytes
    most = None if steady is None else steady - profile.baseline_rss_bytes
    return summary(profile.findings, most_bytes=most)


def check_summary(check: Check) -> str:
    """Return the line that ends the answer of a check."""
    examined = sum(model.error is None for model in check.models)
    failed = len(check.models) - examined
    parts = [f"{failed:,} {'model' if failed == 1 else 'models'} could not be read"]
    if examined or not failed:
        found = summary(check.findings, models=examined, duration_s=check.duration_s)
        parts = [found, *parts] if failed else [found]
    return ", ".join((*parts, f"for onnxruntime {plain(check.onnxruntime)}"))


def _avoidable(finding: Finding) -> int:
    """Return the bytes that are avoidable at steady state, as far as they were measured."""
    is_measured = finding.measured_bytes is not None and finding.bytes and not finding.run_bytes
    return finding.measured_bytes or 0 if is_measured else finding.bytes


def _cost(finding: Finding) -> str:
    parts = []
    if finding.bytes:
        parts.append(f"{format_size(finding.bytes)} steady")
    if finding.peak_bytes > finding.bytes:
        parts.append(f"{format_size(finding.peak_bytes)} at the peak")
    phase = f", in {finding.phase}" if finding.phase and parts else ""
    costs = "costs" if _is_near(finding) else "predicted:"
    return f"{costs} {' and '.join(parts)}{phase}" if parts else ""


def _is_near(finding: Finding) -> bool:
    """Return whether the cost was not measured, or is about what was measured."""
    measured = finding.measured_bytes
    if measured is None or finding.run_bytes or not finding.bytes:
        return True
    return abs(measured - finding.bytes) <= _NEAR * finding.bytes


def _evidence(finding: Finding) -> str:
    if finding.measured_bytes is None:
        return "predicted"
    if finding.run_bytes:
        verb = "refuted" if finding.evidence == "refuted" else "measured"
        return f"{verb}: the first run added {format_size(finding.measured_bytes)}"
    if not finding.bytes and finding.phase == "constant_fold":
        verb = "refuted" if finding.evidence == "refuted" else "measured"
        return f"{verb}: constant folding added {format_size(finding.measured_bytes)} at its peak"
    if finding.evidence == "refuted":
        return (
            "refuted: the X-ray saw none of it"
            if not finding.measured_bytes
            else (f"refuted: the X-ray saw {format_size(finding.measured_bytes)} of it")
        )
    return f"measured: {format_size(finding.measured_bytes)}"

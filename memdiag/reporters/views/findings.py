"""What rules found, as sentences: where, what it costs, how that is known, what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.finding import Check, Finding
from memdiag.reporters.views.text import plain
from memdiag.units import format_duration, format_size


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
    findings: Sequence[Finding], *, models: int = 1, duration_s: float | None = None
) -> str:
    """Return the line that ends a list of findings."""
    standing = [one for one in findings if one.evidence != "refuted"]
    noun = "finding" if len(standing) == 1 else "findings"
    parts = [f"{len(standing):,} {noun}" if standing else "no findings"]
    if models != 1:
        parts[0] += f" in {models:,} models"
    avoidable = sum(one.bytes for one in standing)
    if avoidable:
        parts.append(f"up to {format_size(avoidable)} avoidable at steady state")
    if len(findings) > len(standing):
        parts.append(f"{len(findings) - len(standing):,} more refuted by the measurement")
    if duration_s is not None:
        parts.append(f"in {format_duration(duration_s)}")
    return ", ".join(parts)


def check_summary(check: Check) -> str:
    """Return the line that ends the answer of a check."""
    examined = sum(model.error is None for model in check.models)
    failed = len(check.models) - examined
    parts = [f"{failed:,} {'model' if failed == 1 else 'models'} could not be read"]
    if examined or not failed:
        found = summary(check.findings, models=examined, duration_s=check.duration_s)
        parts = [found, *parts] if failed else [found]
    return ", ".join((*parts, f"for onnxruntime {plain(check.onnxruntime)}"))


def _cost(finding: Finding) -> str:
    parts = []
    if finding.bytes:
        parts.append(f"{format_size(finding.bytes)} steady")
    if finding.peak_bytes > finding.bytes:
        parts.append(f"{format_size(finding.peak_bytes)} at the peak")
    phase = f", in {finding.phase}" if finding.phase and parts else ""
    return f"costs {' and '.join(parts)}{phase}" if parts else ""


def _evidence(finding: Finding) -> str:
    if finding.measured_bytes is None:
        return "predicted"
    if finding.evidence == "refuted":
        return (
            "refuted: the X-ray saw none of it"
            if not finding.measured_bytes
            else (f"refuted: the X-ray saw {format_size(finding.measured_bytes)} of it")
        )
    return f"measured: {format_size(finding.measured_bytes)}"

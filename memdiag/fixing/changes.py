"""The changes that a fix may make: each rule's rewrites, with the findings that they answer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memdiag.records.finding import Finding
from memdiag.rewrites import rewriters_among
from memdiag.rewrites.rewrite import Rewriter


class Change(NamedTuple):
    """A rewrite that is applied to findings of a rule.

    Attributes:
        rewriter: the rewrite with its functions.
        findings: the findings, at least one, all of one rule.
    """

    rewriter: Rewriter
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        """The rewrite's name."""
        return self.rewriter.rewrite.name

    @property
    def rule(self) -> str:
        """The name of the findings' rule."""
        return self.findings[0].name

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the weights concerned, each once."""
        return tuple(dict.fromkeys(name for finding in self.findings for name in finding.weights))

    @property
    def is_exact(self) -> bool:
        """Whether every operation of the model stays as it is, so that outputs are equal."""
        return self.rewriter.rewrite.arithmetic == "same"

    @property
    def saved_bytes(self) -> int:
        """The bytes of peak plus steady memory that the findings expect it to save."""
        return sum(finding.bytes + finding.peak_bytes for finding in self.findings)


def changes_by_rule(findings: Sequence[Finding]) -> Iterator[tuple[Change, ...]]:
    """Yield the changes for each rule in the order of `findings`, preferred changes first.

    A change is for the findings that name its rewrite. Rules without rewrites are left out.
    """
    for rule in dict.fromkeys(finding.name for finding in findings):
        rule_findings = tuple(finding for finding in findings if finding.name == rule)
        remedies = dict.fromkeys(name for finding in rule_findings for name in finding.remedies)
        changes = tuple(
            Change(
                rewriter,
                tuple(
                    finding
                    for finding in rule_findings
                    if rewriter.rewrite.name in finding.remedies
                ),
            )
            for rewriter in rewriters_among(remedies)
        )
        if changes:
            yield changes

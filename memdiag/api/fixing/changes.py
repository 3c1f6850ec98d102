"""The changes that a fix may make: each rule's rewrites, with the findings that they answer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from memdiag.records.finding import Finding
from memdiag.remedies.rewrite import Rewriter
from memdiag.remedies.rewrites import rewriters_for


class Change(NamedTuple):
    """A rewrite, and the findings of one rule that it is to answer, of which there is one."""

    rewriter: Rewriter
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        """The rewrite's name."""
        return self.rewriter.rewrite.name

    @property
    def rule(self) -> str:
        """The name of the rule that asks for it."""
        return self.findings[0].name

    @property
    def weights(self) -> tuple[str, ...]:
        """The names of the weights concerned, each once."""
        return tuple(dict.fromkeys(name for one in self.findings for name in one.weights))

    @property
    def is_exact(self) -> bool:
        """Whether every operation stays as it is."""
        return self.rewriter.rewrite.arithmetic == "same"


def changes_by_rule(findings: Sequence[Finding]) -> Iterator[tuple[Change, ...]]:
    """Yield the changes for each rule in the order of `findings`, the rule's preferred ones first.

    A change is made for the findings that name its rewrite. Rules that no rewrite answers are left
    out.
    """
    for rule in dict.fromkeys(finding.name for finding in findings):
        mine = tuple(finding for finding in findings if finding.name == rule)
        named = list(dict.fromkeys(name for finding in mine for name in finding.remedies))
        changes = [
            Change(rewriter, tuple(one for one in mine if rewriter.rewrite.name in one.remedies))
            for rewriter in rewriters_for(rule)
            if rewriter.rewrite.name in named
        ]
        changes.sort(key=lambda change: _place(change.name, named))
        if changes:
            yield tuple(changes)


def _place(name: str, named: Sequence[str]) -> int:
    return named.index(name) if name in named else len(named)

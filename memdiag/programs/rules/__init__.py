"""The rules for programs: one waste a module.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.rules.rule import Rule, rule_modules


class ProgramDetector(NamedTuple):
    """A rule, the function that detects it, and its documentation in Markdown."""

    rule: Rule
    detect: Callable[[ProgramRun], Iterator[ProgramFinding]]
    documentation: str


@cache
def detectors() -> tuple[ProgramDetector, ...]:
    """Return all detectors, sorted by code."""
    return tuple(ProgramDetector(*module) for module in rule_modules(__name__, __path__))


def program_findings(run: ProgramRun) -> tuple[ProgramFinding, ...]:
    """Return the findings in `run`, those that save most memory first."""
    found = [finding for detector in detectors() for finding in detector.detect(run)]
    return tuple(sorted(found, key=lambda finding: -(finding.bytes or 0)))

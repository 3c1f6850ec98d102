"""The rules for programs: one waste a module.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
`NEEDS_SESSIONS = False` states that X-rays alone are evidence enough: the rule also examines
processes without recorded sessions.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.rules.rule import Rule, rule_modules

MAX_REASON = 200


class ProgramDetector(NamedTuple):
    """A rule, the function that detects it, and its documentation in Markdown."""

    rule: Rule
    detect: Callable[[ProgramRun], Iterator[ProgramFinding]]
    documentation: str

    @property
    def needs_sessions(self) -> bool:
        """Whether the rule examines recorded sessions only."""
        return getattr(sys.modules[self.detect.__module__], "NEEDS_SESSIONS", True)


@cache
def detectors() -> tuple[ProgramDetector, ...]:
    """Return all detectors, sorted by code."""
    return tuple(ProgramDetector(*module) for module in rule_modules(__name__, __path__))


def program_findings(run: ProgramRun) -> tuple[tuple[ProgramFinding, ...], tuple[str, ...]]:
    """Return the findings in `run`, those that save most memory first, and notes."""
    found: list[ProgramFinding] = []
    notes = []
    for detector in detectors():
        try:
            found += detector.detect(run)
        except Exception as error:  # a defect of one rule must not lose the recording
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
            notes.append(
                f"rule {detector.rule.name} failed on this program, which is a defect of memdiag's;"
                f" please report it ({reason})"
            )
    notes += _unchecked(run)
    return tuple(sorted(found, key=lambda finding: -(finding.bytes or 0))), tuple(notes)


def _unchecked(run: ProgramRun) -> Iterator[str]:
    """Yield which rules could not be checked in a process that was started without memdiag."""
    if not run.is_watched or not any(process.onnxruntime for process in run.processes):
        return
    if not run.xrays:
        yield (
            "no rule was checked: what a process does with its memory is known by X-rays (--xray)"
            " only, and the lives of its sessions by memdiag run"
        )
        return
    names = ", ".join(each.rule.name for each in detectors() if each.needs_sessions)
    yield f"rules that need recorded sessions were not checked: {names}; memdiag run checks them"

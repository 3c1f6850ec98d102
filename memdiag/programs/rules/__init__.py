"""The rules for programs: one waste a module.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
A rule with `needs_sessions=False` also examines processes without recorded sessions: X-rays alone
are evidence enough.
"""

from collections.abc import Iterator
from functools import cache

from memdiag.defaults import MAX_REASON
from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.rules.rule import Detector, load_detectors

ProgramDetector = Detector[ProgramRun, ProgramFinding]


@cache
def detectors() -> tuple[ProgramDetector, ...]:
    """Return all detectors, sorted by code."""
    return load_detectors(__name__, __path__)


def program_findings(run: ProgramRun) -> tuple[tuple[ProgramFinding, ...], tuple[str, ...]]:
    """Return the findings in `run`, the largest saving first, and notes."""
    found: list[ProgramFinding] = []
    notes = []
    for detector in detectors():
        try:
            found += detector.detect(run)
        except Exception as error:  # a defect of one rule must not lose the recording
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
            notes.append(
                f"rule {detector.rule.name} failed on this program, which is a defect of memdiag."
                f" Please report it ({reason})"
            )
    notes += _unchecked(run)
    return tuple(sorted(found, key=lambda finding: -(finding.bytes or 0))), tuple(notes)


def _unchecked(run: ProgramRun) -> Iterator[str]:
    """Yield which rules could not be checked in a process that was started without memdiag."""
    if not run.is_watched or not run.xrays:
        return
    names = ", ".join(each.rule.name for each in detectors() if each.rule.needs_sessions)
    yield f"rules that need recorded sessions were not checked: {names}; memdiag run checks them"

"""The rules for programs: one kind of waste per module.

A module of this package with a `RULE` and a function `detect` is a detector; nothing else registers
it. Its docstring is the documentation of the rule: Markdown, whose first line is a sentence.
A rule with `needs_sessions=False` also examines processes without recorded sessions: X-rays alone
are evidence enough.
"""

from collections.abc import Iterator, Sequence
from functools import cache

from memdiag.programs.rules.arena_slack import RULE as SLACK
from memdiag.programs.rules.duplicate_session import RULE as DUPLICATE
from memdiag.programs.rules.malloc_retained import RULE as RETAINED
from memdiag.programs.rules.threads_beyond_cpus import RULE as THREADS
from memdiag.programs.rules.threads_beyond_cpus import callers_slack_bytes
from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.rules.rule import Detector, load_detectors, run_detectors

_MIN_EXPLAINED_SHARE = 0.5
"""Too many callers explain arena slack if the arenas of their sessions have this share of it."""

ProgramDetector = Detector[ProgramRun, ProgramFinding]


@cache
def program_detectors() -> tuple[ProgramDetector, ...]:
    """Return all detectors, sorted by code."""
    return load_detectors(__name__, __path__)


_RETAINED_SHARE, _RETAINED_SHARE_OF_DUPLICATES = 0.75, 0.1
"""Other findings, and findings of duplicate sessions, come before memory that malloc retains if
they save at least this share of it: the creations of sessions leave most of that memory."""


def program_findings(recording: ProgramRun) -> tuple[tuple[ProgramFinding, ...], tuple[str, ...]]:
    """Return the findings in `recording`, the largest saving first, and notes."""
    findings, notes = run_detectors(program_detectors(), recording, "program")
    notes += _unchecked_rule_notes(recording)
    return tuple(
        sorted(findings, key=lambda finding: _finding_order(finding, recording, findings))
    ), tuple(notes)


def _finding_order(
    finding: ProgramFinding, recording: ProgramRun, findings: Sequence[ProgramFinding]
) -> tuple[int, bool]:
    """Return a key that sorts findings by their saving, and a cause of slack before the slack."""
    slack = max((other.bytes or 0 for other in findings if other.name == SLACK.name), default=0)
    if finding.name == THREADS.name:
        callers_slack = callers_slack_bytes(recording, finding.sessions)
        if callers_slack >= _MIN_EXPLAINED_SHARE * slack:
            return -slack, False
    size = finding.bytes or 0
    if finding.name == RETAINED.name:
        duplicates = max(
            (other.bytes or 0 for other in findings if other.name == DUPLICATE.name), default=0
        )
        limits_size = duplicates >= _RETAINED_SHARE_OF_DUPLICATES * size
        size = round(_RETAINED_SHARE * size)
        if limits_size:
            size = min(size, duplicates - 1)
    return -size, True


def _unchecked_rule_notes(recording: ProgramRun) -> Iterator[str]:
    """Yield a note on the rules that cannot be checked in a process started without memdiag."""
    if not recording.is_watched or not recording.xrays:
        return
    names = ", ".join(
        detector.rule.name for detector in program_detectors() if detector.rule.needs_sessions
    )
    yield f"rules that need recorded sessions were not checked: {names}; memdiag run checks them"

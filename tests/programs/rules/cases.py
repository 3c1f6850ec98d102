"""Cases of a rule: recordings in which it finds something, and near misses."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from memdiag.records.run import ProgramRun
from tests.programs.rules.records import findings
from tests.snapshots import assert_approved


class Case(NamedTuple):
    """A recording and what a rule finds in it.

    Attributes:
        run: the recording.
        sessions: the sessions of the only finding; None if nothing must be found.
        nbytes: the bytes of the finding.
        says: words of its message or remedy that depend on what is special about the recording.
    """

    run: ProgramRun
    sessions: tuple[int, ...] | None = None
    nbytes: int | None = None
    says: str = ""


def assert_case(rule: str, case: Case) -> None:
    """Assert that the rule called `rule` finds what `case` states."""
    detected = findings(rule, case.run)
    stated = [] if case.sessions is None else [(case.sessions, case.nbytes)]
    assert [(finding.sessions, finding.bytes) for finding in detected] == stated
    for finding in detected:
        assert case.says in f"{finding.message} {finding.remedy}"


def assert_texts_approved(rule: str, cases: Mapping[str, Case]) -> None:
    """Compare the messages and remedies of all findings with the approved file of the rule.

    A remedy is left out if it is that of the finding before.
    """
    lines: list[str] = []
    remedy = ""
    for name, case in cases.items():
        for finding in findings(rule, case.run):
            lines += [name, *indented(finding.message)]
            lines += indented(finding.remedy) if finding.remedy != remedy else []
            remedy = finding.remedy
    assert_approved("\n".join(lines), Path(__file__).parent / "approved" / f"{rule}.txt")


def indented(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")

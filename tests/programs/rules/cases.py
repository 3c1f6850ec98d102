"""Cases of a rule: recordings in which it finds something, and near misses."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from memdiag.records.run import ProgramFinding, ProgramRun
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


def assert_findings(rule: str, cases: Mapping[str, Case]) -> None:
    """Assert that the rule called `rule` finds what `cases` state, and says what was approved.

    The approved file of the rule has the message of each finding, and its remedy if it differs from
    that of the finding before.
    """
    wrong: dict[str, list[ProgramFinding]] = {}
    lines: list[str] = []
    remedy = ""
    for name, case in cases.items():
        detected = findings(rule, case.run)
        stated = [] if case.sessions is None else [(case.sessions, case.nbytes)]
        is_said = all(case.says in f"{each.message} {each.remedy}" for each in detected)
        if [(finding.sessions, finding.bytes) for finding in detected] != stated or not is_said:
            wrong[name] = detected
        for finding in detected:
            lines += [name, *indented(finding.message)]
            lines += indented(finding.remedy) if finding.remedy != remedy else []
            remedy = finding.remedy
    assert wrong == {}
    assert_approved("\n".join(lines), Path(__file__).parent / "approved" / f"{rule}.txt")


def indented(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")

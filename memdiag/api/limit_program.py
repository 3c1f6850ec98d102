"""The smallest memory limit under which a program works, found with real control groups."""

import shlex
import shutil
import time
from collections.abc import Sequence

from memdiag.api.arguments import OnProgress, deadline_after, ignore_progress, program_advice
from memdiag.api.limit_search import (
    LimitSearch,
    check_limits,
    longest_trial_s,
    require_completed_trial,
)
from memdiag.deploy.limited_group import GroupRemoval, NoGroupError, parent_group
from memdiag.deploy.program_trial import ProgramTrials
from memdiag.errors import UsageError
from memdiag.records.limit import MemoryLimit


def limit_program(
    command: Sequence[str],
    *,
    duration_s: float | None = None,
    at_bytes: Sequence[int] = (),
    time_limit_s: float | None = None,
    on_progress: OnProgress = ignore_progress,
) -> MemoryLimit:
    """Return the smallest memory limit under which `command` works, and suggest one.

    The program is started again for each trial, without input; its output is discarded. It works if
    it ends with exit code 0 and none of its processes was killed at the limit.

    Args:
        command: the program and its arguments.
        duration_s: seconds after which a program that does not end, such as a server, has worked
            and is ended; None to wait for its end.
        at_bytes: limits in bytes; one trial is made under each of them, instead of a search.
        time_limit_s: seconds after which the search ends with the best result so far.
        on_progress: called with a few words about each trial.

    Raises:
        UsageError: there is no such program, or a limit is not greater than 0.
        NoGroupError: no control group can be created; the message states what to do.
        MeasurementError: the program does not work even without a limit.
        KeyboardInterrupt: Ctrl-C before the first trial had ended.
    """
    if not command:
        raise UsageError("limit: there is no program after --. Give the program and its arguments.")
    if shutil.which(command[0]) is None:
        raise UsageError(f"limit: {command[0]} is not a program. {program_advice(command[0])}")
    deadline = deadline_after(time_limit_s)
    check_limits(at_bytes)
    started = time.monotonic()
    subject = shlex.join(command)
    try:
        parent = parent_group()
    except NoGroupError as error:
        raise NoGroupError(
            f"{error} Without one, memdiag run -- {subject} measures the peak of the program."
        ) from error
    with GroupRemoval(parent):
        trials = ProgramTrials(
            parent=parent,
            command=command,
            duration_s=duration_s,
            timeout_s=longest_trial_s(time_limit_s) + (duration_s or 0.0),
        )
        on_progress("without a limit")
        trial_started = time.monotonic()
        first_trial = trials.measure(None)
        first_trial_s = time.monotonic() - trial_started
        require_completed_trial(first_trial, subject, parent)
        search = LimitSearch(trials, first_trial, first_trial_s)
        search.run(deadline, on_progress, at_bytes)
    notes = []
    if trials.escaped is not None:
        notes.append(
            f"process {trials.escaped} of the program moved to another control group: what it and"
            " its children use there was neither limited nor counted"
        )
    return search.record(
        parent,
        subject=subject,
        kind="program",
        notes=notes,
        duration_s=time.monotonic() - started,
    )

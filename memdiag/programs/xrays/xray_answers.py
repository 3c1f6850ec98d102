"""X-rays that ``memdiag xray FOLDER`` asks for, and the answer."""

import os
from collections.abc import Callable

from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.xrays.process_xrays import ProcessXrays
from memdiag.programs.xrays.xray_requests import XrayAnswer, XrayedProcess, XrayedSession
from memdiag.records.run import ProcessXray


def answer_request(
    program: RecordedProgram, xrays: ProcessXrays, answer: Callable[[XrayAnswer], None]
) -> None:
    """Take an X-ray of each process with sessions, and call `answer` when all are there."""
    first, first_failure = len(program.xrays), len(xrays.failures)

    def when_done(count: int) -> None:
        taken = [xray for xray in program.xrays[first:] if xray.reason == "request"]
        answer(
            XrayAnswer(
                asked=count,
                processes=tuple(_xrayed(program, xray) for xray in taken),
                failures=tuple(xrays.failures[first_failure:]),
            )
        )

    xrays.start_all("request", when_done)


def _xrayed(program: RecordedProgram, xray: ProcessXray) -> XrayedProcess:
    process = next(each for each in reversed(program.processes) if each.pid == xray.pid)
    return XrayedProcess(
        pid=xray.pid,
        command=process.info.command,
        owners=xray.attribution.owners,
        sessions=tuple(
            XrayedSession(
                number=session.number,
                model=path and os.path.basename(path),
                memory=session.memory,
            )
            for session in process.live_sessions
            for path in [session.description.model.path]
            if session.memory is not None
        ),
    )

"""Handling of each event of the hook by a recording (`events` lists them)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from memdiag.errors import defect_reason
from memdiag.programs import events
from memdiag.programs.event_socket import HookConnection, peer_process_id
from memdiag.programs.process_sampling import ProcessSampling
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.recorded_session import RecordedSession
from memdiag.programs.run_pause import RunPause
from memdiag.programs.stderr_pipes import StderrPipes
from memdiag.programs.xrays.end_xrays import EndXrays
from memdiag.programs.xrays.process_xrays import ProcessXrays
from memdiag.programs.xrays.xray_requests import XrayAnswer, XrayedProcess, XrayedSession
from memdiag.records.run import HighWaterRun, ProcessXray
from memdiag.runner.observer import ProcessGone


class EventHandling:
    """Handles the events of processes: changes the program, and answers the senders.

    Args:
        program: the program.
        sampling: finds the process of a connection.
        pipes: the pipes of standard error.
        xrays: takes X-rays.
        end_xrays: takes X-rays of processes that end; None for none.
        run_pause: reads the memory of a process while it waits between two runs.
    """

    def __init__(
        self,
        program: RecordedProgram,
        *,
        sampling: ProcessSampling,
        pipes: StderrPipes,
        xrays: ProcessXrays,
        end_xrays: EndXrays | None,
        run_pause: RunPause | None,
    ) -> None:
        self._program = program
        self._sampling = sampling
        self._pipes = pipes
        self._xrays = xrays
        self._end_xrays = end_xrays
        self._run_pause = run_pause

    def handle(self, connection: HookConnection, fields: dict[str, Any]) -> bool:
        """Handle the event with these fields; return False if the sender cannot be the hook."""
        if connection.process is None:
            if fields["event"] == "xray":
                _answer_request(
                    self._program,
                    self._xrays,
                    lambda answer: connection.send_line(msgspec.json.encode(answer)),
                )
                return True
            pid = peer_process_id(connection) or fields.get("pid", 0)
            process = self._sampling.watch(pid) if isinstance(pid, int) else None
            if process is None:
                return False
            connection.process = process
            process.connections += 1
        process = connection.process
        self._pipes.drain(process)
        name, question_number = fields["event"], fields.get("asks")
        is_answered = is_lost = False
        event: events.HookEvent | None = None

        def answer() -> None:
            wait_s = process.reading_wait_s if isinstance(event, events.BetweenRuns) else None
            connection.answer(question_number, None if is_lost else process.peak_rss_bytes, wait_s)

        try:
            event = events.hook_event(fields)
            is_answered = self._handle_event(event, process, connection, answer)
        except Exception as error:  # one event must not end the recording
            is_lost = True
            self._program.notes.append(
                f"process {process.pid}: the event {name!r} was lost: {defect_reason(error)}"
            )
        if question_number and not is_answered:
            answer()
        if name == "created":  # the process need not wait for this
            process.read_cpus_allowed()
        return True

    def _handle_event(
        self,
        event: events.HookEvent,
        process: RecordedProcess,
        connection: HookConnection,
        answer: Callable[[], None],
    ) -> bool:
        """Handle an event of `process`; return whether `answer` was called, or will be later."""
        now_s = self._program.now_s()
        if isinstance(event, events.SessionEvent) and event.session in process.inherited:
            process.inherited[event.session].handle(event, now_s)
            return False
        with suppress(ProcessGone):
            match event:
                case events.Importing():
                    process.has_hook = True
                case events.Hello():
                    if process.connections == 1:
                        process.forget_sessions(now_s)
                    process.introduce(event, self._first_process(event.forked_from))
                case events.HookFailed():
                    self._program.notes.append(
                        f"process {process.pid}: sessions may be missing: {event.message}"
                    )
                case events.Create():
                    if connection.descriptors:
                        self._pipes.open(process, connection.pass_descriptors())
                    before_creation = process.before_creation(now_s)
                    answer()  # the rest takes longer
                    sessions = self._program.sessions
                    sessions.append(
                        RecordedSession(len(sessions) + 1, process, now_s, event, before_creation)
                    )
                    return True
                case events.SessionEvent():
                    self._handle_session_event(event, process, now_s)
                case events.BetweenRuns():
                    if self._run_pause is not None:
                        process.add_values(event)
                        process.reading_wait_s = self._run_pause.read(process, now_s, event)
                case events.StderrFiltered():
                    self._pipes.open(process, connection.pass_descriptors())
                case events.StderrRestored():
                    pass  # what was in the pipe has been written before any event
                case events.Exit():
                    process.has_said_exit = True
                    process.exit_rss_bytes = process.sample(now_s)
                    if self._end_xrays is not None and process.has_sessions:
                        return self._end_xrays.start(
                            process, answer, process_ends=event.process_ends
                        )
        return False

    def _first_process(self, pid: int | None) -> RecordedProcess | None:
        """Return the first process with the id `pid`; None if there is none."""
        return next((process for process in self._program.processes if process.pid == pid), None)

    def _handle_session_event(
        self, event: events.SessionEvent, process: RecordedProcess, now_s: float
    ) -> None:
        session = process.session(event)
        match event:
            case events.Created():
                session.finish_creation(now_s, event)
            case events.FirstRun():
                session.start_first_run(now_s)
            case events.FirstRunDone():
                session.finish_first_run(now_s)
            case events.RunCounts():
                session.add_runs(now_s, event)
            case events.RaisedPeak():
                self._add_peak(session, event, now_s)
            case events.Released():
                session.release(now_s)

    def _add_peak(self, session: RecordedSession, event: events.RaisedPeak, now_s: float) -> None:
        self._program.peaks.append(
            HighWaterRun(
                session=session.number,
                t_s=round(now_s, 6),
                peak_rss_bytes=event.peak_rss_bytes,
                shapes=event.shapes,
                latency_s=event.latency_s,
            )
        )
        session.process.peak_rss_bytes = max(session.process.peak_rss_bytes, event.peak_rss_bytes)


def _answer_request(
    program: RecordedProgram, xrays: ProcessXrays, answer: Callable[[XrayAnswer], None]
) -> None:
    """Take an X-ray of each process with sessions, and call `answer` when all are complete."""
    first_xray, first_failure = len(program.xrays), len(xrays.failures)

    def when_done(count: int) -> None:
        requested_xrays = [xray for xray in program.xrays[first_xray:] if xray.reason == "request"]
        answer(
            XrayAnswer(
                asked=count,
                processes=tuple(_xrayed_process(program, xray) for xray in requested_xrays),
                failures=tuple(xrays.failures[first_failure:]),
            )
        )

    xrays.start_all("request", when_done)


def _xrayed_process(program: RecordedProgram, xray: ProcessXray) -> XrayedProcess:
    process = next(
        program_process
        for program_process in reversed(program.processes)
        if program_process.pid == xray.pid
    )
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

"""``--memdiag-sessions``: a recording of the test run, and its sessions in the terminal summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import groupby
from typing import Any, TypedDict

import pytest

from memdiag.api.recording import Recording
from memdiag.errors import MemdiagError
from memdiag.records.run import ProgramRun, ProgramSession
from memdiag.reports.run.headline import finding_texts
from memdiag.reports.run.names import created_text, model_names
from memdiag.reports.run.peaks import session_rise_bytes
from memdiag.reports.text import plain
from memdiag.runner.child import RECORDING_ADDRESS
from memdiag.units import counted, format_size

OUTSIDE_TESTS = "outside tests"
_MAX_SUMMARY_SESSIONS = 40
_MAX_SUMMARY_FINDINGS = 10
_WORKER_OUTPUT_NAME = "memdiag_sessions"


class _SessionRow(TypedDict):
    """One session in the summary."""

    number: str
    test: str
    model: str
    created_at: str
    rise_bytes: int
    runs: int
    end: str


class _TestRunPart(TypedDict):
    """The recording of one process that runs tests, as plain values for another process."""

    sessions: list[_SessionRow]
    findings: list[list[str]]
    notes: list[str]


@dataclass
class _RunRecording:
    """The recording of this process.

    Attributes:
        tests: the name of each test, and when it started and ended in seconds since the start of
            the recording.
    """

    recording: Recording
    tests: list[tuple[str, float, float]] = field(default_factory=list)

    def test_at(self, t_s: float) -> str:
        """Return the test that was running at `t_s` seconds."""
        return next((name for name, start, end in self.tests if start <= t_s <= end), OUTSIDE_TESTS)


_RECORDING_STASH_KEY = pytest.StashKey[_RunRecording]()
_PARTS_STASH_KEY = pytest.StashKey[list[_TestRunPart]]()


def recording_of_run(config: pytest.Config) -> Recording | None:
    """Return the recording of ``--memdiag-sessions`` in this process; None without one."""
    run_recording = config.stash.get(_RECORDING_STASH_KEY, None)
    return None if run_recording is None else run_recording.recording


def start_recording(config: pytest.Config) -> None:
    """Start the recording of this process, if it runs tests.

    Raises:
        pytest.UsageError: it cannot be recorded.
    """
    config.stash[_PARTS_STASH_KEY] = []
    if RECORDING_ADDRESS in os.environ:
        raise pytest.UsageError(
            "--memdiag-sessions: this test run is being recorded already. Leave the flag or"
            " memdiag run out."
        )
    if config.pluginmanager.hasplugin("dsession"):
        return  # the workers of pytest-xdist run the tests
    recording = Recording(xray=False)
    try:
        recording.__enter__()
    except MemdiagError as error:
        raise pytest.UsageError(f"--memdiag-sessions: {error}") from None
    config.stash[_RECORDING_STASH_KEY] = _RunRecording(recording)


@contextmanager
def timed_test(item: pytest.Item) -> Iterator[None]:
    """Store when the test `item` ran."""
    run_recording = item.config.stash.get(_RECORDING_STASH_KEY, None)
    if run_recording is None:
        yield
        return
    start_s = run_recording.recording.now_s()
    # While it runs, it has no end yet.
    run_recording.tests.append((item.nodeid, start_s, float("inf")))
    try:
        yield
    finally:
        run_recording.tests[-1] = (item.nodeid, start_s, run_recording.recording.now_s())


def finish_recording(config: pytest.Config) -> None:
    """End the recording of this process; a worker sends it to its controller."""
    run_recording = config.stash.get(_RECORDING_STASH_KEY, None)
    if run_recording is None:
        return
    del config.stash[_RECORDING_STASH_KEY]
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    try:
        run = run_recording.recording.stop()
    except MemdiagError as error:
        part = _TestRunPart(
            sessions=[], findings=[], notes=[f"the sessions were not recorded: {error}"]
        )
    else:
        part = _test_run_part(run, run_recording, worker.get("workerid", ""))
    if worker:
        output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
        output[_WORKER_OUTPUT_NAME] = part
    else:
        config.stash[_PARTS_STASH_KEY].append(part)


def add_worker_recording(config: pytest.Config, node: Any) -> None:
    """Add the recording of `node`, a worker of pytest-xdist that has ended."""
    part = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT_NAME)
    if part is None:
        note = f"{node.gateway.id}: its sessions are missing, because it ended too early"
        part = _TestRunPart(sessions=[], findings=[], notes=[note])
    config.stash[_PARTS_STASH_KEY].append(part)


def _test_run_part(
    recording: ProgramRun, run_recording: _RunRecording, worker: str
) -> _TestRunPart:
    models = model_names(recording)
    label = f"{worker} " if worker else ""
    heading = f"{worker}: " if worker else ""
    return _TestRunPart(
        sessions=[
            _SessionRow(
                number=f"{label}{session.number}",
                test=plain(run_recording.test_at(session.created_s)),
                model=models[session.model_key],
                created_at=created_text(session),
                rise_bytes=session_rise_bytes(session),
                runs=session.run_count,
                end=_session_end_text(session),
            )
            for session in recording.sessions
        ],
        findings=[
            [f"{heading}{message}", remedy]
            for message, remedy in map(finding_texts, recording.findings)
        ],
        notes=[f"{heading}note: {plain(note)}" for note in recording.notes],
    )


def _session_end_text(session: ProgramSession) -> str:
    if session.error is not None:
        return "failed"
    return "alive at the end" if session.released_s is None else "released"


def write_session_summary(terminal: pytest.TerminalReporter) -> None:
    """Write the sessions of all processes that ran tests."""
    parts = terminal.config.stash.get(_PARTS_STASH_KEY, [])
    rows = [row for part in parts for row in part["sessions"]]
    notes = [note for part in parts for note in part["notes"]]
    if not rows and not notes:
        terminal.write_line(f"memdiag: {_no_session_text()}")
        return
    terminal.section("onnxruntime sessions of the tests (memdiag)")
    findings = [finding for part in parts for finding in part["findings"]]
    for line in (*_session_lines(rows), *_finding_lines(findings), *notes):
        terminal.write_line(line)


def _no_session_text() -> str:
    with suppress(ValueError, ImportError):  # a test has replaced it
        if find_spec("onnxruntime") is None:
            return "no session was created; onnxruntime is not installed"
    return "no onnxruntime session was created"


def _session_lines(rows: Sequence[_SessionRow]) -> Iterator[str]:
    """Yield a line for each test, and below it a line for each of its sessions."""
    if not rows:
        yield _no_session_text()
        return
    yield (
        f"{counted(len(rows), 'session')}; + is the growth of the process by creation and first run"
    )
    rows_by_size = sorted(rows, key=lambda row: -row["rise_bytes"])
    largest_rows = rows_by_size[:_MAX_SUMMARY_SESSIONS]
    listed_rows = [row for row in rows if row in largest_rows]
    for test, rows_of_test in groupby(listed_rows, key=lambda row: row["test"]):
        yield test
        yield from _aligned_session_lines(
            [_session_cells(row) for row in rows_of_test], listed_rows
        )
    omitted_rows = rows_by_size[_MAX_SUMMARY_SESSIONS:]
    if omitted_rows:
        yield (
            f"and {counted(len(omitted_rows), 'more session')} of at most"
            f" +{format_size(omitted_rows[0]['rise_bytes'])}"
        )


def _session_cells(row: _SessionRow) -> tuple[str, ...]:
    return (
        row["number"],
        row["model"],
        row["created_at"],
        f"+{format_size(row['rise_bytes'])}",
        counted(row["runs"], "run"),
        row["end"],
    )


def _aligned_session_lines(
    lines: Sequence[tuple[str, ...]], rows: Sequence[_SessionRow]
) -> Iterator[str]:
    """Yield `lines` with columns as wide as the columns of all `rows`."""
    widths = [max(map(len, column)) for column in zip(*map(_session_cells, rows), strict=True)]
    for number, model, place, rise, runs, end in lines:
        yield (
            f"  {number:>{widths[0]}}  {model:<{widths[1]}}  {place:<{widths[2]}}"
            f"  {rise:>{widths[3]}}  {runs:>{widths[4]}}  {end}"
        )


def _finding_lines(findings: Sequence[Sequence[str]]) -> Iterator[str]:
    for message, remedy in findings[:_MAX_SUMMARY_FINDINGS]:
        yield f"- {message}"
        if remedy:
            yield f"  → {remedy}"
    omitted_count = len(findings) - _MAX_SUMMARY_FINDINGS
    if omitted_count > 0:
        yield f"and {counted(omitted_count, 'more finding')}"

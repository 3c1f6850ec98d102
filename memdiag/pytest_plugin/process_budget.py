"""The marker ``memory_budget`` without a model: limits of the test function itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

import pytest

from memdiag.api.recording import Recording
from memdiag.budgets.parsing import parse_sizes
from memdiag.errors import MemdiagError, UsageError
from memdiag.programs.recording_part import PartSession, RecordingPart
from memdiag.programs.session_facts import sharing_advice
from memdiag.pytest_plugin import BUDGET_MARKER
from memdiag.pytest_plugin.sessions import recording_of_run
from memdiag.reports.run.names import number_ranges_text as numbers_text
from memdiag.reports.run.names import shapes_text
from memdiag.reports.text import plain
from memdiag.runner.child import RECORDING_ADDRESS
from memdiag.units import counted, format_limit, format_size

TEST_LIMITS = ("sessions", "tree_peak")
_MAX_LISTED_SESSIONS = 20


@dataclass(frozen=True, kw_only=True)
class ProcessBudget:
    """The limits of a test function.

    Attributes:
        sessions: the number of sessions that it may create; None for any number.
        tree_peak_bytes: the memory that the resident sets of its process and its children may take
            together; None for any size.
    """

    sessions: int | None
    tree_peak_bytes: int | None


def process_budget(item: pytest.Item) -> ProcessBudget | None:
    """Return the limits of the markers of `item` without a model; None if there is no such marker.

    The limit of the closest marker has priority.

    Raises:
        UsageError: an argument is not valid, or the limits cannot be checked here.
    """
    limits: dict[str, int] = {}
    for mark in item.iter_markers(BUDGET_MARKER):
        if not mark.args:
            limits = {**_marker_limits(mark), **limits}
    if not limits:
        return None
    if RECORDING_ADDRESS in os.environ and recording_of_run(item.config) is None:
        raise UsageError(
            f"{BUDGET_MARKER}({', '.join(f'{name}=…' for name in limits)}) needs a recording of its"
            " own. Start pytest without memdiag run."
        )
    return ProcessBudget(sessions=limits.get("sessions"), tree_peak_bytes=limits.get("tree_peak"))


@contextmanager
def judged_test_block(item: pytest.Item) -> Iterator[None]:
    """Record the block, and fail `item` if the block exceeds its budget.

    A block that raises is not judged.
    """
    budget = process_budget(item)
    if budget is None:
        yield
        return
    part = None
    run_recording = recording_of_run(item.config)
    recording = run_recording or Recording(xray=False)
    try:
        if run_recording is None:
            recording.__enter__()
        recording.next_part()
    except MemdiagError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield
        part = _next_recording_part(recording)
    finally:
        if run_recording is None:
            with suppress(MemdiagError):  # the part is all that is needed
                recording.stop()
    _judge_recording_part(item, budget, part)


def _next_recording_part(recording: Recording) -> RecordingPart:
    try:
        return recording.next_part()
    except MemdiagError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _marker_limits(mark: pytest.Mark) -> dict[str, int]:
    """Return the limits of `mark`, a count and a size in bytes.

    Raises:
        UsageError: a name or a value is not valid.
    """
    unknown_names = [name for name in mark.kwargs if name not in TEST_LIMITS]
    if not mark.kwargs:
        raise UsageError(
            f'{BUDGET_MARKER} needs the path of one model, as {BUDGET_MARKER}("model.onnx", …), or'
            f' limits of the test itself, as {BUDGET_MARKER}(sessions=3, tree_peak="2 GB").'
        )
    if unknown_names:
        raise UsageError(
            f"{BUDGET_MARKER}: {unknown_names[0]!r} is not a limit of the test itself. Use"
            f" {' and '.join(TEST_LIMITS)}. Limits of a model need its path, in a marker of its"
            f' own: {BUDGET_MARKER}("model.onnx", peak="1 GB").'
        )
    limits = dict(mark.kwargs)
    sessions = limits.pop("sessions", 0)
    if isinstance(sessions, bool) or not isinstance(sessions, int) or sessions < 0:
        raise UsageError(
            f"{BUDGET_MARKER}: sessions must be a whole number from 0, not {sessions!r}."
        )
    sizes = parse_sizes(limits, ("tree_peak",), where=BUDGET_MARKER)
    return {**sizes, "sessions": sessions} if "sessions" in mark.kwargs else sizes


def _judge_recording_part(item: pytest.Item, budget: ProcessBudget, part: RecordingPart) -> None:
    count, peak = len(part.sessions), part.peak_rss_bytes
    item.user_properties.append(("memdiag.sessions", count))
    item.user_properties.append(("memdiag.tree_peak", peak))
    breaches = []
    if budget.sessions is not None and count > budget.sessions:
        breaches.append(
            f"created {counted(count, 'session')}, {count - budget.sessions} over its budget of"
            f" {budget.sessions}"
        )
    limit = budget.tree_peak_bytes
    if limit is not None and peak > limit:
        sizes = [format_size(peak), format_limit(limit)]
        if sizes[0] == format_size(limit):  # rounded, both sizes look the same
            sizes = [f"{size:,} B" for size in (peak, limit)]
        breaches.append(
            f"the test process and its children took {sizes[0]} together,"
            f" {format_size(peak - limit)} over the tree_peak of {sizes[1]}"
        )
    if breaches:
        lines = [
            f"memory budget: {item.nodeid}: {'; '.join(breaches)}",
            *_created_session_lines(part.sessions, item.path),
            *(_peak_activity_lines(part) if limit is not None and peak > limit else ()),
            *_sharing_advice_lines(
                part.sessions, has_too_many=budget.sessions is not None and count > budget.sessions
            ),
        ]
        pytest.fail("\n  ".join(lines), pytrace=False)


def _created_session_lines(sessions: Sequence[PartSession], test_file: Path) -> Iterator[str]:
    if not sessions:
        yield "no session was created in the test"
    for number, session in enumerate(sessions[:_MAX_LISTED_SESSIONS], 1):
        process_clause = "" if session.pid == os.getpid() else f", in process {session.pid}"
        creation_place = f"{plain(session.created_at)}{_test_line_clause(session, test_file)}"
        yield (
            f"session {number}: {_loaded_model_name(session)}, "
            f"created at {creation_place}{process_clause}"
        )
    omitted_count = len(sessions) - _MAX_LISTED_SESSIONS
    if omitted_count > 0:
        yield f"and {counted(omitted_count, 'more session')}"


def _test_line_clause(session: PartSession, test_file: Path) -> str:
    """Return the line of the test that led to the creation; empty if it is the creating line."""
    test_caller = next(
        (caller for caller in session.callers if Path(caller.file) == test_file), None
    )
    if test_caller is None or test_caller is session.callers[0]:
        return ""
    return f", called from {plain(test_file.name)}:{test_caller.line}"


def _peak_activity_lines(part: RecordingPart) -> Iterator[str]:
    """Yield which creation or run took the memory at the peak, if it is known."""
    number_in_test = {session.number: number for number, session in enumerate(part.sessions, 1)}
    active_numbers = [
        number_in_test[number] for number in part.peak_sessions if number in number_in_test
    ]
    run = part.peak_run
    if active_numbers:
        plural = "s" if len(active_numbers) > 1 else ""
        numbers = numbers_text(active_numbers)
        yield f"at the peak: creation or first run of session{plural} {numbers}"
    elif run is not None:
        session = number_in_test.get(run.session)
        name = f"session {session}" if session else "a session from before the test"
        yield (
            f"a run of {name} with {shapes_text(run.shapes)} raised the memory of its process to"
            f" {format_size(run.peak_rss_bytes)}"
        )


def _sharing_advice_lines(sessions: Sequence[PartSession], *, has_too_many: bool) -> Iterator[str]:
    """Yield the models that a process loaded several times, and what to do about it."""
    numbers_by_model: dict[tuple[int, str], list[int]] = {}
    for number, session in enumerate(sessions, 1):
        model_key = (session.pid, session.model or _loaded_model_name(session))
        numbers_by_model.setdefault(model_key, []).append(number)
    repeated_numbers = [numbers for numbers in numbers_by_model.values() if len(numbers) > 1]
    for numbers in repeated_numbers[:_MAX_LISTED_SESSIONS]:
        model = _loaded_model_name(sessions[numbers[0] - 1])
        yield f"{model} was loaded {len(numbers)} times (sessions {numbers_text(numbers)})"
    if repeated_numbers:
        repeated_sessions = [
            sessions[number - 1] for numbers in repeated_numbers for number in numbers
        ]
        yield f'→ {sharing_advice(repeated_sessions)} In tests, use a fixture with scope="session".'
    elif has_too_many:
        count = len(sessions)
        yield (
            f"→ No model was loaded twice in a process. If the code needs"
            f" {counted(count, 'session')}, set sessions={count}; if not, leave out the calls that"
            " create the others."
        )


def _loaded_model_name(session: PartSession) -> str:
    if session.model is not None:
        return plain(PurePath(session.model).name)
    size = "" if session.model_bytes is None else f" of {format_size(session.model_bytes)}"
    return f"model{size} from bytes"

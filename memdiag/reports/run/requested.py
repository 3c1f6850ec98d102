"""X-rays that a recording took on request: owners by process and session, as lines."""

from memdiag.programs.xrays.xray_requests import XrayAnswer, XrayedProcess, XrayedSession
from memdiag.reports.run.names import command_text
from memdiag.reports.text import plain, shortened
from memdiag.reports.xray.memory_owners import owner_sizes
from memdiag.units import counted, format_size

_MAX_ANSWERED_OWNERS = 5
_MAX_ANSWERED_SESSIONS = 10
_MAX_PROCESS_COMMAND = 60


def xray_answer_lines(answer: XrayAnswer) -> list[str]:
    """Return the lines of the answer, the number of processes first."""
    process_count = counted(len(answer.processes), "process", "processes")
    if not answer.asked:
        return ["No process of the recording uses onnxruntime now, so no X-ray was taken."]
    asked_text = "" if len(answer.processes) == answer.asked else f" of {answer.asked}"
    lines = [f"X-rays of {process_count}{asked_text} were added to the recording."]
    for process in answer.processes:
        lines += _xrayed_process_lines(process)
    return [*lines, *(f"note: {plain(failure)}" for failure in answer.failures)]


def _xrayed_process_lines(process: XrayedProcess) -> list[str]:
    owners = owner_sizes(process.owners)
    parts = [f"{label} {format_size(size)}" for label, size in owners[:_MAX_ANSWERED_OWNERS]]
    other_bytes = sum(size for _, size in owners[_MAX_ANSWERED_OWNERS:])
    if other_bytes:
        parts.append(f"other {format_size(other_bytes)}")
    name = shortened(command_text(process.command), _MAX_PROCESS_COMMAND)
    resident = format_size(sum(size for _, size in owners))
    lines = [f"process {process.pid} ({name}), {resident}: {', '.join(parts)}"]
    lines += map(_xrayed_session_line, process.sessions[:_MAX_ANSWERED_SESSIONS])
    omitted_sessions = len(process.sessions) - _MAX_ANSWERED_SESSIONS
    return (
        [*lines, f"  {counted(omitted_sessions, 'more session')}"]
        if omitted_sessions > 0
        else lines
    )


def _xrayed_session_line(session: XrayedSession) -> str:
    memory = session.memory
    parts = []
    if memory.weight_bytes is not None:
        sharing_clause = f", shared by {memory.sharing} sessions" if memory.sharing > 1 else ""
        parts.append(f"weight copies {format_size(memory.weight_bytes)}{sharing_clause}")
    if memory.resident_used_bytes is not None and memory.resident_slack_bytes is not None:
        parts.append(
            f"arena {format_size(memory.resident_used_bytes)} in use,"
            f" {format_size(memory.resident_slack_bytes)} slack"
        )
    model = plain(session.model) if session.model else "model from bytes"
    return f"  session {session.number} ({model}): {'; '.join(parts) or 'nothing was identified'}"

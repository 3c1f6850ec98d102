"""The sessions of a program as its rules compare them: model, creation, lifetime and memory."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from pathlib import PurePath
from typing import TypeVar

from memdiag.programs.recording_part import PartSession
from memdiag.records.phases import RUN_PHASES
from memdiag.records.run import ProcessXray, ProgramRun, ProgramSession
from memdiag.session_options import SHRINKAGE_OPTION
from memdiag.units import counted, format_size, some_of

K = TypeVar("K", bound=Hashable)

MIN_TOGETHER_S = 1.0
"""Seconds that two sessions must be alive together: a program that replaces a session has the old
and the new one for a moment."""

SHRINKAGE_CODE = (
    f'ro = onnxruntime.RunOptions(); ro.add_run_config_entry("{SHRINKAGE_OPTION}",'
    ' "cpu:0"); session.run(None, feeds, ro)'
)
"""A run at whose end the arena returns free regions to the system."""


def created_sessions(recording: ProgramRun) -> list[ProgramSession]:
    """Return the sessions whose creation succeeded, in the order of their creation."""
    return sorted(
        (session for session in recording.sessions if session.providers),
        key=lambda session: session.created_s,
    )


def sessions_by_key(
    sessions: Iterable[ProgramSession], key: Callable[[ProgramSession], K]
) -> list[list[ProgramSession]]:
    """Return the sessions with the same key together."""
    groups: defaultdict[K, list[ProgramSession]] = defaultdict(list)
    for session in sessions:
        groups[key(session)].append(session)
    return list(groups.values())


def model_name(session: ProgramSession) -> str:
    """Return the file name of the model, or its size if it was created from bytes."""
    path = session.model.path or session.model.same_file
    if path is not None:
        return PurePath(path).name
    return f"a model of {format_size(session.model.bytes or 0)} from bytes"


def model_names(sessions: Iterable[ProgramSession]) -> str:
    """Return the different names of the models of `sessions`: the first ones, and how many more
    there are."""
    return some_of(list(dict.fromkeys(map(model_name, sessions))))


def creation_site(session: ProgramSession) -> str:
    """Return where the session was created: ``ocr/main.py:70 (called from app.py:5)``."""
    caller_clause = f" (called from {session.called_from})" if session.called_from else ""
    return f"{session.created_at}{caller_clause}"


def creation_sites(sessions: Iterable[ProgramSession]) -> str:
    """Return where the sessions were created: ``a.py:3, b.py:7 and 2 more``."""
    return some_of(list(dict.fromkeys(map(creation_site, sessions))))


def process_ids(sessions_or_xrays: Iterable[ProgramSession | ProcessXray]) -> str:
    """Return the processes of `sessions_or_xrays`.

    For instance ``process 12``, or ``processes 12, 13 and 5 more``.
    """
    pids = list(dict.fromkeys(str(session_or_xray.pid) for session_or_xray in sessions_or_xrays))
    return f"process{'es' if len(pids) > 1 else ''} {some_of(pids)}"


def sessions_by_model_and_line(sessions: Iterable[ProgramSession]) -> list[list[ProgramSession]]:
    """Return the sessions of the same model that the same line created together."""
    return sessions_by_key(sessions, lambda session: (session.model_key, session.created_at))


def described_sessions(sessions: Sequence[ProgramSession]) -> str:
    """Return `sessions` as text: ``2 sessions of a.onnx, created at app.py:7 in process 12``.

    The sessions have the same model and were created by the same line.
    """
    first_session = sessions[0]
    return (
        f"{counted(len(sessions), 'session')} of {model_name(first_session)}, created at"
        f" {creation_site(first_session)} in"
        f" {process_ids(sessions)}"
    )


def session_numbers(sessions: Iterable[ProgramSession]) -> tuple[int, ...]:
    """Return the numbers of the sessions, in order."""
    return tuple(sorted(session.number for session in sessions))


def session_ready_s(session: ProgramSession) -> float:
    """Return the end of the creation, in seconds since the start of the recording."""
    return session.created_s + (session.creation_s or 0)


def session_end_s(recording: ProgramRun, session: ProgramSession) -> float:
    """Return the end of the session in seconds since the start of the recording.

    This is its release, or else the end of its process or of the recording. For a process that
    waits at its end for its X-ray, the end is the start of that wait.
    """
    if session.released_s is not None:
        return session.released_s
    ends = [process.ended_s for process in recording.processes if process.pid == session.pid]
    ends += [
        xray.t_s for xray in recording.xrays if xray.pid == session.pid and xray.reason == "end"
    ]
    return min((ended_s for ended_s in ends if ended_s is not None), default=recording.duration_s)


def alive_together(sessions: Sequence[ProgramSession]) -> list[ProgramSession]:
    """Return the most sessions that were alive at the same time: at least one if there are any."""
    ends = {
        session.number: inf
        if session.released_s is None
        else max(session_ready_s(session), session.released_s - MIN_TOGETHER_S)
        for session in sessions
    }
    events = sorted(
        [(session_ready_s(session), 1) for session in sessions]
        + [(end, -1) for end in ends.values()]
    )
    alive_count = max_alive_count = 0
    max_alive_s = 0.0
    for at_s, change in events:
        alive_count += change
        if alive_count > max_alive_count:
            max_alive_count, max_alive_s = alive_count, at_s
    sessions_together = [
        session
        for session in sessions
        if session_ready_s(session) <= max_alive_s < ends[session.number]
    ]
    # It is empty if each session was released as soon as it had run.
    return sessions_together or list(sessions[:1])


def private_weight_bytes(session: ProgramSession) -> int | None:
    """Return the bytes of the weights in memory that no other process shares; None if unknown."""
    memory = session.memory
    if memory is None or memory.weight_bytes is None:
        return None
    return memory.weight_bytes - (memory.mapped_weight_bytes or 0)


def slack_bytes(session: ProgramSession) -> int | None:
    """Return the resident bytes of the session's arena that are free; None if they are unknown."""
    return None if session.memory is None else session.memory.resident_slack_bytes


def reserved_text(reserved_bytes: int, resident_bytes: int) -> str:
    """Return `` (of 2.01 GiB reserved addresses)`` if more bytes are reserved than resident.

    Empty otherwise.
    """
    text = format_size(reserved_bytes)
    if reserved_bytes <= resident_bytes or text == format_size(resident_bytes):
        return ""
    return f" (of {text} reserved addresses)"


def kept_bytes(session: ProgramSession) -> int | None:
    """Return the growth of private memory during the creation in bytes; None if unknown.

    It is also unknown if other sessions were created or ran at the same time.
    """
    phases = [phase for phase in session.phases if phase.name not in RUN_PHASES]
    if not phases or session.shared_with:
        return None
    before, after = phases[0].start.anonymous_bytes, phases[-1].end.anonymous_bytes
    return None if before is None or after is None else max(0, after - before)


def session_bytes(session: ProgramSession) -> int | None:
    """Return the bytes that the process would not need without the session; None if unknown.

    If the session keeps the bytes that it was created from, they are included. Weights can be in
    the arena, so the larger one of weights and used arena is counted. Without an X-ray the weights
    are an estimate (see `size_text`): the private memory that the creation kept, or the bytes of
    the model's weights if these are more.
    """
    memory = session.memory
    weights = private_weight_bytes(session)
    if weights is None:
        sizes = [kept_bytes(session), session.model.weight_bytes]
        weights = max((size for size in sizes if size is not None), default=None)
    if memory is not None and memory.arena_used_bytes is not None:
        weights = max(weights or 0, memory.arena_used_bytes) + (slack_bytes(session) or 0)
    return None if weights is None else weights + _kept_source_bytes(session)


def _kept_source_bytes(session: ProgramSession) -> int:
    """Return the bytes that `session` was created from if it keeps them; 0 otherwise."""
    return session.model.bytes or 0 if session.model.is_kept else 0


def total_session_bytes(sessions: Iterable[ProgramSession]) -> int | None:
    """Return the bytes of all the sessions; None if they are unknown for one of them.

    Bytes of a model that several sessions keep are counted once.
    """
    total_bytes = 0
    counted_places: set[tuple[int, int | None]] = set()
    for session in sessions:
        size = session_bytes(session)
        if size is None:
            return None
        place = (session.pid, session.model.address)
        total_bytes += size - (_kept_source_bytes(session) if place in counted_places else 0)
        if session.model.is_kept:
            counted_places.add(place)
    return total_bytes


def redundant_bytes(sessions: Sequence[ProgramSession]) -> int | None:
    """Return the bytes of all the sessions except for the largest; None if they are unknown.

    If only some sessions keep the bytes of their model, the session to keep is one that does not.
    """
    total_bytes = total_session_bytes(sessions)
    if total_bytes is None:
        return None
    smallest_source_bytes = min(map(_kept_source_bytes, sessions), default=0)
    sessions_to_keep = [
        session for session in sessions if _kept_source_bytes(session) == smallest_source_bytes
    ]
    return total_bytes - max(
        (session_bytes(session) or 0 for session in sessions_to_keep), default=0
    )


def redundant_kept_bytes(sessions: Sequence[ProgramSession]) -> int:
    """Return the bytes of private memory that creating all the sessions but one kept, if known."""
    kept_sizes = [kept_bytes(session) or 0 for session in sessions]
    return sum(kept_sizes) - max(kept_sizes, default=0)


def size_text(size: int | None, sessions: Iterable[ProgramSession]) -> str:
    """Return the size of `sessions` as text, and why it is an estimate, if it is one.

    An X-ray finds weights and arenas; graphs and kernels are blocks of malloc that it cannot assign
    to a session.
    """
    if size is None:
        return "an unknown amount of memory"
    text, all_sessions = format_size(size), list(sessions)
    estimated_sessions = [
        session for session in all_sessions if private_weight_bytes(session) is None
    ]
    if not estimated_sessions:
        kept_clause = ", bytes of models" * any(session.model.is_kept for session in all_sessions)
        return f"at least {text} (weights{kept_clause} and arenas)"
    if len(estimated_sessions) < len(all_sessions):
        return f"about {text} (no X-ray measured all of them)"
    if any(
        (kept_bytes(session) or 0) < (session.model.weight_bytes or 0)
        for session in estimated_sessions
    ):
        return f"at least {text} (weights in the file; no X-ray measured the copies)"
    return f"about {text} (private memory that the creation kept; no X-ray measured it)"


def inherited_run_counts(recording: ProgramRun) -> Counter[int]:
    """Return the runs of sessions in forks of their process, by the number of the session."""
    counts: Counter[int] = Counter()
    for process in recording.processes:
        for inherited in process.inherited:
            counts[inherited.session] += inherited.run_count + inherited.is_running
    return counts


def sharing_advice(sessions: Sequence[ProgramSession | PartSession]) -> str:
    """Return the advice on how one session can replace `sessions`."""
    libraries = {session.library for session in sessions}
    library = next(iter(libraries)) if len(libraries) == 1 else None
    if library is not None and library != "python":
        return (
            f"Keep one object of {library} in the process, and pass it to all who use it: its"
            " sessions may run in several threads at once."
        )
    return (
        "Create the session once, at module level or in a function with functools.cache, and call"
        " its run() everywhere: several threads may do so at once."
    )

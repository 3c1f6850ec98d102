"""The sessions of a program as its rules compare them: model, creation, lifetime and memory."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from pathlib import PurePath
from typing import TypeVar

from memdiag.programs.recording_part import PartSession
from memdiag.records.phases import RUN_PHASES
from memdiag.records.run import ProcessXray, ProgramRun, ProgramSession
from memdiag.units import counted, format_size, some_of

K = TypeVar("K", bound=Hashable)

MIN_TOGETHER_S = 1.0
"""Seconds that two sessions must be alive together: a program that replaces a session has both for
a moment."""

SHRINKAGE_CODE = (
    'ro = onnxruntime.RunOptions(); ro.add_run_config_entry("memory.enable_memory_arena_shrinkage",'
    ' "cpu:0"); session.run(None, feeds, ro)'
)
"""A run at whose end the arena returns free regions to the system."""


def created_sessions(recording: ProgramRun) -> list[ProgramSession]:
    """Return the sessions whose creation succeeded, in the order of their creation."""
    return sorted(
        (session for session in recording.sessions if session.providers),
        key=lambda each: each.created_s,
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
    """Return the names of the models of `sessions`, each once, and how many more there are."""
    return some_of(list(dict.fromkeys(map(model_name, sessions))))


def creation_site(session: ProgramSession) -> str:
    """Return where the session was created: ``ocr/main.py:70 (called from app.py:5)``."""
    called = f" (called from {session.called_from})" if session.called_from else ""
    return f"{session.created_at}{called}"


def creation_sites(sessions: Iterable[ProgramSession]) -> str:
    """Return where the sessions were created: ``a.py:3, b.py:7 and 2 more``."""
    return some_of(list(dict.fromkeys(map(creation_site, sessions))))


def process_ids(found: Iterable[ProgramSession | ProcessXray]) -> str:
    """Return the processes of `found`: ``process 12``, or ``processes 12, 13 and 5 more``."""
    pids = list(dict.fromkeys(str(each.pid) for each in found))
    return f"process{'es' if len(pids) > 1 else ''} {some_of(pids)}"


def same_model_and_line(sessions: Iterable[ProgramSession]) -> list[list[ProgramSession]]:
    """Return the sessions of the same model that the same line created together."""
    return sessions_by_key(sessions, lambda each: (each.model_key, each.created_at))


def described_sessions(sessions: Sequence[ProgramSession]) -> str:
    """Return ``2 sessions of a.onnx, created at app.py:7 in process 12`` for `sessions` of a line.

    The sessions have the same model and were created by the same line.
    """
    first = sessions[0]
    return (
        f"{counted(len(sessions), 'session')} of {model_name(first)}, created at"
        f" {creation_site(first)} in"
        f" {process_ids(sessions)}"
    )


def session_numbers(sessions: Iterable[ProgramSession]) -> tuple[int, ...]:
    """Return the numbers of the sessions, in order."""
    return tuple(sorted(session.number for session in sessions))


def session_ready_s(session: ProgramSession) -> float:
    """Return the end of the creation, in seconds since the start of the recording."""
    return session.created_s + (session.creation_s or 0)


def session_end_s(recording: ProgramRun, session: ProgramSession) -> float:
    """Return the release of the session, or the end of its process or of the recording.

    A process that waits at its end for its X-ray has ended before.
    """
    if session.released_s is not None:
        return session.released_s
    ends = [process.ended_s for process in recording.processes if process.pid == session.pid]
    ends += [
        xray.t_s for xray in recording.xrays if xray.pid == session.pid and xray.reason == "end"
    ]
    return min((ended_s for ended_s in ends if ended_s is not None), default=recording.duration_s)


def alive_together(sessions: Sequence[ProgramSession]) -> list[ProgramSession]:
    """Return the most sessions that were alive at the same time: at least one, if there are any."""
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
    alive = max_alive = 0
    max_alive_s = 0.0
    for at_s, change in events:
        alive += change
        if alive > max_alive:
            max_alive, max_alive_s = alive, at_s
    together = [
        other for other in sessions if session_ready_s(other) <= max_alive_s < ends[other.number]
    ]
    return together or list(sessions[:1])  # where each was released as soon as it had run


def private_weight_bytes(session: ProgramSession) -> int | None:
    """Return the bytes of the weights in memory that no other process shares; None if unknown."""
    memory = session.memory
    if memory is None or memory.weight_bytes is None:
        return None
    return memory.weight_bytes - (memory.mapped_weight_bytes or 0)


def slack_bytes(session: ProgramSession) -> int | None:
    """Return the resident bytes of the session's arena that are free; None if they are unknown."""
    return None if session.memory is None else session.memory.resident_slack_bytes


def reserved_text(reserved: int, resident: int) -> str:
    """Return `` (of 2.01 GiB reserved addresses)`` if more than is resident; else nothing."""
    text = format_size(reserved)
    if reserved <= resident or text == format_size(resident):
        return ""
    return f" (of {text} reserved addresses)"


def kept_bytes(session: ProgramSession) -> int | None:
    """Return the growth of private memory during the creation; None if unknown.

    It is unknown too if other sessions were created or ran at the same time.
    """
    phases = [phase for phase in session.phases if phase.name not in RUN_PHASES]
    if not phases or session.shared_with:
        return None
    before, after = phases[0].start.anonymous_bytes, phases[-1].end.anonymous_bytes
    return None if before is None or after is None else max(0, after - before)


def session_bytes(session: ProgramSession) -> int | None:
    """Return the bytes that the process would not need without the session; None if unknown.

    The bytes that it was created from are a part of them if it keeps them. Weights can be in the
    arena, so that the larger of both is counted. Without an X-ray they are an estimate (see
    `size_text`): the private memory that the creation kept, or the bytes of the model's weights if
    these are more.
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

    Several may keep the same bytes of their model.
    """
    total = 0
    kept: set[tuple[int, int | None]] = set()
    for session in sessions:
        size = session_bytes(session)
        if size is None:
            return None
        place = (session.pid, session.model.address)
        total += size - (_kept_source_bytes(session) if place in kept else 0)
        if session.model.is_kept:
            kept.add(place)
    return total


def redundant_bytes(sessions: Sequence[ProgramSession]) -> int | None:
    """Return the bytes of all the sessions except for the largest; None if they are unknown.

    Of sessions of which some keep the bytes of their model, one that does not is to stay.
    """
    total = total_session_bytes(sessions)
    if total is None:
        return None
    least = min(map(_kept_source_bytes, sessions), default=0)
    staying = [session for session in sessions if _kept_source_bytes(session) == least]
    return total - max((session_bytes(session) or 0 for session in staying), default=0)


def redundant_kept_bytes(sessions: Sequence[ProgramSession]) -> int:
    """Return the private memory that creating all the sessions except for one kept, if known."""
    kept = [kept_bytes(session) or 0 for session in sessions]
    return sum(kept) - max(kept, default=0)


def size_text(size: int | None, sessions: Iterable[ProgramSession]) -> str:
    """Return the size of `sessions` as text, and why it is an estimate, if it is one.

    An X-ray finds weights and arenas; graphs and kernels are blocks of malloc that it cannot assign
    to a session.
    """
    if size is None:
        return "an unknown amount of memory"
    text, every = format_size(size), list(sessions)
    estimated = [session for session in every if private_weight_bytes(session) is None]
    if not estimated:
        kept = ", bytes of models" * any(session.model.is_kept for session in every)
        return f"at least {text} (weights{kept} and arenas)"
    if len(estimated) < len(every):
        return f"about {text} (no X-ray measured all of them)"
    if any((kept_bytes(each) or 0) < (each.model.weight_bytes or 0) for each in estimated):
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
    """Return how one session serves all who created `sessions`."""
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

"""Sessions start more threads than the CPUs that their process may use.

## Why it costs

With `intra_op_num_threads` at its default of 0, onnxruntime starts a thread for each
physical core of the machine, less the one that calls `run()`. It asks neither the limit of
the container nor the affinity of the process: with an affinity to one CPU of two, a session
started as many threads as without (1.20.1 to 1.32.0). Each session starts its own.

Threads that share a CPU wait for each other at the end of each operator, and those that
have nothing to do spin for a while, on CPU time that a container's limit then takes from
the others. Each thread also has a stack, a part of malloc's arenas, and scratch memory of
kernels.

The CPUs are the smaller of the affinity and of the limits of the control groups (`cpu.max`,
or `cpu.cfs_quota_us`), when the last session was created. The threads are those that each
session was seen to start at its creation (where several were created at once,
`intra_op_num_threads - 1`), and the most threads that were seen in `run()` at once, of all
sessions together.

## What to do

- Set `SessionOptions.intra_op_num_threads` to the CPUs that the process may use, or less if
  several sessions or workers run at once.
- For sessions that a library creates: set `ORT_INTRA_OP_NUM_THREADS` in the environment,
  since 1.31. It applies to sessions with the default.
- With many sessions in a process, let them share one pool (since 1.23): call
  `onnxruntime.set_global_thread_pool_sizes(intra, inter)` first, and set
  `use_per_session_threads = False` in the options of each session.
- If more threads call `run()` at once than there are CPUs, work in a pool of as many threads
  as CPUs (`concurrent.futures.ThreadPoolExecutor(2)`). A shared pool of onnxruntime does not
  help there. 16 threads at once on 2 CPUs, each with its own texts, took 341 MiB, and a pool
  of 2 took 175 MiB in the same CPU time; without the arena 606 and 285 MiB (1.32.0). A
  semaphore around `run()` saved nothing (590 MiB): malloc keeps a heap for each thread.

## Not reported

Sessions with no more threads than CPUs each, as long as all sessions of the process
that are alive at the same time, with their callers, have no more than 4 threads for
each CPU, and no more than 2 threads for each CPU call `run()` at once: a pipeline of
three models, each with all CPUs, runs one after the other.
Fractions of a CPU are rounded up. Sessions with the default and another provider than
the CPU's, which starts threads of its own.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from math import ceil, inf
from typing import NamedTuple

from memdiag.defaults import CPU_PROVIDER
from memdiag.ort.releases import SHARED_POOL_SINCE, THREADS_BY_ENVIRONMENT_SINCE
from memdiag.ort.runtime import is_older
from memdiag.programs.session_facts import (
    alive_together,
    created_sessions,
    model_names,
    process_ids,
    session_numbers,
    sessions_by_key,
    slack_bytes,
)
from memdiag.records.run import ProgramFinding, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import counted, format_size

RULE = Rule(
    code="MD707",
    name="threads-beyond-cpus",
    summary="Sessions start more threads than the CPUs that their process may use",
    costs="time",
)

_MAX_THREADS_PER_CPU = 4
_MAX_CALLERS_PER_CPU = 2
_CPU_PROVIDERS = (CPU_PROVIDER,)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for the processes with the same CPUs, and the same threads."""
    sessions_by_process = {
        group[0].pid: alive_together(group)
        for group in sessions_by_key(created_sessions(recording), lambda session: session.pid)
    }
    sessions_by_threads: defaultdict[tuple[float, str | None, _ThreadCount], list[ProgramSession]]
    sessions_by_threads = defaultdict(list)
    for process in recording.processes:
        sessions = sessions_by_process.get(process.pid, [])
        threads = _session_thread_count(sessions)
        if process.cpus_allowed is None or threads is None:
            continue
        cpus = ceil(process.cpus_allowed)
        is_many = threads.total > _MAX_THREADS_PER_CPU * cpus
        is_many |= threads.callers > _MAX_CALLERS_PER_CPU * cpus
        if threads.per_run > cpus or is_many:
            sessions_by_threads[process.cpus_allowed, process.onnxruntime, threads] += sessions
    for (cpus_allowed, onnxruntime, threads), sessions in sessions_by_threads.items():
        pids = {session.pid for session in sessions}
        sessions_at_other_times = [
            session
            for session in created_sessions(recording)
            if session.pid in pids
            and session not in sessions
            and (_intra_op_threads(session) or 0) > ceil(cpus_allowed)
        ]
        slack = callers_slack_bytes(recording, session_numbers(sessions))
        yield _threads_finding(
            cpus_allowed, onnxruntime, threads, sessions, sessions_at_other_times, slack
        )


def callers_slack_bytes(recording: ProgramRun, sessions: Collection[int]) -> int:
    """Return the resident slack in bytes of those `sessions` that too many threads call at once.

    Fewer callers save at most these bytes of the arenas.
    """
    cpus = {
        process.pid: ceil(process.cpus_allowed)
        for process in recording.processes
        if process.cpus_allowed
    }
    return sum(
        slack_bytes(session) or 0
        for session in recording.sessions
        if session.number in sessions
        and session.run_threads > _MAX_CALLERS_PER_CPU * cpus.get(session.pid, inf)
    )


class _ThreadCount(NamedTuple):
    """The threads of the sessions of a process that are alive at the same time.

    Attributes:
        sessions: the number of sessions whose threads are known.
        started: the threads that the sessions started.
        callers: the threads that call `run()`; several sessions may have the same callers.
        per_run: the threads that work on one run, including its caller.
    """

    sessions: int
    started: int
    callers: int
    per_run: int

    @property
    def total(self) -> int:
        """The threads of all the sessions and their callers."""
        return self.started + self.callers


def _session_thread_count(sessions: Sequence[ProgramSession]) -> _ThreadCount | None:
    """Return the threads of `sessions`; None if they are known for none of them."""
    threads_by_session = {
        session.number: threads for session in sessions if (threads := _intra_op_threads(session))
    }
    if not threads_by_session:
        return None
    known_sessions = [session for session in sessions if session.number in threads_by_session]
    return _ThreadCount(
        sessions=len(known_sessions),
        started=sum(
            _started_thread_count(session, threads_by_session[session.number] - 1)
            for session in known_sessions
        ),
        callers=max(1, *(session.run_threads for session in known_sessions)),
        per_run=max(threads_by_session.values()),
    )


def _started_thread_count(session: ProgramSession, expected: int) -> int:
    """Return the threads that `session` started; `expected` if they were not counted."""
    if session.providers != _CPU_PROVIDERS or session.started_threads is None:
        return expected
    return session.started_threads


def _intra_op_threads(session: ProgramSession) -> int | None:
    """Return the threads that work on one run of the session; None if they are not known."""
    if session.intra_op_threads:
        return session.intra_op_threads
    if session.providers != _CPU_PROVIDERS or session.started_threads is None:
        return None
    return session.started_threads + 1


def _threads_finding(
    cpus_allowed: float,
    onnxruntime: str | None,
    threads: _ThreadCount,
    sessions: Sequence[ProgramSession],
    sessions_at_other_times: Sequence[ProgramSession],
    slack: int,
) -> ProgramFinding:
    cpus = ceil(cpus_allowed)
    message = _threads_message(cpus_allowed, threads, sessions)
    if slack:
        message += f" Runs at the same time explain at most {format_size(slack)} of arena slack."
    if sessions_at_other_times:
        message += f" At other times it is the same with {model_names(sessions_at_other_times)}."
    if threads.per_run <= cpus:
        remedy = " ".join(_many_threads_advice(threads, cpus, onnxruntime))
    else:
        remedy = (
            f"Set SessionOptions.intra_op_num_threads to {cpus}, or less where several sessions run"
            " at once: it takes less CPU time then, and hardly less memory."
        )
        if threads.callers > cpus:
            remedy = f"{_fewer_callers_advice(cpus)} {remedy}"
        default_sessions = [session for session in sessions if not session.intra_op_threads]
        if max(filter(None, map(_intra_op_threads, default_sessions)), default=0) > cpus:
            message += (
                " By default onnxruntime starts one for each physical core of the machine, whatever"
                " the process may use."
            )
            remedy += f" {_environment_advice(cpus, onnxruntime)}"
    return ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=None,
        message=message,
        remedy=remedy,
    )


def _threads_message(
    cpus_allowed: float, threads: _ThreadCount, sessions: Sequence[ProgramSession]
) -> str:
    return (
        f"{process_ids(sessions)} may use {cpus_allowed:g} CPU{'' if cpus_allowed == 1 else 's'},"
        f" and {counted(threads.sessions, 'session')} ({model_names(sessions)})"
        f" {'works' if threads.sessions == 1 else 'work'} with {counted(threads.total, 'thread')}"
        f" ({threads.started:,} of {'its' if threads.sessions == 1 else 'their'} own,"
        f" {threads.callers:,} {'calls' if threads.callers == 1 else 'call'} run()),"
        f" of which up to {threads.per_run} work on one run."
    )


def _environment_advice(cpus: int, onnxruntime: str | None) -> str:
    """Return how to set the threads of sessions that libraries create."""
    variable = f"ORT_INTRA_OP_NUM_THREADS={cpus}"
    if is_older(onnxruntime, THREADS_BY_ENVIRONMENT_SINCE):
        return (
            "For sessions that a library creates, use onnxruntime 1.31 or newer (this is"
            f" {onnxruntime}) with {variable} in the environment."
        )
    return f"For sessions that a library creates, set {variable} in the environment."


def _many_threads_advice(
    threads: _ThreadCount, cpus: int, onnxruntime: str | None
) -> Iterator[str]:
    """Yield how to have fewer threads in all: fewer callers, a shared pool, or both."""
    min_callers = min(threads.started, _MAX_CALLERS_PER_CPU * cpus + 1)
    if threads.callers > cpus and threads.callers >= min_callers:
        yield _fewer_callers_advice(cpus)
    if threads.started > cpus:
        yield _sharing_advice(cpus, onnxruntime)


def _fewer_callers_advice(cpus: int) -> str:
    return (
        f"Call run() from a pool of {counted(cpus, 'thread')}: each further thread that runs"
        " at the same time takes the memory of another run, and waits for a CPU."
    )


def _sharing_advice(cpus: int, onnxruntime: str | None) -> str:
    """Return how to have fewer threads in all."""
    if is_older(onnxruntime, SHARED_POOL_SINCE):
        return (
            "Set SessionOptions.intra_op_num_threads to 1 for sessions that run at the same time as"
            " others, or create fewer sessions."
        )
    return (
        f"Let the sessions share one pool: call onnxruntime.set_global_thread_pool_sizes({cpus}, 1)"
        " first, and set use_per_session_threads = False in their options."
    )

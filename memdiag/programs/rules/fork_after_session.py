"""A process was forked after a session was created, and uses onnxruntime.

## Why it costs

A fork has the memory of its parent, and only one of its threads: the threads of the session
do not exist in it. Measured on 1.20.1 to 1.32.0, with a session of 4 threads that the fork
inherited:

- Runs have one thread, the caller, whatever `intra_op_num_threads` says.
- With `ORT_PARALLEL` the first run in the fork never ends.
- A fork that ends as a Python program does (`sys.exit` after `os.fork`, as the workers of
  gunicorn) crashes with SIGSEGV when the session is destroyed, or hangs there: with
  `intra_op_num_threads` at 2, the default on 2 CPUs, and a model of 120 MB (1.32.0).
  Processes of `multiprocessing` skip that.
- With telemetry on, which is the default since 1.29, a fork hangs at such an end even if
  the session has no threads, or onnxruntime was only imported before (1.31.1 and 1.32.0).

For the hang both causes must be removed. `gunicorn --preload` with 2 workers, whose
sessions had the default threads on 2 CPUs, took 30.2 seconds for each stop, after which
gunicorn kills its workers. It took as long with `ORT_DISABLE_TELEMETRY=1` alone (30.2
to 30.5 s) and with `intra_op_num_threads = 1` alone (30.2 s), and 0.3 to 0.8 s with
both (3 stops each, 1.32.0).

Microsoft's thread about it is onnxruntime#9800.

## What to do

- Create sessions after the fork: in gunicorn without `--preload`, or in the hook
  `post_fork`; in a `multiprocessing.Pool` in its `initializer`; in the worker's first
  request.
- Start workers without a fork: `multiprocessing.get_context("spawn")`.
- If workers must share the memory of one session by a fork: `intra_op_num_threads = 1`
  together with `ORT_DISABLE_TELEMETRY=1`; one of them is not enough. Such a session has no
  threads to lose.

## Not reported

Forks that neither run an inherited session nor create one, such as those of a program that
only starts others; sessions that were released before the fork; sessions without threads,
unless onnxruntime is 1.29 or newer and the environment of their process left its telemetry
on (`ORT_DISABLE_TELEMETRY`, or the variable of a build server such as `CI`, turns it off).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from memdiag.errors import UsageError
from memdiag.ort.releases import TELEMETRY_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.programs.session_facts import created_sessions, model_names, session_numbers
from memdiag.records.run import ProgramFinding, ProgramProcess, ProgramRun, ProgramSession
from memdiag.rules.rule import Rule
from memdiag.units import counted, some_of

RULE = Rule(
    code="MD708",
    name="fork-after-session",
    summary="A process was forked after a session was created, and uses onnxruntime",
    costs="time",
)


def detect(recording: ProgramRun) -> Iterator[ProgramFinding]:
    """Yield a finding for each process whose forks use onnxruntime after it created sessions."""
    session_by_number = {session.number: session for session in created_sessions(recording)}
    creators = {session.pid for session in recording.sessions}
    process_by_pid = {process.pid: process for process in recording.processes}
    forks: dict[tuple[int, tuple[int, ...]], list[ProgramProcess]] = {}
    for process in recording.processes:
        parent = process_by_pid.get(process.forked_from or 0)
        if parent is None:
            continue
        inherited = [
            inheritance
            for inheritance in process.inherited
            if inheritance.session in session_by_number
            and (
                _has_threads(session_by_number[inheritance.session]) or _may_have_telemetry(parent)
            )
        ]
        has_runs = any(inheritance.run_count or inheritance.is_running for inheritance in inherited)
        if inherited and (has_runs or process.pid in creators):
            key = parent.pid, tuple(inheritance.session for inheritance in inherited)
            forks.setdefault(key, []).append(process)
    for (pid, inherited_numbers), processes in forks.items():
        sessions = [session_by_number[number] for number in inherited_numbers]
        threaded_sessions = list(filter(_has_threads, sessions))
        yield _fork_finding(process_by_pid[pid], threaded_sessions or sessions, processes)


def _has_threads(session: ProgramSession) -> bool:
    if session.started_threads is not None:
        return session.started_threads > 0
    return session.intra_op_threads != 1


def _may_have_telemetry(process: ProgramProcess) -> bool:
    """Return whether onnxruntime's telemetry may have a thread in the process."""
    with suppress(UsageError):
        return process.telemetry is not False and (
            Runtime.parse(process.onnxruntime or "") >= TELEMETRY_SINCE
        )
    return False


def _fork_finding(
    parent: ProgramProcess, sessions: Sequence[ProgramSession], processes: Sequence[ProgramProcess]
) -> ProgramFinding:
    return ProgramFinding(
        name=RULE.name,
        sessions=session_numbers(sessions),
        bytes=None,
        message=_fork_message(parent, sessions, processes),
        remedy=(
            "Create sessions after the fork (gunicorn without --preload, the initializer of a"
            ' pool), or start workers with multiprocessing.get_context("spawn"). If workers hang'
            " when stopped: import onnxruntime and create sessions after the fork, or set both"
            " ORT_DISABLE_TELEMETRY=1 and intra_op_num_threads = 1."
        ),
    )


def _fork_message(
    parent: ProgramProcess, sessions: Sequence[ProgramSession], processes: Sequence[ProgramProcess]
) -> str:
    numbers = session_numbers(sessions)
    inherited = [session for process in processes for session in process.inherited]
    runs = sum(session.run_count for session in inherited if session.session in numbers)
    hanging_runs = sum(session.is_running for session in inherited if session.session in numbers)
    pids = some_of([str(process.pid) for process in processes])
    count = "process" if len(processes) == 1 else "processes"
    verb = "is a fork" if len(processes) == 1 else "are forks"
    message = (
        f"{count} {pids} {verb} of process {parent.pid}, made after it had created"
        f" {counted(len(sessions), 'session')} ({model_names(sessions)})."
    )
    if any(map(_has_threads, sessions)):
        message += " The threads of a session do not exist in a fork:"
    else:
        condition = "" if parent.telemetry else ", unless ORT_DISABLE_TELEMETRY=1 was set"
        message += (
            " The sessions have no threads, but onnxruntime's telemetry has one, which does not"
            f" exist in a fork{condition}:"
        )
    if hanging_runs:
        message += f" {counted(hanging_runs, 'run')} there started and did not end."
    elif not any(map(_has_threads, sessions)):
        message += (
            " a fork that ends as Python usually does, such as a worker of gunicorn, can hang there"
            " until it is killed."
        )
    elif runs:
        message += f" at least {counted(runs, 'run')} there had one thread each."
    else:
        message += (
            " it crashes or hangs when the session is destroyed, as at the usual end of Python."
        )
    return message

"""Assembly of the record of a program from what its recorder has seen."""

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePath

import msgspec

from memdiag.errors import ModelError
from memdiag.model.model_file import open_model
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.programs.recorded_session import RecordedSession
from memdiag.programs.recorder import Recorder
from memdiag.programs.rules import program_findings
from memdiag.programs.same_models import files_of_bytes
from memdiag.records.codec import escaped_record
from memdiag.records.group_memory import GroupMemory
from memdiag.records.profile import Environment
from memdiag.records.run import (
    RUN_SCHEMA,
    Caller,
    InheritedSession,
    ProgramProcess,
    ProgramRun,
    ProgramSession,
    SessionModel,
    TreeSamples,
)
from memdiag.runner.machine import describe_machine
from memdiag.system.group_memory import near_limit_text
from memdiag.units import MIB, counted

MAX_PLATEAU_SPREAD = 0.005
"""Share of the peak by which samples of a plateau differ."""

_CELL_ENDING = re.compile(r"cell \[\d+\]$")
"""How the hook names a cell of a notebook."""

_CELL_FILE = re.compile(r"/ipykernel_\d+/\d+\.py$")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_STANDARD_LIBRARY = re.compile(r"/lib/python3\.\d+/")
"""The folder of Python's own modules, in the environment of any release."""


def assemble_run(
    recorder: Recorder,
    command: Sequence[str],
    exit_code: int | None,
    *,
    memdiag_version: str,
) -> ProgramRun:
    """Return the record of the program that `recorder` has recorded.

    Args:
        recorder: the recorder, at the end of the recording.
        command: the command line of the program.
        exit_code: its exit code, negative for a signal; None if it goes on.
        memdiag_version: the version of memdiag.
    """
    samples = _tree_samples(recorder)
    root = recorder.processes[0].pid if recorder.processes else 0
    processes = tuple(_process_record(process, root, exit_code) for process in recorder.processes)
    duration_s = recorder.now_s()
    if recorder.watched_s is not None:
        duration_s = recorder.watched_s + recorder.end_xrays_s
    group = recorder.group.result()
    run = ProgramRun(
        schema=RUN_SCHEMA,
        command=tuple(command),
        duration_s=round(duration_s, 6),
        exit_code=exit_code,
        environment=_run_environment(recorder, group, memdiag_version),
        peak_rss_bytes=max(
            [recorder.peak_rss_bytes, *(process.peak_rss_bytes for process in processes)]
        ),
        peak_s=round(_peak_s(samples, recorder), 6),
        peak_pss_bytes=max(samples.pss_bytes, default=None),
        processes=processes,
        sessions=_session_records(recorder),
        peaks=tuple(recorder.peaks),
        samples=samples,
        xrays=tuple(recorder.xrays),
        findings=(),
        is_watched=recorder.is_watched_only,
        end_xrays_s=round(recorder.end_xrays_s, 6),
        end_waits=tuple((round(start, 6), round(end, 6)) for start, end in recorder.end_waits),
        notes=tuple(dict.fromkeys((*recorder.notes, *_earlier_sessions_note(root, recorder)))),
        earlier_sessions=recorder.earlier_sessions,
        group=group,
    )
    findings, notes = program_findings(run)
    return escaped_record(
        msgspec.structs.replace(run, findings=findings, notes=(*run.notes, *notes))
    )


def early_saver(
    save: Callable[[ProgramRun], None] | None, command: Sequence[str], *, memdiag_version: str
) -> Callable[[Recorder, GroupMemory], None]:
    """Return a function that saves the record of a program near the memory limit of its group.

    The other arguments are as in `assemble_run`. Without `save` the function does nothing.
    """

    def save_early(recorder: Recorder, memory: GroupMemory) -> None:
        if save is not None:
            run = assemble_run(recorder, command, None, memdiag_version=memdiag_version)
            save(msgspec.structs.replace(run, notes=(*run.notes, near_limit_text(memory))))

    return save_early


def _tree_samples(recorder: Recorder) -> TreeSamples:
    samples = recorder.total_rss.samples()
    times, pss, swap = (
        zip(*recorder.proportional, strict=True) if recorder.proportional else ((),) * 3
    )
    return TreeSamples(
        t_s=samples.t_s,
        rss_bytes=samples.rss_bytes,
        proportional_t_s=tuple(round(at_s, 6) for at_s in times),
        pss_bytes=pss,
        swap_bytes=swap,
    )


def _run_environment(
    recorder: Recorder, group: GroupMemory | None, memdiag_version: str
) -> Environment:
    versions = {process.runtime_version for process in recorder.processes}
    return describe_machine(
        memdiag_version,
        min(filter(None, versions), default=None),
        next((process.python for process in recorder.processes if process.python), None),
        memory_limit_bytes=group.limit_bytes if group else None,
        cpu_quota=recorder.cpu_quota,
    )


def _session_records(recorder: Recorder) -> tuple[ProgramSession, ...]:
    """Return the sessions. Their runs include the runs in forked processes."""
    run_counts = Counter[int]()
    last_runs: dict[int, float] = {}
    for process in recorder.processes:
        for inherited in process.inherited.values():
            number = inherited.session.number
            run_counts[number] += inherited.run_count + inherited.is_running
            if inherited.last_run_s is not None:
                last_runs[number] = max(inherited.last_run_s, last_runs.get(number, 0.0))
    same_files = files_of_bytes(session.description.model for session in recorder.sessions)
    return tuple(
        _session_record(
            session, run_counts[session.number], last_runs.get(session.number), same_files
        )
        for session in recorder.sessions
    )


def _earlier_sessions_note(pid: int, recorder: Recorder) -> Iterator[str]:
    """Yield a note on the sessions that were created before the recording, if there are any."""
    if count := recorder.earlier_sessions:
        were, they = ("was", "it is") if count == 1 else ("were", "they are")
        yield (
            f"{counted(count, 'session')} of process {pid} {were} created before the recording"
            f" began: {they} not listed, and the runs are not counted. Begin the recording before"
            " the first session is created"
        )


def _peak_s(samples: TreeSamples, recorder: Recorder) -> float:
    """Return the seconds until the first moment near the peak.

    On a plateau, samples differ by a few pages. If the high-water mark of a process is above all
    samples, the moment is the middle of the run that raised the mark, if this run is known.
    """
    sampled_peak = recorder.peak_rss_bytes
    tolerance = max(MIB, MAX_PLATEAU_SPREAD * sampled_peak)
    raising_runs = [run for run in recorder.peaks if run.peak_rss_bytes > sampled_peak + tolerance]
    if raising_runs:
        highest_run = max(raising_runs, key=lambda run: run.peak_rss_bytes)
        return max(0.0, highest_run.t_s - (highest_run.latency_s or 0.0) / 2)
    rows = zip(samples.t_s, samples.rss_bytes, strict=True)
    return next((t_s for t_s, rss_bytes in rows if rss_bytes >= sampled_peak - tolerance), 0.0)


def _process_record(process: RecordedProcess, root: int, exit_code: int | None) -> ProgramProcess:
    return ProgramProcess(
        pid=process.pid,
        parent=process.info.parent,
        command=process.info.command,
        started_s=round(process.started_s, 6),
        ended_s=None if process.ended_s is None else round(process.ended_s, 6),
        exit_code=exit_code if process.pid == root else None,
        peak_rss_bytes=process.peak_rss_bytes,
        earlier_peak_rss_bytes=process.earlier_peak_rss_bytes,
        peak_pss_bytes=process.peak_pss_bytes,
        peak_pss_s=None if process.peak_pss_s is None else round(process.peak_pss_s, 6),
        onnxruntime=process.runtime_version,
        build=process.build or (process.runtime and process.runtime.build),
        python=process.python,
        samples=process.timeline.samples(),
        cpus_allowed=process.cpus_allowed,
        forked_from=process.forked_from,
        telemetry=process.telemetry,
        inherited=tuple(
            InheritedSession(
                session=inheritance.session.number,
                run_count=inheritance.run_count,
                is_running=inheritance.is_running,
            )
            for inheritance in process.inherited.values()
        ),
    )


def _session_record(
    session: RecordedSession,
    forked_run_count: int,
    forked_last_run_s: float | None,
    same_files: Mapping[str, str],
) -> ProgramSession:
    description = session.description
    callers = callers_of(session)
    shapes = sorted(session.shapes.values(), key=lambda shape: -shape.runs)
    return ProgramSession(
        number=session.number,
        pid=session.process.pid,
        model=_model_record(session, same_files),
        library=library_of(callers[0].file) if callers else None,
        created_at=created_at(session),
        called_from=_own_caller_location(callers),
        callers=callers,
        options={**description.options, **description.config},
        providers=session.providers,
        intra_op_threads=description.threads[0],
        created_s=round(session.created_s, 6),
        released_s=None if session.released_s is None else round(session.released_s, 6),
        creation_s=session.creation_s,
        error=session.error,
        phases=session.finished_phases(),
        peak_phase=session.peak_phase(),
        creation_peak_rss_bytes=session.exact_creation_peak(),
        shared_with=tuple(sorted(session.shared_with)),
        run_count=sum(shape.runs for shape in shapes),
        forked_run_count=forked_run_count,
        forked_last_run_s=None if forked_last_run_s is None else round(forked_last_run_s, 6),
        run_threads=session.run_threads,
        shapes=tuple(shapes),
        first_run_s=None if session.first_run_s is None else round(session.first_run_s, 6),
        last_run_s=None if session.last_run_s is None else round(session.last_run_s, 6),
        memory=session.memory,
        phase_times=session.phase_times(),
        started_threads=session.started_threads,
    )


def _model_record(session: RecordedSession, same_files: Mapping[str, str]) -> SessionModel:
    source = session.description.model
    path, digest, size = source.path, source.digest, source.bytes
    if path is not None:
        with suppress(OSError):
            size = os.stat(path).st_size
    same_file = None if digest is None else same_files.get(digest)
    file = path or same_file
    return SessionModel(
        path=path,
        bytes=size,
        digest=digest,
        weight_bytes=None if file is None else _weight_bytes(file),
        same_file=same_file,
        is_kept=session.keeps_bytes,
        address=source.address,
    )


@cache
def _weight_bytes(path: str) -> int | None:
    """Return the bytes of the weights of the model at `path`; None if it cannot be read."""
    try:
        with open_model(Path(path)) as model_file:
            return model_file.weight_bytes
    except ModelError:
        return None


def callers_of(session: RecordedSession) -> tuple[Caller, ...]:
    """Return the calls that led to the creation of `session`, the nearest first."""
    return tuple(
        Caller(file=file, line=line, function=function)
        for file, line, function in session.description.callers
    )


def created_at(session: RecordedSession) -> str:
    """Return file and line of the creation; the path of an installed file starts below
    site-packages."""
    if not session.description.callers:
        return "?"
    file, line, _ = session.description.callers[0]
    return _source_location(file, line)


def call_site(callers: Sequence[tuple[str, int, str]]) -> str:
    """Return where a call was made: ``ocr/main.py:70 (called from app.py:5)``; empty if unknown.

    The caller is the nearest one in the program's own code: programs often run a session in one
    function, for many callers.

    Args:
        callers: file, line and function of the callers, the nearest first.
    """
    if not callers:
        return ""
    (file, line, _), *outer_callers = callers
    own_location = next(
        (_source_location(*caller[:2]) for caller in outer_callers if _is_own_code(caller[0])), ""
    )
    caller_clause = f" (called from {own_location})" if own_location else ""
    return f"{_source_location(file, line)}{caller_clause}"


def _own_caller_location(callers: Sequence[Caller]) -> str | None:
    """Return file and line of the nearest caller in the program's own code.

    None if the session was created there, or if all callers are in libraries.
    """
    own_caller = next((caller for caller in callers if _is_own_code(caller.file)), None)
    return (
        None
        if own_caller is None or own_caller is callers[0]
        else _source_location(own_caller.file, own_caller.line)
    )


def _is_own_code(file: str) -> bool:
    """Return whether `file` is the program's own code: no library, string or installed command."""
    return not file.startswith("<") and library_of(file) is None and not _is_command(Path(file))


def _is_command(file: Path) -> bool:
    """Return whether `file` is in the folder of commands of a Python environment.

    The script of an installed command only calls a library.
    """
    return any((file.parent / name).exists() for name in ("python", "python.exe"))


def _source_location(file: str, line: int) -> str:
    if _CELL_ENDING.match(file):
        return f"{file}, line {line}"
    if _CELL_FILE.search(file):
        return f"notebook, line {line}"
    path = PurePath(file)
    for index, part in enumerate(path.parts):
        if part in _PACKAGE_FOLDERS:
            path = PurePath(*path.parts[index + 1 :])
            break
    else:
        with suppress(ValueError):
            path = path.relative_to(Path.cwd())
    return f"{path}:{line}"


def library_of(file: str) -> str | None:
    """Return the package below site-packages that contains `file`; None for other files.

    Modules of Python itself, of any release, are in the package ``python``.
    """
    parts = PurePath(file).parts
    for index, part in enumerate(parts[:-1]):
        if part in _PACKAGE_FOLDERS:
            return PurePath(parts[index + 1]).stem
    standard_library = sysconfig.get_paths()["stdlib"]
    is_standard = (
        file.startswith(standard_library + os.sep) or _STANDARD_LIBRARY.search(file) is not None
    )
    return "python" if is_standard else None

"""Recordings of programs, built by hand."""

from typing import Any

import msgspec

from memdiag.records.attribution import ArenaUsage
from memdiag.records.phases import PhaseName
from memdiag.records.profile import Memory, Phase, Samples
from memdiag.records.run import (
    RUN_SCHEMA,
    Caller,
    HighWaterRun,
    InputShapes,
    PhaseTime,
    ProcessXray,
    ProgramFinding,
    ProgramProcess,
    ProgramRun,
    ProgramSession,
    SessionMemory,
    SessionModel,
    TreeSamples,
)
from tests.program_records import attribution, environment
from tests.reports.attributions import owner

MIB = 1 << 20

_SHARES: tuple[tuple[PhaseName, float], ...] = (
    ("parse", 0.3),
    ("optimize", 0.2),
    ("constant_fold", 0.2),
    ("optimize", 0.1),
    ("initialize", 0.1),
    ("prepack", 0.1),
)


def session(number: int, **changes: Any) -> ProgramSession:
    """Return a session of 1 s of creation at `created_s`, which raises the memory by 60 MiB."""
    created_s = changes.pop("created_s", float(number))
    start = changes.pop("start", 100)  # MiB
    peak = changes.pop("peak", start + 60)
    path = changes.pop("path", "/models/a.onnx")
    times, at_s = [], created_s
    for name, share in _SHARES:
        times.append(PhaseTime(phase=name, start_s=at_s, end_s=at_s + share))
        at_s += share
    times.append(PhaseTime(phase="first_run", start_s=at_s + 0.1, end_s=at_s + 0.2))
    phases = [
        phase("parse", start, start + 30),
        phase("optimize", start + 30, start + 30),
        phase("constant_fold", start + 30, peak),
        phase("initialize", start + 30, start + 30),
        phase("prepack", start + 30, start + 50),
        phase("first_run", start + 50, start + 50),
    ]
    run_count = changes.get("run_count", 6)
    if not run_count:
        times, phases = times[:-1], phases[:-1]
    shapes = (
        InputShapes(shapes={"x": (1, 3, 64, 64)}, runs=5, total_s=0.5, min_s=0.09, max_s=0.12),
        InputShapes(shapes={"x": (1, 3, 640, 640)}, runs=1, total_s=0.9, min_s=0.9, max_s=0.9),
    )
    fields: dict[str, Any] = {
        "number": number,
        "pid": 100,
        "model": SessionModel(path=path, bytes=20 * MIB, digest=None, weight_bytes=20 * MIB),
        "library": None,
        "created_at": "app/main.py:8",
        "callers": (Caller(file="/app/main.py", line=8, function="load"),),
        "options": {},
        "providers": ("CPUExecutionProvider",),
        "intra_op_threads": 0,
        "created_s": created_s,
        "released_s": None,
        "creation_s": 1.0,
        "error": None,
        "phases": tuple(phases),
        "shared_with": (),
        "run_count": run_count,
        "run_threads": 1,
        "shapes": shapes if run_count else (),
        "first_run_s": created_s + 1.2 if run_count else None,
        "last_run_s": created_s + 5 if run_count else None,
        "phase_times": tuple(times),
    }
    return ProgramSession(**(fields | changes))


def failed(number: int, **changes: Any) -> ProgramSession:
    """Return a session whose creation failed."""
    made = session(number, run_count=0, creation_s=0.25, **changes)
    return msgspec.structs.replace(
        made,
        error="NO_SUCHFILE: the file does not exist",
        providers=(),
        phases=made.phases[:1],
        phase_times=made.phase_times[:1],
    )


def phase(name: PhaseName, start: int, peak: int) -> Phase:
    return Phase(
        name=name,
        duration_s=0.2,
        start=_memory(start),
        end=_memory(min(peak, start + 20)),
        net_rss_bytes=min(peak, start + 20) * MIB - start * MIB,
        peak_rss_bytes=peak * MIB,
        peak_kind="exact",
    )


def _memory(mebibytes: int) -> Memory:
    return Memory(
        rss_bytes=mebibytes * MIB,
        anonymous_bytes=(mebibytes - 20) * MIB,
        file_bytes=20 * MIB,
        shared_bytes=0,
    )


def process(pid: int, *sizes: int, parent: int = 1, **changes: Any) -> ProgramProcess:
    """Return a process whose resident set in MiB was `sizes`, one each second."""
    fields: dict[str, Any] = {
        "pid": pid,
        "parent": parent,
        "command": ("/usr/bin/python", "/app/main.py", "--port", "80"),
        "started_s": 0.0,
        "ended_s": float(len(sizes)),
        "exit_code": 0,
        "peak_rss_bytes": max(sizes) * MIB,
        "peak_pss_bytes": max(sizes) * MIB * 3 // 4,
        "onnxruntime": "1.32.0",
        "build": "onnxruntime",
        "python": "3.11.7",
        "samples": Samples(
            t_s=tuple(map(float, range(len(sizes)))),
            rss_bytes=tuple(size * MIB for size in sizes),
            anonymous_bytes=tuple((size - 20) * MIB for size in sizes),
            file_and_shared_bytes=(20 * MIB,) * len(sizes),
        ),
    }
    return ProgramProcess(**(fields | changes))


def xray(pid: int, *arenas: ArenaUsage, used: int = 2, slack: int = 40) -> ProcessXray:
    """Return an X-ray of 200 MiB."""
    owners = (
        owner("weights", "original", 40 * MIB),
        owner("arena", "in use", used * MIB),
        owner("arena", "slack", slack * MIB),
        owner("python", "objects", (158 - used - slack) * MIB),
        owner("unnamed", "unnamed", 2 * MIB),
    )
    return ProcessXray(
        pid=pid,
        t_s=9.5,
        duration_s=0.5,
        reason="end",
        attribution=attribution(
            pid, owners, arenas, named_share=0.99, notes=("some memory could not be read",)
        ),
    )


def arena(session: int, slack: int) -> ArenaUsage:
    """Return the arena of a session with 1 MiB in use and `slack` MiB free, all resident."""
    return ArenaUsage(
        session=session,
        used_bytes=MIB,
        slack_bytes=slack * MIB,
        resident_slack_bytes=slack * MIB,
        resident_used_bytes=MIB,
    )


def memory(
    weights: int | None,
    used: int | None,
    slack: int | None,
    *,
    resident: int | None = None,
    resident_used: int | None = None,
) -> SessionMemory:
    """Return the memory of a session, sizes in MiB; `resident` is the resident part of `slack`.

    `resident_used` is that of `used`. Without them all is resident.
    """
    resident = slack if resident is None else resident
    resident_used = used if resident_used is None else resident_used
    sizes = [
        None if size is None else size * MIB
        for size in (weights, used, slack, resident, resident_used)
    ]
    return SessionMemory(
        weight_bytes=sizes[0],
        sharing=1,
        arena_used_bytes=sizes[1],
        arena_slack_bytes=sizes[2],
        mapped_weight_bytes=None if weights is None else 0,
        resident_slack_bytes=sizes[3],
        resident_used_bytes=sizes[4],
    )


def run(*sessions: ProgramSession, **changes: Any) -> ProgramRun:
    """Return the recording of one process with `sessions`."""
    rss = (20, 60, 120, 200, 310, 220, 220, 220, 220, 200)
    processes = changes.get("processes", (process(100, *rss),))
    fields: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "command": ("python", "/app/main.py"),
        "duration_s": 10.0,
        "exit_code": 0,
        "environment": environment(
            platform="Linux-6.1-x86_64", cpu="AMD EPYC", cpu_count=2, memory_bytes=8 << 30
        ),
        "peak_rss_bytes": 310 * MIB,
        "peak_s": 4.0,
        "peak_pss_bytes": 280 * MIB,
        "processes": processes,
        "sessions": sessions,
        "peaks": (),
        "samples": TreeSamples(
            t_s=tuple(map(float, range(len(rss)))),
            rss_bytes=tuple(size * MIB for size in rss),
            proportional_t_s=(0.0, 4.0, 8.0),
            pss_bytes=(18 * MIB, 280 * MIB, 200 * MIB),
            swap_bytes=(0, 0, 0),
        ),
        "xrays": (),
        "findings": (),
        "notes": (),
    }
    return ProgramRun(**(fields | changes))


def watched(*, earlier_peak: int | None = None) -> ProgramRun:
    """Return the recording of a running process with a mark of `earlier_peak` MiB before."""
    recording = run(is_watched=True)
    mark = None if earlier_peak is None else earlier_peak * MIB
    (process,) = recording.processes
    process = msgspec.structs.replace(process, earlier_peak_rss_bytes=mark)
    return msgspec.structs.replace(recording, processes=(process,))


def server() -> ProgramRun:
    """Return three processes; sessions that ran, never ran, failed, were released and shared."""
    sessions = (
        session(1, created_s=1.0, memory=memory(20, 1, 30), options={"enable_profiling": "True"}),
        session(2, created_s=1.0, path="/models/b.onnx", shared_with=(3,), released_s=8.0),
        session(3, created_s=1.5, path="/models/c.onnx", shared_with=(2,), run_count=0),
        session(4, created_s=3.0, peak=310, pid=101, memory=memory(10, 1, 100, resident=40)),
        failed(5, created_s=6.0, path="/models/nowhere.onnx"),
    )
    return run(
        *sessions,
        processes=(
            process(100, 20, 60, 120, 200, 210, 200, 200, 200, 200, 200),
            process(101, 20, 40, 100, 90, 90, 90, 90, parent=100, started_s=2.0),
            process(102, 8, 12, 12, parent=100, onnxruntime=None),
        ),
        peaks=(
            HighWaterRun(
                session=1,
                t_s=4.5,
                peak_rss_bytes=210 * MIB,
                shapes={"x": (1, 3, 640, 640)},
                latency_s=0.5,
            ),
        ),
        xrays=(xray(100, arena(1, 30)), xray(101, arena(4, 100))),
        findings=(
            ProgramFinding(
                name="duplicate-sessions",
                sessions=(1, 4),
                bytes=20 * MIB,
                message="Sessions 1 and 4 load the same model with the same options.",
                remedy="Create one session and share it.",
            ),
        ),
        notes=("process 102: the hook was not loaded",),
    )


def pool(workers: int = 8) -> ProgramRun:
    """Return `workers` processes with equal sessions, and one that creates a session a call."""
    sessions = [
        session(number, created_s=0.1 * number, released_s=0.1 * number + 1.35)
        for number in range(1, 31)
    ]
    sessions += [
        session(31 + index, pid=200 + index, path="/models/b.onnx", memory=memory(20, 1, 30))
        for index in range(workers)
    ]
    return run(
        *sessions,
        processes=(
            process(100, 20, 200, 200),
            *(process(200 + index, 20, 150 + index, parent=100) for index in range(workers)),
        ),
    )


def empty() -> ProgramRun:
    """Return the recording of a program without onnxruntime that ended before a sample."""
    nothing = TreeSamples(t_s=(), rss_bytes=(), proportional_t_s=(), pss_bytes=(), swap_bytes=())
    return run(
        processes=(),
        samples=nothing,
        peak_rss_bytes=0,
        peak_s=0.0,
        peak_pss_bytes=None,
        exit_code=3,
        duration_s=0.02,
    )


def watched_with_xray() -> ProgramRun:
    """Return the recording of a running process with the X-ray at its end."""
    return run(is_watched=True, xrays=(xray(100),))


def without_sessions() -> ProgramRun:
    """Return two watched processes without sessions, one with a long command."""
    long = ("python", "-c", "import time; " * 20)
    processes = (process(7, 20, command=long), process(8, 60, 50, command=("server",)))
    return run(processes=processes, is_watched=True)


ALL = (server, pool, empty, watched_with_xray, without_sessions)

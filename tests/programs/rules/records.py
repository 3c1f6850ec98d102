"""Records of programs, built by hand: each function has defaults for what a test does not state."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from memdiag.programs.rules import program_detectors
from memdiag.records.attribution import (
    ArenaUsage,
    Backing,
    Copy,
    Owner,
    OwnerKind,
    SearchedModel,
)
from memdiag.records.profile import Memory, Phase, PhaseName, Samples
from memdiag.records.run import (
    RUN_SCHEMA,
    InputShapes,
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

MIB = 1 << 20

WEIGHTS = 50 * MIB
PID = 10


def model(path: str | None = "/models/m.onnx", **changes: Any) -> SessionModel:
    """A model with `WEIGHTS` bytes of weights."""
    given = {"path": path, "bytes": WEIGHTS + 1000, "digest": None, "weight_bytes": WEIGHTS}
    return SessionModel(**{**given, **changes})


def memory(
    weights: int | None = WEIGHTS, *, mapped: int = 0, slack: int = MIB, reserved: int | None = None
) -> SessionMemory:
    """The memory of a session whose weights are not in the arena; `slack` of it is resident."""
    return SessionMemory(
        weight_bytes=weights,
        sharing=1,
        mapped_weight_bytes=mapped,
        arena_used_bytes=0,
        arena_slack_bytes=slack if reserved is None else reserved,
        resident_slack_bytes=slack,
        resident_used_bytes=0,
    )


def runs(count: int, shape: Sequence[int] = (1, 8)) -> InputShapes:
    """Runs with an input x of `shape`."""
    return InputShapes(
        shapes={"x": tuple(shape)}, runs=count, total_s=0.001 * count, min_s=0.001, max_s=0.001
    )


def session(
    number: int = 1, *, shapes: Iterable[InputShapes] = (), **changes: Any
) -> ProgramSession:
    """A session that was created at 1 s and ran until 99 s, 100 times unless `shapes` says so."""
    counted = tuple(shapes) or (runs(100),)
    given: dict[str, Any] = {
        "number": number,
        "pid": PID,
        "model": model(),
        "library": None,
        "created_at": f"app.py:{number}",
        "callers": (),
        "options": {},
        "providers": ("CPUExecutionProvider",),
        "intra_op_threads": 0,
        "created_s": 1.0,
        "released_s": None,
        "creation_s": 0.5,
        "error": None,
        "phases": (),
        "shared_with": (),
        "run_count": sum(each.runs for each in counted),
        "run_threads": 1,
        "shapes": counted,
        "first_run_s": 2.0,
        "last_run_s": 99.0,
        "memory": memory(),
        "started_threads": 1,
    }
    return ProgramSession(**{**given, **changes})


def never_run(number: int = 1, **changes: Any) -> ProgramSession:
    """A session without runs."""
    without: dict[str, Any] = {"run_count": 0, "first_run_s": None, "last_run_s": None}
    return msgspec.structs.replace(session(number, **{**without, **changes}), shapes=())


def creation_phases(anonymous_growth: int) -> tuple[Phase, ...]:
    """The phases of a creation in which anonymous memory grew by so much."""

    def phase(name: PhaseName, start: int, end: int) -> Phase:
        before, after = (
            Memory(rss_bytes=size, anonymous_bytes=size, file_bytes=0, shared_bytes=0)
            for size in (start, end)
        )
        return Phase(
            name=name,
            duration_s=0.1,
            start=before,
            end=after,
            net_rss_bytes=end - start,
            peak_rss_bytes=end,
            peak_kind="exact",
        )

    loaded = 30 * MIB + anonymous_growth
    return (
        phase("parse", 30 * MIB, loaded),
        phase("prepack", loaded, loaded),
        phase("first_run", loaded, loaded + 200 * MIB),
    )


def process(pid: int = PID, **changes: Any) -> ProgramProcess:
    """A process that lives from 0 s to 100 s and may use 16 CPUs."""
    given: dict[str, Any] = {
        "pid": pid,
        "parent": 1,
        "command": ("python", "app.py"),
        "started_s": 0.0,
        "ended_s": 100.0,
        "exit_code": None,
        "peak_rss_bytes": 200 * MIB,
        "peak_pss_bytes": None,
        "onnxruntime": "1.32.0",
        "build": "onnxruntime",
        "python": "3.11.7",
        "samples": Samples(t_s=(), rss_bytes=(), anonymous_bytes=(), file_and_shared_bytes=()),
        "cpus_allowed": 16.0,
    }
    return ProgramProcess(**{**given, **changes})


def copy(weight: str, address: int, *, size: int = 10 * MIB, **changes: Any) -> Copy:
    """A private copy of `weight` as it is in the model."""
    given: dict[str, Any] = {
        "weights": (weight,),
        "layout": "original",
        "kind": "original",
        "parameters": {},
        "bytes": size,
        "resident_bytes": size,
        "address": address,
        "backing": Backing(kind="anonymous"),
        "verified_bytes": size,
        "in_use": True,
        "made_by": None,
        "private_bytes": size,
    }
    return Copy(**{**given, **changes})


def xray(
    pid: int,
    *copies: Copy,
    slack: int = 0,
    reserved: int | None = None,
    retained: int = 0,
    shared: int = 0,
    arenas: int = 1,
    t_s: float = 99.0,
) -> ProcessXray:
    """An X-ray of a process of 200 MiB, which searched for the weights of m.onnx.

    Other processes map `shared` bytes of each owner.
    """
    owned: tuple[tuple[OwnerKind, str, int], ...] = (
        ("arena", "slack", slack),
        ("allocator_retained", "freed blocks that malloc keeps", retained),
        ("python", "objects", 200 * MIB - slack - retained),
    )
    arena = ArenaUsage(
        session=None,
        used_bytes=0,
        slack_bytes=slack if reserved is None else reserved,
        resident_slack_bytes=slack,
        resident_used_bytes=0,
    )
    return ProcessXray(
        pid=pid,
        duration_s=0.5,
        t_s=t_s,
        reason="end",
        attribution=attribution(
            pid,
            [
                Owner(
                    kind=kind,
                    name=name,
                    bytes=size,
                    private_bytes=max(0, size - shared),
                )
                for kind, name, size in owned
            ],
            [arena] * arenas,
            copies=copies,
            models=(SearchedModel(name="m.onnx", weight_bytes=WEIGHTS),),
        ),
    )


def program(*sessions: ProgramSession, **changes: Any) -> ProgramRun:
    """A recording of 100 s, with a process for each of the sessions' pids."""
    pids = dict.fromkeys(session.pid for session in sessions)
    given: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "command": ("python", "app.py"),
        "duration_s": 100.0,
        "exit_code": 0,
        "environment": environment(),
        "peak_rss_bytes": 200 * MIB,
        "peak_s": 50.0,
        "peak_pss_bytes": None,
        "processes": tuple(map(process, pids)),
        "sessions": sessions,
        "peaks": (),
        "samples": TreeSamples(
            t_s=(), rss_bytes=(), proportional_t_s=(), pss_bytes=(), swap_bytes=()
        ),
        "xrays": (),
        "findings": (),
        "notes": (),
    }
    return ProgramRun(**{**given, **changes})


def findings(rule: str, run: ProgramRun) -> list[ProgramFinding]:
    """Return what the rule called `rule` finds in `run`."""
    (detector,) = (each for each in program_detectors() if each.rule.name == rule)
    return list(detector.detect(run))

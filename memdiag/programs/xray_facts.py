"""Facts of X-rays, with or without recorded sessions: owners, and copies by model."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from memdiag.records.attribution import Copy, OwnerKind
from memdiag.records.run import ProcessXray, ProgramRun, ProgramSession
from memdiag.units import MIB, some_of

MIN_OWNER_BYTES = 16 * MIB
MIN_OWNER_SHARE = 0.1


class ModelKey(NamedTuple):
    """A model that was searched for; models are the same if name and size of the weights are."""

    name: str
    weight_bytes: int


def last_xrays(run: ProgramRun) -> list[ProcessXray]:
    """Return the last X-ray of each process, in the order of the processes."""
    last = {xray.pid: xray for xray in sorted(run.xrays, key=lambda xray: xray.t_s)}
    return [last[process.pid] for process in run.processes if process.pid in last]


def unrecorded_xrays(run: ProgramRun) -> list[ProcessXray]:
    """Return the last X-ray of each process whose sessions are not recorded."""
    recorded = {session.pid for session in run.sessions}
    return [xray for xray in last_xrays(run) if xray.pid not in recorded]


def owned_bytes(xray: ProcessXray, kind: OwnerKind, name: str | None = None) -> int:
    """Return the resident bytes of the owners of `kind`, or of those named `name`."""
    owners = xray.attribution.owners
    return sum(each.bytes for each in owners if each.kind == kind and name in (None, each.name))


def large_owners(
    run: ProgramRun, kind: OwnerKind, name: str | None = None
) -> list[tuple[ProcessXray, int]]:
    """Return the last X-ray of each process in which the owners of `kind` take much memory.

    Much is at least `MIN_OWNER_BYTES` and `MIN_OWNER_SHARE` of the process's memory. Each X-ray
    comes with the resident bytes of the owners; with `name`, of the owners of that name.
    """
    return [
        (xray, size)
        for xray in last_xrays(run)
        if (size := owned_bytes(xray, kind, name)) >= MIN_OWNER_BYTES
        and size >= MIN_OWNER_SHARE * xray.attribution.resident_bytes
    ]


def weight_copies(xray: ProcessXray) -> dict[ModelKey, list[Copy]]:
    """Return the copies in use by their model; copies of several models are in none."""
    models = xray.attribution.models
    found: dict[ModelKey, list[Copy]] = {}
    for copy in xray.attribution.copies:
        indices = copy.models or (tuple(range(len(models))) if len(models) == 1 else ())
        if copy.in_use is not False and len(indices) == 1:
            model = models[indices[0]]
            found.setdefault(ModelKey(model.name, model.weight_bytes), []).append(copy)
    return found


def is_private(copy: Copy) -> bool:
    """Return whether `copy` is in memory that is not mapped from a file."""
    return copy.backing.kind == "anonymous"


def same_form(copies: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Yield the copies of the same weight in the same layout together."""
    found: defaultdict[Hashable, list[Copy]] = defaultdict(list)
    for copy in copies:
        parameters = tuple(sorted(copy.parameters.items()))
        found[copy.weights, copy.layout, copy.kind, parameters].append(copy)
    yield from found.values()


def listed_processes(xrays: Iterable[ProcessXray]) -> str:
    """Return ``process 12``, or ``processes 12, 13 and 5 more``."""
    pids = [str(xray.pid) for xray in xrays]
    return f"process{'es' if len(pids) > 1 else ''} {some_of(pids)}"


def sessions_in(run: ProgramRun, xrays: Iterable[ProcessXray]) -> list[ProgramSession]:
    """Return the recorded sessions of the processes of `xrays` that had memory there."""
    pids = {xray.pid for xray in xrays}
    return [session for session in run.sessions if session.pid in pids and session.memory]

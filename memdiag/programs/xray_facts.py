"""Facts from X-rays, with or without recorded sessions: owners, and copies by model."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memdiag.records.attribution import Attribution, Copy, OwnerKind
from memdiag.records.run import ProcessXray, ProgramRun, ProgramSession
from memdiag.units import MIB

MIN_OWNER_BYTES = 16 * MIB
MIN_OWNER_SHARE = 0.1


class ModelKey(NamedTuple):
    """A model that was searched for. Models with the same name and size of weights are the same."""

    name: str
    weight_bytes: int


def last_xrays(recording: ProgramRun) -> list[ProcessXray]:
    """Return the last X-ray of each process, in the order of the processes."""
    last_xray_by_pid = {
        xray.pid: xray for xray in sorted(recording.xrays, key=lambda xray: xray.t_s)
    }
    return [
        last_xray_by_pid[process.pid]
        for process in recording.processes
        if process.pid in last_xray_by_pid
    ]


def unrecorded_xrays(recording: ProgramRun) -> list[ProcessXray]:
    """Return the last X-ray of each process whose sessions are not recorded.

    The sessions of a fork that inherited them are recorded in the process that created them.
    """
    recorded_pids = {session.pid for session in recording.sessions}
    recorded_pids |= {process.pid for process in recording.processes if process.inherited}
    return [xray for xray in last_xrays(recording) if xray.pid not in recorded_pids]


class PartOfProcess(NamedTuple):
    """Memory of one kind in a process.

    Attributes:
        bytes: the resident bytes.
        private_bytes: the part that no other process maps.
    """

    xray: ProcessXray
    bytes: int
    private_bytes: int


def large_owners(
    recording: ProgramRun, kind: OwnerKind, name: str | None = None
) -> list[PartOfProcess]:
    """Return the memory of the owners of `kind` in each process where they take much of it.

    They take much if it is at least `MIN_OWNER_BYTES`, and `MIN_OWNER_SHARE` of the process's
    memory, in its last X-ray. With `name`, only owners of that name count.
    """
    parts = []
    for xray in last_xrays(recording):
        owners = [
            owner
            for owner in xray.attribution.owners
            if owner.kind == kind and name in (None, owner.name)
        ]
        size = sum(owner.bytes for owner in owners)
        if size >= max(MIN_OWNER_BYTES, MIN_OWNER_SHARE * xray.attribution.resident_bytes):
            private_bytes = sum(owner.private_bytes for owner in owners)
            parts.append(PartOfProcess(xray, size, private_bytes))
    return parts


def shared_once_bytes(recording: ProgramRun, parts: Sequence[PartOfProcess]) -> int:
    """Return the bytes of all `parts`, with pages that forks share counted once.

    A fork shares pages with its parent, whose X-ray has all of them. If the parent has no X-ray,
    its forks share pages with each other.
    """
    parents = {process.pid: process.parent for process in recording.processes}
    listed_pids = {part.xray.pid for part in parts}
    shared_bytes_by_parent: dict[int, int] = {}
    total_bytes = 0
    for xray, size, private_bytes in parts:
        total_bytes += private_bytes
        if listed_pids.isdisjoint(_ancestor_ids(xray.pid, parents)):
            parent = parents.get(xray.pid, 0)
            shared_bytes_by_parent[parent] = max(
                shared_bytes_by_parent.get(parent, 0), size - private_bytes
            )
    return total_bytes + sum(shared_bytes_by_parent.values())


def _ancestor_ids(pid: int, parents: Mapping[int, int]) -> set[int]:
    """Return the ancestors of process `pid`, even if the system has reused an id."""
    ancestors: set[int] = set()
    current = parents.get(pid)
    while current is not None and current not in ancestors:
        ancestors.add(current)
        current = parents.get(current)
    return ancestors - {pid}


def weight_copies(attribution: Attribution) -> dict[ModelKey, list[Copy]]:
    """Return the copies in use by their model, without copies that belong to several models."""
    models = attribution.models
    copies: dict[ModelKey, list[Copy]] = {}
    for copy in attribution.copies:
        indices = copy.models or (tuple(range(len(models))) if len(models) == 1 else ())
        if copy.in_use is not False and len(indices) == 1:
            model = models[indices[0]]
            copies.setdefault(ModelKey(model.name, model.weight_bytes), []).append(copy)
    return copies


def is_private(copy: Copy) -> bool:
    """Return whether `copy` is in memory that is not mapped from a file."""
    return copy.backing.kind == "anonymous"


def copies_by_form(copies: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Yield the copies of the same weight in the same layout together."""
    groups: defaultdict[Hashable, list[Copy]] = defaultdict(list)
    for copy in copies:
        parameters = tuple(sorted(copy.parameters.items()))
        groups[copy.weights, copy.layout, copy.kind, parameters].append(copy)
    yield from groups.values()


def sessions_in(recording: ProgramRun, xrays: Iterable[ProcessXray]) -> list[ProgramSession]:
    """Return the recorded sessions of the processes of `xrays` whose memory is known."""
    pids = {xray.pid for xray in xrays}
    return [session for session in recording.sessions if session.pid in pids and session.memory]

"""The owners of a program's memory by process and session: tables, and tiles of the treemap."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from memdiag.records.attribution import Attribution
from memdiag.records.run import ProcessXray, ProgramProcess, ProgramRun, ProgramSession
from memdiag.reports.run.names import created_text, model_names, process_name
from memdiag.reports.table import Table
from memdiag.reports.text import plain, shortened
from memdiag.reports.xray.charts import TreemapTile, make_tile
from memdiag.reports.xray.memory_owners import OWNER_KIND_LABELS, OwnerRow, owner_rows, owner_table
from memdiag.units import format_duration, format_size

_MAX_OWNER_PARTS = 4
_MAX_OWNER_NAME = 40
WEIGHTS_KIND: Final = "original"
"""The kind of copy whose colour all weights have: they are not divided by kind here."""
_XRAY_REASON_WORDS = {"end": "at its end", "peak": "near a peak", "request": "on request"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOwners:
    """The owners of the memory of a process at its last X-ray.

    Attributes:
        moment: when the X-ray was taken: ``at its end (12 s)``.
        rows: the owners; weights are divided by model, arenas by session.
        notes: what the X-ray could not read.
    """

    process: ProgramProcess
    xray: ProcessXray
    moment: str
    rows: tuple[OwnerRow, ...]
    notes: tuple[str, ...]

    def table(self) -> Table:
        """Return the table of the owners."""
        table = owner_table(
            self.rows, heading=f"owner ({self.process.pid})", weights_kind=WEIGHTS_KIND
        )
        return replace(table, caption=" ".join(f"Note: {note}." for note in self.notes))


def process_owners(recording: ProgramRun) -> tuple[ProcessOwners, ...]:
    """Return the owners of each process with an X-ray, that with most memory first."""
    last = {xray.pid: xray for xray in sorted(recording.xrays, key=lambda xray: xray.t_s)}
    found = []
    for process in recording.processes:
        xray = last.get(process.pid)
        if xray is None:
            continue
        found.append(
            ProcessOwners(
                process=process,
                xray=xray,
                moment=f"{_xray_reason_text(recording, xray)}, after {format_duration(xray.t_s)}",
                rows=tuple(
                    _divided_owner_row(row, recording, xray) for row in owner_rows(xray.attribution)
                ),
                notes=tuple(map(plain, xray.attribution.notes)),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.xray.attribution.resident_bytes))


def _xray_reason_text(recording: ProgramRun, xray: ProcessXray) -> str:
    if recording.is_watched and xray.reason == "end":
        return "at the end of the recording"
    return _XRAY_REASON_WORDS[xray.reason]


def _xrayed_sessions(recording: ProgramRun, pid: int) -> list[ProgramSession]:
    """Return the sessions of process `pid` that the X-ray found."""
    return [session for session in recording.sessions if session.pid == pid and session.memory]


def _divided_owner_row(row: OwnerRow, recording: ProgramRun, xray: ProcessXray) -> OwnerRow:
    """Return `row` with its parts by model, or by session, as its sentence."""
    sessions = _xrayed_sessions(recording, xray.pid)
    sizes: dict[str, int] = {}
    # The memory of sessions is that in the process that created them: a fork has models only.
    if row.kind == "weights" and (recording.is_watched or not sessions):
        sizes = _weight_bytes_by_model(xray.attribution)
    elif row.kind == "weights":
        names = model_names(recording)
        for session in sessions:
            name = shortened(names[session.model_key], _MAX_OWNER_NAME)
            sizes[name] = sizes.get(name, 0) + _session_weight_bytes(session)
    elif row.id in ("arena_in_use", "arena_slack"):
        for session in sessions:
            used, slack = _resident_arena_bytes(session)
            sizes[f"session {session.number}"] = used if row.id == "arena_in_use" else slack
    parts = sorted(((size, name) for name, size in sizes.items() if size), reverse=True)
    if not parts:
        return row
    text = ", ".join(f"{name} {format_size(size)}" for size, name in parts[:_MAX_OWNER_PARTS])
    more = f" and {len(parts) - _MAX_OWNER_PARTS} more" if len(parts) > _MAX_OWNER_PARTS else ""
    # Arenas reserve memory, not all of which is resident.
    total = sum(size for size, _ in parts)
    kind = "reserved: " if row.kind == "arena" and total > row.size_bytes else ""
    if row.kind == "weights":
        kind = "resident copies: "
    return replace(row, sentence=f"{kind}{text}{more}", parts="")


def _weight_bytes_by_model(attribution: Attribution) -> dict[str, int]:
    """Return the resident copies of each model's weights; models share equal weights evenly."""
    sizes: dict[str, int] = {}
    for copy in attribution.copies:
        models = copy.models or range(len(attribution.models[:1]))
        for index in models if copy.in_use is not False else ():
            name = shortened(plain(attribution.models[index].name), _MAX_OWNER_NAME)
            sizes[name] = sizes.get(name, 0) + copy.resident_bytes // len(models)
    return sizes


def _session_weight_bytes(session: ProgramSession) -> int:
    memory = session.memory
    return (memory.weight_bytes or 0) if memory else 0


def _resident_arena_bytes(session: ProgramSession) -> tuple[int, int]:
    memory = session.memory
    if memory is None:
        return 0, 0
    return memory.resident_used_bytes or 0, memory.resident_slack_bytes or 0


def program_tiles(recording: ProgramRun, *, max_sessions: int = 60) -> tuple[TreemapTile, ...]:
    """Return the tiles: processes, their sessions with weights and arena, and other owners.

    Each tile comes before those inside it.
    """
    found = process_owners(recording)
    if not found:
        return ()
    total = sum(each.xray.attribution.resident_bytes for each in found)
    made = [make_tile("all", "", "all processes with an X-ray", 0, total, "all")]
    for each in found:
        made += _process_tiles(recording, each, max_sessions)
    return tuple(made)


def _process_tiles(
    recording: ProgramRun, owners: ProcessOwners, max_sessions: int
) -> list[TreemapTile]:
    pid = owners.process.pid
    id = f"p{pid}"
    resident = owners.xray.attribution.resident_bytes
    name = shortened(f"{pid} {process_name(owners.process, recording)}", _MAX_OWNER_NAME)
    made = [make_tile(id, "all", name, 0, resident, "process", owners.moment)]
    left = {row.id: row.size_bytes for row in owners.rows}
    models = model_names(recording)
    sessions = sorted(
        _xrayed_sessions(recording, pid), key=lambda session: -_session_owned_bytes(session)
    )
    shares = {
        "weights": _scaled_sizes(
            [_session_weight_bytes(session) for session in sessions], left.get("weights", 0)
        ),
        "arena_in_use": _scaled_sizes(
            [_resident_arena_bytes(session)[0] for session in sessions], left.get("arena_in_use", 0)
        ),
        "arena_slack": _scaled_sizes(
            [_resident_arena_bytes(session)[1] for session in sessions], left.get("arena_slack", 0)
        ),
    }
    for index, session in enumerate(sessions[:max_sessions]):
        own = f"{id}s{session.number}"
        used, slack = _resident_arena_bytes(session)
        parts = (
            ("weights", WEIGHTS_KIND, "weights", _session_weight_bytes(session)),
            ("arena_in_use", "arena", "arena in use", used),
            ("arena_slack", "arena", "arena slack", slack),
        )
        inside = []
        for owner, kind, label, whole in parts:
            size = shares[owner][index]
            left[owner] = left.get(owner, 0) - size
            if size:
                detail = (
                    f"{format_size(whole)} reserved; the resident part of all arenas is divided in"
                    " proportion"
                    if size < whole and owner != "weights"
                    else ""
                )
                inside.append(make_tile(f"{own}{owner}", own, label, size, size, kind, detail))
        label = f"session {session.number} {shortened(models[session.model_key], _MAX_OWNER_NAME)}"
        if inside:
            size = sum(tile.size_bytes for tile in inside)
            made += [make_tile(own, id, label, 0, size, "session", created_text(session)), *inside]
    for row in owners.rows:
        size = left.get(row.id, 0)
        if size > 0:
            label = row.label
            if size < row.size_bytes:
                label = f"other {OWNER_KIND_LABELS[row.kind]}"
            kind = WEIGHTS_KIND if row.kind == "weights" else row.kind
            made.append(make_tile(f"{id}{row.id}", id, label, size, size, kind, row.parts))
    return made


def _session_owned_bytes(session: ProgramSession) -> int:
    return _session_weight_bytes(session) + sum(_resident_arena_bytes(session))


def _scaled_sizes(sizes: Sequence[int], limit: int) -> list[int]:
    """Return `sizes`, scaled down to `limit` bytes in all."""
    total = sum(sizes)
    if total <= limit:
        return list(sizes)
    return [size * limit // total for size in sizes]

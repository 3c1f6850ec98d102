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
"""The kind of copy whose colour all weights get, because they are not divided by kind here."""
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
    """Return the owners of each process with an X-ray, the largest process first."""
    last_xray_by_pid = {
        xray.pid: xray for xray in sorted(recording.xrays, key=lambda xray: xray.t_s)
    }
    owners_of_processes = []
    for process in recording.processes:
        xray = last_xray_by_pid.get(process.pid)
        if xray is None:
            continue
        owners_of_processes.append(
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
    return tuple(
        sorted(owners_of_processes, key=lambda owners: -owners.xray.attribution.resident_bytes)
    )


def _xray_reason_text(recording: ProgramRun, xray: ProcessXray) -> str:
    if recording.is_watched and xray.reason == "end":
        return "at the end of the recording"
    return _XRAY_REASON_WORDS[xray.reason]


def _xrayed_sessions(recording: ProgramRun, pid: int) -> list[ProgramSession]:
    """Return the sessions of process `pid` that the X-ray found."""
    return [session for session in recording.sessions if session.pid == pid and session.memory]


def _divided_owner_row(row: OwnerRow, recording: ProgramRun, xray: ProcessXray) -> OwnerRow:
    """Return `row` with a sentence that lists its parts by model or by session."""
    sessions = _xrayed_sessions(recording, xray.pid)
    size_by_name: dict[str, int] = {}
    # Sessions have memory only in the process that created them, so a fork is divided by model.
    if row.kind == "weights" and (recording.is_watched or not sessions):
        size_by_name = _weight_bytes_by_model(xray.attribution)
    elif row.kind == "weights":
        names = model_names(recording)
        for session in sessions:
            name = shortened(names[session.model_key], _MAX_OWNER_NAME)
            size_by_name[name] = size_by_name.get(name, 0) + _session_weight_bytes(session)
    elif row.id in ("arena_in_use", "arena_slack"):
        for session in sessions:
            used, slack = _resident_arena_bytes(session)
            size_by_name[f"session {session.number}"] = used if row.id == "arena_in_use" else slack
    parts = sorted(((size, name) for name, size in size_by_name.items() if size), reverse=True)
    if not parts:
        return row
    text = ", ".join(f"{name} {format_size(size)}" for size, name in parts[:_MAX_OWNER_PARTS])
    more_text = (
        f" and {len(parts) - _MAX_OWNER_PARTS} more" if len(parts) > _MAX_OWNER_PARTS else ""
    )
    # Arenas reserve memory, and only a part of it may be resident.
    total_bytes = sum(size for size, _ in parts)
    kind = "reserved: " if row.kind == "arena" and total_bytes > row.size_bytes else ""
    if row.kind == "weights":
        kind = "resident copies: "
    return replace(row, sentence=f"{kind}{text}{more_text}", parts="")


def _weight_bytes_by_model(attribution: Attribution) -> dict[str, int]:
    """Return the bytes of resident weight copies by model. Equal weights are divided evenly."""
    bytes_by_model: dict[str, int] = {}
    for copy in attribution.copies:
        models = copy.models or range(len(attribution.models[:1]))
        for index in models if copy.in_use is not False else ():
            name = shortened(plain(attribution.models[index].name), _MAX_OWNER_NAME)
            bytes_by_model[name] = bytes_by_model.get(name, 0) + copy.resident_bytes // len(models)
    return bytes_by_model


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
    owners_of_processes = process_owners(recording)
    if not owners_of_processes:
        return ()
    total_bytes = sum(owners.xray.attribution.resident_bytes for owners in owners_of_processes)
    tiles = [make_tile("all", "", "all processes with an X-ray", 0, total_bytes, "all")]
    for owners in owners_of_processes:
        tiles += _process_tiles(recording, owners, max_sessions)
    return tuple(tiles)


def _process_tiles(
    recording: ProgramRun, owners: ProcessOwners, max_sessions: int
) -> list[TreemapTile]:
    pid = owners.process.pid
    process_id = f"p{pid}"
    resident_bytes = owners.xray.attribution.resident_bytes
    name = shortened(f"{pid} {process_name(owners.process, recording)}", _MAX_OWNER_NAME)
    tiles = [make_tile(process_id, "all", name, 0, resident_bytes, "process", owners.moment)]
    undivided_bytes = {row.id: row.size_bytes for row in owners.rows}
    models = model_names(recording)
    sessions = sorted(
        _xrayed_sessions(recording, pid), key=lambda session: -_session_owned_bytes(session)
    )
    sizes_by_owner = {
        "weights": _scaled_sizes(
            [_session_weight_bytes(session) for session in sessions],
            undivided_bytes.get("weights", 0),
        ),
        "arena_in_use": _scaled_sizes(
            [_resident_arena_bytes(session)[0] for session in sessions],
            undivided_bytes.get("arena_in_use", 0),
        ),
        "arena_slack": _scaled_sizes(
            [_resident_arena_bytes(session)[1] for session in sessions],
            undivided_bytes.get("arena_slack", 0),
        ),
    }
    for index, session in enumerate(sessions[:max_sessions]):
        session_id = f"{process_id}s{session.number}"
        used_bytes, slack_bytes = _resident_arena_bytes(session)
        parts = (
            ("weights", WEIGHTS_KIND, "weights", _session_weight_bytes(session)),
            ("arena_in_use", "arena", "arena in use", used_bytes),
            ("arena_slack", "arena", "arena slack", slack_bytes),
        )
        part_tiles = []
        for owner, kind, label, reserved_bytes in parts:
            size = sizes_by_owner[owner][index]
            undivided_bytes[owner] = undivided_bytes.get(owner, 0) - size
            if size:
                detail = (
                    f"{format_size(reserved_bytes)} reserved; the resident part of all arenas is"
                    " divided in proportion"
                    if size < reserved_bytes and owner != "weights"
                    else ""
                )
                part_tiles.append(
                    make_tile(f"{session_id}{owner}", session_id, label, size, size, kind, detail)
                )
        label = f"session {session.number} {shortened(models[session.model_key], _MAX_OWNER_NAME)}"
        if part_tiles:
            size = sum(tile.size_bytes for tile in part_tiles)
            tiles += [
                make_tile(session_id, process_id, label, 0, size, "session", created_text(session)),
                *part_tiles,
            ]
    for row in owners.rows:
        size = undivided_bytes.get(row.id, 0)
        if size > 0:
            label = row.label
            if size < row.size_bytes:
                label = f"other {OWNER_KIND_LABELS[row.kind]}"
            kind = WEIGHTS_KIND if row.kind == "weights" else row.kind
            tiles.append(
                make_tile(f"{process_id}{row.id}", process_id, label, size, size, kind, row.parts)
            )
    return tiles


def _session_owned_bytes(session: ProgramSession) -> int:
    return _session_weight_bytes(session) + sum(_resident_arena_bytes(session))


def _scaled_sizes(sizes: Sequence[int], limit: int) -> list[int]:
    """Return `sizes`, scaled down so that their sum is at most `limit` bytes."""
    total_bytes = sum(sizes)
    if total_bytes <= limit:
        return list(sizes)
    return [size * limit // total_bytes for size in sizes]

"""History of profiles, in an SQLite file to which several processes can append."""

import hashlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from memdiag.budgets.figures import figures_of
from memdiag.errors import RecordError, UsageError
from memdiag.records.codec import encode
from memdiag.records.files import special_kind
from memdiag.records.history import HISTORY_SCHEMA, History, HistoryEntry
from memdiag.records.profile import Profile

_APPLICATION = 0x6D656D64  # "memd": distinguishes the file from databases of other programs
_VERSION = 1
MAX_WAIT_S = 30.0
_PAGE_BYTES = 4096
"""Bytes of a page of SQLite: a database of one page has no tables."""

_TABLES = """
CREATE TABLE profiles (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    added_s REAL NOT NULL,
    label TEXT NOT NULL,
    model TEXT NOT NULL,
    onnxruntime TEXT,
    memdiag TEXT NOT NULL,
    machine TEXT NOT NULL
) STRICT;
CREATE TABLE figures (
    profile INTEGER NOT NULL REFERENCES profiles (id),
    name TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (profile, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX profiles_of_model ON profiles (model, id);
"""


def add(path: Path, profiles: Sequence[Profile], *, label: str = "") -> int:
    """Append `profiles` to the history at `path`, all or none; the file is created if missing.

    Return the number of new profiles: a profile is not added twice.

    Raises:
        UsageError: a profile is of a run that did not complete.
        RecordError: the file is not a history, or is of a newer memdiag, or cannot be written.
    """
    for profile in profiles:
        if profile.outcome.status != "completed":
            raise UsageError(
                f"{profile.model.path}: the run {profile.outcome.status} in"
                f" {profile.outcome.phase}. Add profiles of runs that completed."
            )
    with _opened(path, create=True) as database, _transaction(database):
        return sum(_add(database, profile, label) for profile in profiles)


def show(path: Path, *, model: str | None = None) -> History:
    """Return the history at `path`, or the part of it for `model`.

    Raises:
        UsageError: it does not contain the model.
        RecordError: there is no such file, it is not a history, or it is of a newer memdiag.
    """
    with _opened(path, create=False) as database:
        entries = tuple(_entries(database))
    if model is None:
        return History(schema=HISTORY_SCHEMA, entries=entries)
    chosen = tuple(entry for entry in entries if entry.model == model)
    if not chosen:
        known = ", ".join(sorted({entry.model for entry in entries})) or "nothing"
        raise UsageError(f"{path}: unknown model {model!r}. The history contains {known}.")
    return History(schema=HISTORY_SCHEMA, entries=chosen)


@contextmanager
def _opened(path: Path, *, create: bool) -> Iterator[sqlite3.Connection]:
    """Open the database, with its tables; errors of SQLite are raised as RecordError."""
    if not create and not path.exists():
        raise RecordError(f"{path}: there is no such history. Create it with memdiag history add.")
    kind = special_kind(path)
    if kind is not None:
        raise RecordError(f"{path}: cannot be used as a history (it is {kind}). Name another file.")
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No implicit transactions: each is begun where it is meant.
        with closing(sqlite3.connect(path, timeout=MAX_WAIT_S, isolation_level=None)) as database:
            # A journal that writers append to, beside which others may read.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA foreign_keys = ON")
            _prepare(database, path)
            yield database
    except (sqlite3.Error, OSError) as error:
        if is_new:
            _remove_if_empty(path)
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecordError(
            f"{path}: cannot be used as a history ({reason}). Name another file with --file."
        ) from error


def _remove_if_empty(path: Path) -> None:
    """Remove a history file without tables, as a full disk leaves it."""
    journal, memory = (path.with_name(path.name + end) for end in ("-wal", "-shm"))
    with suppress(sqlite3.Error, OSError):
        has_pages = path.stat().st_size > _PAGE_BYTES
        if has_pages or (journal.exists() and journal.stat().st_size):
            with closing(sqlite3.connect(path)) as database:
                if database.execute("SELECT count(*) FROM profiles").fetchone() != (0,):
                    return
        for left in (path, journal, memory):
            left.unlink(missing_ok=True)


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file; refuse a database of another program."""
    with _transaction(database):
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if application == _APPLICATION and version > _VERSION:
            raise RecordError(
                f"{path}: this history is of a newer memdiag (its version {version}, known up to"
                f" {_VERSION}); update memdiag."
            )
        if application != _APPLICATION and (tables or application or version):
            raise RecordError(
                f"{path}: this database is not a history of memdiag. Name another file."
            )
        if application != _APPLICATION:
            for statement in _TABLES.strip().split(";\n"):
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_VERSION}")


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Write everything in the block or nothing; one process writes at a time."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _add(database: sqlite3.Connection, profile: Profile, label: str) -> bool:
    environment = profile.environment
    row = (
        hashlib.sha256(encode(profile)).hexdigest(),
        time.time(),
        label,
        profile.model.path,
        environment.onnxruntime,
        environment.memdiag,
        environment.machine,
    )
    added = database.execute(
        "INSERT INTO profiles (digest, added_s, label, model, onnxruntime, memdiag, machine)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING",
        row,
    )
    if added.rowcount == 0:
        return False
    database.executemany(
        "INSERT INTO figures (profile, name, value) VALUES (?, ?, ?)",
        [(added.lastrowid, name, value) for name, value in figures_of(profile).items()],
    )
    return True


def _entries(database: sqlite3.Connection) -> Iterator[HistoryEntry]:
    figures: dict[int, dict[str, int]] = {}
    rows = database.execute("SELECT profile, name, value FROM figures ORDER BY profile, name")
    for profile, name, value in rows:
        figures.setdefault(profile, {})[name] = value
    rows = database.execute(
        "SELECT id, added_s, label, model, onnxruntime, memdiag, machine FROM profiles ORDER BY id"
    )
    for key, added_s, label, model, onnxruntime, memdiag, machine in rows:
        yield HistoryEntry(
            added_s=added_s,
            label=label,
            model=model,
            onnxruntime=onnxruntime,
            memdiag=memdiag,
            machine=machine,
            figures=figures.get(key, {}),
        )

"""Memory that stays after the session was deleted: a sentence, its parts, and remedies."""

import shlex
from typing import NamedTuple

from memdiag.records.profile import Profile, SessionRelease
from memdiag.reports.table import Cell, Column, Row, Table
from memdiag.reports.text import plain
from memdiag.reports.xray.owners import trim_name
from memdiag.units import MIB, format_size

RELOAD_HINT = "Whether each reload adds to it:"

_MIN_PART_BYTES = MIB // 10


class KeptPart(NamedTuple):
    """A part of what stays.

    Attributes:
        sentence: what this memory is, in a few words.
    """

    label: str
    size_bytes: int
    sentence: str


def release_sentence(profile: Profile) -> str:
    """Return what stays after the release, in one sentence; empty if it was not measured."""
    release = profile.release
    if release is None:
        return ""
    if release.kept_bytes < _MIN_PART_BYTES:
        return "After release nothing stays above the baseline."
    kept = f"After release {format_size(release.kept_bytes)} stay above the baseline"
    parts = kept_parts(release)
    trimmed = _trimmed(profile)
    if not parts:
        return f"{kept}{f'; {trimmed}' if trimmed else ''}."
    texts = [f"{format_size(part.size_bytes)} {part.label}" for part in parts]
    for index, part in enumerate(parts):
        if part.label == _RETAINED and trimmed:
            texts[index] += f" ({trimmed})"
    return f"{kept}: {', '.join(texts)}."


def reload_command(profile: Profile) -> str:
    """Return the command that shows whether reloading adds memory; empty without a release."""
    if profile.release is None:
        return ""
    return f"memdiag leak {shlex.quote(plain(profile.model.path))} --reload"


def kept_parts(release: SessionRelease) -> tuple[KeptPart, ...]:
    """Return the parts of what stays, the largest first; none if they could not be read."""
    parts = (
        (_RETAINED, release.retained_bytes, "freed, not returned to the system"),
        ("libraries", release.library_bytes, "pages that were used for the first time"),
        ("in use", release.in_use_bytes, "blocks of malloc and Python objects that still exist"),
        ("mapped files", release.file_bytes, "the model's files, and shared memory"),
        ("other", release.other_bytes, "stacks, private mappings, allocators other than glibc's"),
    )
    kept = (
        KeptPart(label, size, sentence)
        for label, size, sentence in parts
        if size is not None and abs(size) >= _MIN_PART_BYTES
    )
    return tuple(sorted(kept, key=lambda part: -part.size_bytes))


def kept_table(profile: Profile) -> Table:
    """Return the table of the parts of what stays; without rows if there are none."""
    parts = kept_parts(profile.release) if profile.release else ()
    return Table(
        columns=(
            Column("stays after release"),
            Column("size", "right", css="strong"),
            Column("what it is", wraps=True, css="prose"),
        ),
        rows=tuple(
            Row(part.label, Cell(format_size(part.size_bytes)), part.sentence) for part in parts
        ),
    )


def remedy_table(profile: Profile) -> Table:
    """Return the table of remedies for what stays; without rows if none were measured."""
    release = profile.release
    rows: list[Row] = []
    if release is not None and release.remedies:
        rows.append(_row("(as it is)", release.kept_bytes, ""))
        if release.trim_returned_bytes is not None:
            left = release.kept_bytes - release.trim_returned_bytes
            name = _trim_name(profile)
            setting = f"{name}(0)" if name == "malloc_trim" else f"freed memory returned by {name}"
            rows.append(_row(name, left, f"{setting} after the release"))
        rows += [
            _row(plain(remedy.name), remedy.kept_bytes, plain(remedy.setting))
            for remedy in release.remedies
        ]
        rows.append(
            Row("child process", "0", "not measured: a process that ends returns all its memory")
        )
    return Table(
        columns=(
            Column("remedy"),
            Column("stays after release", "right", css="strong"),
            Column("setting", wraps=True, css="prose"),
        ),
        rows=tuple(rows),
    )


_RETAINED = "retained by malloc"


def _row(name: str, kept_bytes: int, setting: str) -> Row:
    return Row(name, format_size(kept_bytes), setting)


def _trim_name(profile: Profile) -> str:
    return trim_name(profile.attribution.allocator if profile.attribution else None)


def _trimmed(profile: Profile) -> str:
    size = profile.release.trim_returned_bytes if profile.release else None
    if size is None:
        return ""
    return f"{_trim_name(profile)} returns {format_size(size) if size else 'nothing'}"

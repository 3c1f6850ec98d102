"""The runtime's log lines that mark where a phase or a graph transformer starts or ends.

The format is ``YYYY-MM-DD HH:MM:SS.nnnnnnnnn [S:category:logger, file line function] message`` in
local time, with warnings and errors wrapped in terminal colours. Only the message is matched: the
place in the source moves with every release.

Log lines are untrusted. The runtime writes names of the model into them as they are, so that a
name with a line break can imitate a whole log line: that can add spans, give a span a wrong name or
time, or name a wrong transformer as the maker of a copy. Events cannot be imitated, because each
contains the secret of its process.
"""

import json
import re
import time
from collections import Counter
from typing import Any, Literal, NamedTuple

MarkerKind = Literal[
    "load",
    "initialize_session",
    "transformer_start",
    "transformer_end",
    "partitioned",
    "session_state",
    "save_initializers",
    "initializers_saved",
    "initialized",
]

_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*"
    rb"(?P<second>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(?P<fraction>\d+) "
    rb"\[(?P<severity>[VIWEF]):(?P<logger>[^\],]*)[^\]]*\] ?(?P<message>.*)"
)
_TRANSFORMER_START = re.compile(rb"Applying graph transformer ([!-~]{1,200}) on step (\d{1,9})\.")
_TRANSFORMER_END = re.compile(rb"GraphTransformer ([!-~]{1,200}) modified: ([01]) with status: ")
_ARENA = re.compile(
    rb"Allocated memory at (?:0x)?([0-9a-fA-F]{1,16}) to (?:0x)?([0-9a-fA-F]{1,16})(?![0-9a-fA-F])"
)
_REMOVED = re.compile(rb"Removing initializer '(.+)'\. It is no longer used by any node\.")
_RESERVED = re.compile(rb"Reserving memory in BFCArena for Cpu size: (\d{1,18})(?!\d)")
_ARENA_MADE = b"Creating BFCArena for Cpu "
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_FIXED: dict[bytes, MarkerKind] = {
    b"Dynamic block base set": "load",
    b"Initializing session.": "initialize_session",
    b"Running graph optimizations in loop ": "partitioned",  # logged since 1.23
    b"SaveMLValueNameIndexMapping": "session_state",
    b"Saving initialized tensors.": "save_initializers",
    b"Done saving initialized tensors": "initializers_saved",
    b"Session successfully initialized.": "initialized",
}
_EVENT_MARK = b"\x1ememdiag "
_MAX_LINES = 20
_MAX_CHARACTERS = 2000
_MAX_REMOVED = 100_000
_MAX_MARKERS = 100_000
_MAX_LINE_BYTES = 64 << 10
_MAX_EVENT_BYTES = 4096  # as the loader writes them


class Marker(NamedTuple):
    """One log line that means something: `epoch_s` is the runtime's own time stamp.

    `name` and `step` are those of a graph transformer, `modified` is what it said at its end.
    """

    kind: MarkerKind
    epoch_s: float
    name: str = ""
    step: int | None = None
    modified: bool | None = None


class Event(NamedTuple):
    """A step of the loader: its name and what it said, for example ``first_run`` and a latency."""

    name: str
    fields: dict[str, Any]


class LogReader:
    """Turns what arrives on the child's standard error into markers and events.

    `warnings` and `errors` collect the runtime's first lines of those severities; `tail` the last
    lines that were not the runtime's (a traceback, the message of an abort). `arena` are the
    address ranges by which the runtime's arena grew.

    `changed` are the graph transformers that changed the graph. `removed` has the initializers that
    went, by name, each with the transformer after whose change it was no longer used (empty for a
    name, of several graphs, that went after different ones); `removed_all` is False where there
    were more than are kept. `reserved` counts the buffers, by
    their bytes, that kernels reserved for packed weights; it is None where there is no arena for
    them.

    `secret` is that of the child, without which nothing is an event. Of a line longer than 64 KiB
    only the start is used, and no more than 100,000 lines count as markers.
    """

    def __init__(self, secret: str) -> None:
        self._event_mark = _EVENT_MARK + secret.encode() + b" "
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.tail: list[str] = []
        self.arena: list[tuple[int, int]] = []
        self.changed: set[str] = set()
        self.removed: dict[str, str] = {}
        self.removed_all = True
        self.reserved: Counter[int] | None = None
        self._changed_by = ""
        self._changed_in = b""
        self._packing = False
        self._rest = b""
        self._markers = 0
        self._second = b""
        self._second_epoch = 0.0

    def feed(self, chunk: bytes) -> list[Marker | Event]:
        """Return the markers and events of the lines that `chunk` completes, in order."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES + _MAX_EVENT_BYTES:
            # The end is kept as well: an event may start there.
            rest = rest[:_MAX_LINE_BYTES] + rest[-_MAX_EVENT_BYTES:]
        self._rest = rest
        found = (self._read(line) for line in lines)
        return [item for item in found if item is not None]

    def finish(self) -> None:
        """Take what is left as a line: the child is gone."""
        if self._rest:
            self._read(self._rest)
            self._rest = b""

    def _read(self, line: bytes) -> Marker | Event | None:
        before, mark, event = line.partition(self._event_mark)
        if mark:
            # Another thread's unfinished line may stand before it.
            _keep(self.tail, before)
            fields = json.loads(event)
            return Event(fields.pop("event"), fields)
        line = line[:_MAX_LINE_BYTES]
        match = _LINE.match(line)
        if match is None:
            _keep(self.tail, line)
            del self.tail[:-_MAX_LINES]
            return None
        severity, message = match["severity"], match["message"]
        if severity in b"WEF":
            lines = self.warnings if severity == b"W" else self.errors
            if len(lines) < _MAX_LINES:
                _keep(lines, message)
            return None
        marker = self._mark(message, match)
        if marker is not None:
            self._markers += 1
        return marker if self._markers <= _MAX_MARKERS else None

    def _mark(self, message: bytes, line: re.Match[bytes]) -> Marker | None:
        if message.startswith(b"Removing "):
            self._remove(message)
            return None
        # A transformer that changed the graph resolves it at once: what that removes is logged
        # right after the line of its end. Another line of the session's logger is somebody else's;
        # those of the process's come from its other threads, at any time.
        if line["logger"] == self._changed_in:
            self._changed_by = ""
        if start := _TRANSFORMER_START.match(message):
            return Marker("transformer_start", self._epoch(line), _text(start[1]), int(start[2]))
        if end := _TRANSFORMER_END.match(message):
            name, modified = _text(end[1]), end[2] == b"1"
            if modified:
                self._changed_by, self._changed_in = name, line["logger"]
                self.changed.add(name)
            return Marker("transformer_end", self._epoch(line), name, modified=modified)
        if grown := _ARENA.match(message):
            first, last = int(grown[1], 16), int(grown[2], 16)
            if first < last:
                self.arena.append((first, last))
            return None
        if message.startswith(_ARENA_MADE) and self.reserved is None:
            self.reserved = Counter()
        if reserved := _RESERVED.match(message):
            if self._packing and self.reserved is not None:
                self.reserved[int(reserved[1])] += 1
            return None
        for text, kind in _FIXED.items():
            if message.startswith(text):
                # Small initializers are reserved too, before; and runs may reserve, after.
                self._packing = kind == "initializers_saved"
                return Marker(kind, self._epoch(line))
        return None

    def _remove(self, message: bytes) -> None:
        removed = _REMOVED.fullmatch(message.rstrip())
        if not removed or not self._changed_by:
            return
        name = _text(removed[1])
        if name in self.removed:
            if self.removed[name] != self._changed_by:
                self.removed[name] = ""
        elif len(name) <= _MAX_CHARACTERS and len(self.removed) < _MAX_REMOVED:
            self.removed[name] = self._changed_by
        else:
            self.removed_all = False

    def _epoch(self, line: re.Match[bytes]) -> float:
        second = line["second"]
        if second != self._second:
            self._second = second
            try:
                parsed = time.strptime(second.decode(), "%Y-%m-%d %H:%M:%S")
                self._second_epoch = time.mktime(parsed)
            except (ValueError, OverflowError):
                # A date that does not exist, for instance: the time of arrival is used instead.
                self._second_epoch = 0.0
        return self._second_epoch + float(b"0." + line["fraction"])


def _keep(lines: list[str], line: bytes) -> None:
    text = _text(_COLOUR.sub(b"", line)).strip()[:_MAX_CHARACTERS]
    if text and text not in lines:
        lines.append(text)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")

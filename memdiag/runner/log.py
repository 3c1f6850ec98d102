"""Parsing of the child's output: onnxruntime's log lines, and the events of our scripts.

The format is ``YYYY-MM-DD HH:MM:SS.nnnnnnnnn [S:category:logger, file line function] message`` in
local time, with warnings and errors wrapped in terminal colours. Only the message is matched: the
place in the source moves with every release.

Log lines are untrusted. onnxruntime writes names of the model into them unescaped, so that a
name with a line break can imitate a whole log line: that can add spans, give a span a wrong name or
time, or name a wrong transformer as the maker of a copy. Events cannot be imitated, because each
contains the secret of its process.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "provider_assigned",
    "provider_compiles",
    "provider_compiled",
]

_RUNTIME_LOG_LINE = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*"
    rb"(?P<second>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(?P<fraction>\d+) "
    rb"\[(?P<severity>[VIWEF]):(?P<logger>[^\],]*)[^\]]*\] ?(?P<message>.*)"
)
_TRANSFORMER_START = re.compile(rb"Applying graph transformer ([!-~]{1,200}) on step (\d{1,9})\.")
_TRANSFORMER_END = re.compile(rb"GraphTransformer ([!-~]{1,200}) modified: ([01]) with status: ")
_ARENA_EXTENDS = re.compile(
    rb"Extending BFCArena for ([!-~]{1,64}?)\. bin_num:\d{1,9} "
    rb"\(requested\) num_bytes: (\d{1,18})(?!\d)"
)
_ARENA_GROWN = re.compile(
    rb"Allocated memory at (?:0x)?([0-9a-fA-F]{1,16}) to (?:0x)?([0-9a-fA-F]{1,16})(?![0-9a-fA-F])"
)
_INITIALIZER_REMOVED = re.compile(
    rb"Removing initializer '(.+)'\. It is no longer used by any node\."
)
_MEMORY_RESERVED = re.compile(
    rb"Reserving memory in BFCArena for ([!-~]{1,64}) size: (\d{1,18})(?!\d)"
)
_HOST_MEMORY = "Cpu"
_PINNED = "Pinned"
"""Suffix of onnxruntime's names of memory of the host that devices read."""

_ARENA_MADE = b"Creating BFCArena for Cpu "
_COLOUR_CODE = re.compile(rb"\x1b\[[0-9;]*m")
_MARKER_BY_TEXT: dict[bytes, MarkerKind] = {
    b"Dynamic block base set": "load",
    b"Initializing session.": "initialize_session",
    b"Running graph optimizations in loop ": "partitioned",  # logged since 1.23
    b"SaveMLValueNameIndexMapping": "session_state",
    b"Saving initialized tensors.": "save_initializers",
    b"Done saving initialized tensors": "initializers_saved",
    b"Session successfully initialized.": "initialized",
}
OPENVINO_NAME = "OpenVINO"
"""The maker of copies of weights that OpenVINO's execution provider compiled."""

_OPENVINO_LINE = b"[OpenVINO-EP] "
_OPENVINO_MARKER_BY_TEXT: dict[bytes, MarkerKind] = {
    b"Model is fully supported by OpenVINO": "provider_assigned",
    b"Supported subgraphs on OpenVINO: ": "provider_assigned",
    b"Starting backend initialization.": "provider_compiles",
    b"Backend created for graph ": "provider_compiled",
}
_EVENT_MARK = b"\x1ememdiag "
_MAX_KEPT_LINES = 20
_MAX_LINE_CHARACTERS = 2000
_MAX_REMOVED = 100_000
_MAX_MARKERS = 100_000
_MAX_LINE_BYTES = 64 << 10
_MAX_EVENT_BYTES = 4096  # as scripts/child.py writes them


class LogMarker(NamedTuple):
    """A log line that starts or ends a span.

    Attributes:
        kind: the step that the line reports.
        epoch_s: the time stamp of the line, in seconds since 1970.
        name: the name of the graph transformer, if the line is about one.
        step: the loop of graph optimizations in which the transformer starts, from 0.
        modified: whether the transformer changed the graph, in the line of its end.
    """

    kind: MarkerKind
    epoch_s: float
    name: str = ""
    step: int | None = None
    modified: bool | None = None


class ScriptEvent(NamedTuple):
    """A message of a script.

    Attributes:
        name: its name, such as ``first_run``.
        fields: its data, such as a latency, by name.
    """

    name: str
    fields: dict[str, Any]


AddressRanges = Sequence[tuple[int, int]]
"""Start and end (exclusive) of each address range."""


class ArenaRegion(NamedTuple):
    """A region by which an arena grew.

    Attributes:
        memory: onnxruntime's name of the memory, such as ``Cpu`` or ``Cuda``; empty if the log
            lacks it.
        start, end: the addresses.
        requested_bytes: the request that did not fit into the regions before; None if the log
            lacks it.
        epoch_s: the time stamp of the line, in seconds since 1970.
    """

    memory: str
    start: int
    end: int
    requested_bytes: int | None
    epoch_s: float


class ArenaReservation(NamedTuple):
    """An allocation of its own that an arena made outside its regions, as for weights.

    Attributes:
        memory: onnxruntime's name of the memory.
        bytes: the size.
        epoch_s: the time stamp of the line, in seconds since 1970.
    """

    memory: str
    bytes: int
    epoch_s: float


def is_host_memory(memory: str) -> bool:
    """Return whether `memory`, onnxruntime's name such as ``CudaPinned``, is memory of the host."""
    return memory.startswith(_HOST_MEMORY) or memory.endswith(_PINNED)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEvidence:
    """Facts about the creation of a session that its log proves.

    The order of the lines follows the optimized graph, not the model, and is not kept.

    Attributes:
        changed: names of the graph transformers that changed the graph.
        removed: names of the initializers that were removed, each with the transformer after whose
            change the initializer had no user, or `OPENVINO_NAME` after it had compiled a graph.
            The transformer is empty where several graphs have an initializer of that name and
            different transformers removed them.
        removed_all: whether every initializer that was removed is in `removed` or was removed
            without a transformer's change.
        reserved: number of buffers by their size in bytes that kernels reserved in the arena for
            packed weights; None where the session has no arena.
    """

    changed: frozenset[str]
    removed: Mapping[str, str]
    removed_all: bool
    reserved: Mapping[int, int] | None


class LogParser:
    """Parses the standard error of a child into markers and events.

    Of a line longer than 64 KiB only the start is used, and at most 100,000 lines become markers.

    Args:
        secret: the secret of the child. A line without it is never an event.

    Attributes:
        warnings: the first warnings of onnxruntime.
        errors: the first errors of onnxruntime.
        tail: the last lines that are not onnxruntime's, such as a traceback.
        regions: the regions by which the arenas of onnxruntime grew, on the host and on devices.
        device_reservations: what arenas reserved in the memory of devices.
    """

    def __init__(self, secret: str) -> None:
        self._event_mark = _EVENT_MARK + secret.encode() + b" "
        self.warnings: list[str] = []
        self.errors: list[str] = []
        self.tail: list[str] = []
        self.regions: list[ArenaRegion] = []
        self.device_reservations: list[ArenaReservation] = []
        self._extended_memory = ""
        self._requested_bytes: int | None = None
        self._changed: set[str] = set()
        self._removed: dict[str, str] = {}
        self._removed_all = True
        self._reserved: Counter[int] | None = None
        self._changed_by = ""
        self._changed_in = b""
        self._session_logger = b""
        self._packing = False
        self._unfinished_line = b""
        self._marker_count = 0
        self._second = b""
        self._second_epoch = 0.0

    def feed(self, chunk: bytes) -> list[LogMarker | ScriptEvent]:
        """Return the markers and events of the lines that `chunk` completes, in order."""
        *lines, unfinished = (self._unfinished_line + chunk).split(b"\n")
        if len(unfinished) > _MAX_LINE_BYTES + _MAX_EVENT_BYTES:
            # The end is kept too: an event may start there.
            unfinished = unfinished[:_MAX_LINE_BYTES] + unfinished[-_MAX_EVENT_BYTES:]
        self._unfinished_line = unfinished
        items = (self._parse_line(line) for line in lines)
        return [item for item in items if item is not None]

    def finish(self) -> None:
        """Parse the last, unfinished line, once the child has ended."""
        if self._unfinished_line:
            self._parse_line(self._unfinished_line)
            self._unfinished_line = b""

    @property
    def host_regions(self) -> list[tuple[int, int]]:
        """The address ranges of the regions in the memory of the host, or in unknown memory."""
        return [
            (region.start, region.end)
            for region in self.regions
            if not region.memory or is_host_memory(region.memory)
        ]

    def evidence(self) -> LogEvidence:
        """Return the facts about the session that the lines until now prove."""
        return LogEvidence(
            changed=frozenset(self._changed),
            removed=self._removed,
            removed_all=self._removed_all,
            reserved=self._reserved,
        )

    def _parse_line(self, line: bytes) -> LogMarker | ScriptEvent | None:
        other_text, mark, event = line.partition(self._event_mark)
        if mark:
            # Another thread's unfinished line may come before the event.
            _keep_log_line(self.tail, other_text)
            fields = json.loads(event)
            return ScriptEvent(fields.pop("event"), fields)
        line = line[:_MAX_LINE_BYTES]
        match = _RUNTIME_LOG_LINE.match(line)
        if match is None:
            _keep_log_line(self.tail, line)
            del self.tail[:-_MAX_KEPT_LINES]
            return None
        severity, message = match["severity"], match["message"]
        if severity in b"WEF":
            lines = self.warnings if severity == b"W" else self.errors
            if len(lines) < _MAX_KEPT_LINES:
                _keep_log_line(lines, message)
            return None
        marker = self._marker_of_message(message, match)
        if marker is not None:
            self._marker_count += 1
        return marker if self._marker_count <= _MAX_MARKERS else None

    def _marker_of_message(self, message: bytes, line: re.Match[bytes]) -> LogMarker | None:
        if message.startswith(b"Removing "):
            self._note_removed(message)
            return None
        # The graph is resolved right after a transformer changed it, so that removals are logged
        # right after the end of the transformer. Any other line of the session's logger ends them;
        # lines of the process's logger come from other threads, at any time.
        if line["logger"] == self._changed_in:
            self._changed_by = ""
        if start := _TRANSFORMER_START.match(message):
            return LogMarker(
                "transformer_start",
                self._epoch_seconds(line),
                _decoded_log_text(start[1]),
                int(start[2]),
            )
        if end := _TRANSFORMER_END.match(message):
            name, modified = _decoded_log_text(end[1]), end[2] == b"1"
            if modified:
                self._changed_by, self._changed_in = name, line["logger"]
                self._changed.add(name)
            return LogMarker("transformer_end", self._epoch_seconds(line), name, modified=modified)
        if extension := _ARENA_EXTENDS.match(message):
            self._extended_memory = extension[1].decode()
            self._requested_bytes = int(extension[2])
            return None
        if growth := _ARENA_GROWN.match(message):
            self._note_region(int(growth[1], 16), int(growth[2], 16), line)
            return None
        if message.startswith(_OPENVINO_LINE):
            return self._openvino_marker(message.removeprefix(_OPENVINO_LINE), line)
        if message.startswith(_ARENA_MADE) and self._reserved is None:
            self._reserved = Counter()
        if reservation := _MEMORY_RESERVED.match(message):
            self._note_reservation(reservation[1].decode(), int(reservation[2]), line)
            return None
        for text, kind in _MARKER_BY_TEXT.items():
            if message.startswith(text):
                # Only packed weights are reserved after this line. Before it small initializers
                # are reserved, and later runs may reserve memory.
                self._packing = kind == "initializers_saved"
                if kind == "initialize_session":
                    self._session_logger = line["logger"]
                return LogMarker(kind, self._epoch_seconds(line))
        return None

    def _openvino_marker(self, message: bytes, line: re.Match[bytes]) -> LogMarker | None:
        for text, kind in _OPENVINO_MARKER_BY_TEXT.items():
            if message.startswith(text):
                if kind == "provider_compiled":
                    # The process's logger wrote this line; the session's logger writes what is
                    # removed from the graph, after the last of its parts was compiled.
                    self._changed_by, self._changed_in = OPENVINO_NAME, self._session_logger
                return LogMarker(kind, self._epoch_seconds(line))
        return None

    def _note_region(self, start: int, end: int, line: re.Match[bytes]) -> None:
        """Note a region. The line lacks the arena's name, which the line before it has."""
        memory, requested_bytes = self._extended_memory, self._requested_bytes
        self._extended_memory, self._requested_bytes = "", None
        if start < end:
            epoch_s = self._epoch_seconds(line)
            self.regions.append(ArenaRegion(memory, start, end, requested_bytes, epoch_s))

    def _note_reservation(self, memory: str, size: int, line: re.Match[bytes]) -> None:
        if not is_host_memory(memory):
            epoch_s = self._epoch_seconds(line)
            self.device_reservations.append(ArenaReservation(memory, size, epoch_s))
        elif memory == _HOST_MEMORY and self._packing and self._reserved is not None:
            self._reserved[size] += 1

    def _note_removed(self, message: bytes) -> None:
        removal = _INITIALIZER_REMOVED.fullmatch(message.rstrip())
        if not removal or not self._changed_by:
            return
        name = _decoded_log_text(removal[1])
        if name in self._removed:
            if self._removed[name] != self._changed_by:
                self._removed[name] = ""
        elif len(name) <= _MAX_LINE_CHARACTERS and len(self._removed) < _MAX_REMOVED:
            self._removed[name] = self._changed_by
        else:
            self._removed_all = False

    def _epoch_seconds(self, line: re.Match[bytes]) -> float:
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


def _keep_log_line(lines: list[str], line: bytes) -> None:
    text = _decoded_log_text(_COLOUR_CODE.sub(b"", line)).strip()[:_MAX_LINE_CHARACTERS]
    if text and text not in lines:
        lines.append(text)


def _decoded_log_text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")

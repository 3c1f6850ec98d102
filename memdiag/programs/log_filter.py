"""Separation of onnxruntime's verbose log from the standard error of a program."""

import re
from collections.abc import Mapping
from typing import NamedTuple

LOGID_PREFIX = "memdiag-"
"""Start of the `logid` of recorded sessions; the session's number follows."""

_VERBOSE_LOG_LINE = re.compile(
    rb"(?P<before>(?:\x1b\[[0-9;]*m)*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ )"
    rb"\[(?P<severity>[VIWEF]):(?P<category>[^:\],]*):"
    + LOGID_PREFIX.encode()
    + rb"(?P<session>\d+)(?=,)"
)
_VERBOSE_LINE_START = re.compile(
    rb"(?:\x1b\[[0-9;]*m)*(?:\d{4}-[\d-]{0,5}(?: |$)|\d{1,4}$)|\x1b(?:\[[0-9;]{0,12}m?)?$"
)
"""The start of a log line, which may be incomplete."""

_SEVERITY_LETTERS = b"VIWEF"
_MAX_PENDING_BYTES = 64 << 10


class SessionLog(NamedTuple):
    """Severity and logid by which the log of a session is filtered.

    Attributes:
        severity: lines below it would not be logged without memdiag (0 verbose to 4 fatal).
        logid: the logid that the program gave to the session.
    """

    severity: int
    logid: str


class LogFilter:
    """Takes the log lines of recorded sessions out of a stream of bytes.

    Lines that the session would also have logged without memdiag stay, with the program's own
    logid. All other bytes stay as they are. An unfinished line is held back only as long as it may
    become a log line.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(
        self, data: bytes, logs: Mapping[int, SessionLog]
    ) -> tuple[bytes, list[tuple[int, bytes]]]:
        """Return the bytes to pass on, and the log lines with the numbers of their sessions."""
        *lines, unfinished_line = (self._pending + data).split(b"\n")
        passed_bytes = bytearray()
        session_lines = []
        for line in lines:
            match = _VERBOSE_LOG_LINE.search(line)  # after an unfinished line of another thread
            session = int(match["session"]) if match else 0
            if match is None or session not in logs:
                passed_bytes += line + b"\n"
                continue
            passed_bytes += line[: match.start()]
            session_lines.append((session, line[match.start() :]))
            log = logs[session]
            if _SEVERITY_LETTERS.index(match["severity"]) >= log.severity:
                head = b"[%s:%s:%s" % (match["severity"], match["category"], log.logid.encode())
                passed_bytes += match["before"] + head + line[match.end() :] + b"\n"
        start = _log_start(unfinished_line)
        passed_bytes += unfinished_line[:start]
        self._pending = unfinished_line[start:]
        return bytes(passed_bytes), session_lines

    def finish(self) -> bytes:
        """Return the bytes that were held back."""
        pending, self._pending = self._pending, b""
        return pending


def _log_start(line: bytes) -> int:
    """Return where a log line may start in the unfinished `line`; its length if nowhere."""
    if len(line) > _MAX_PENDING_BYTES:
        return len(line)
    match = _VERBOSE_LINE_START.search(line)
    return match.start() if match else len(line)

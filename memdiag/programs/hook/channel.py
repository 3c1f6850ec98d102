"""The connection of this process to ``memdiag run``, to which it sends its events.

`memdiag/programs/events.py` lists the events. An event is one line of JSON, and so is its answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANSWER_S = 120


class HookChannel:
    """The connection to ``memdiag run``. After a failure it sends nothing more."""

    def __init__(self, address: str) -> None:
        self._address, _, self._secret = address.partition("#")
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._identity: Any = None
        self._question_count = 0
        self._received = b""

    def connect(self, **hello: Any) -> None:
        """Connect, and introduce this process."""
        self._lock = threading.Lock()
        self._received = b""
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(ANSWER_S)
            self._socket.connect(self._address.replace("@", "\0", 1))
            self._identity = file_identity(self._socket.fileno())
        except OSError:
            self._socket = None
        self.send("hello", secret=self._secret, pid=os.getpid(), **hello)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    def disconnect(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            if file_identity(self._socket.fileno()) == self._identity:
                self._socket.close()
            else:  # the program has closed our descriptor, and may have reused its number
                self._socket.detach()
            self._socket = None

    def send(self, event: str, *, descriptors: list[int] | None = None, **fields: Any) -> None:
        """Send one event without waiting."""
        with self._lock:
            self._send_event(event, descriptors or [], fields)

    def ask(self, event: str, *, descriptors: list[int] | None = None, **fields: Any) -> Any:
        """Send one event and return the answer to it; None if nobody answers."""
        with self._lock:
            self._question_count += 1
            fields["asks"] = question_number = self._question_count
            self._send_event(event, descriptors or [], fields)
            try:
                while self._socket is not None:
                    answer = self._receive_answer()
                    if answer.pop("answers", None) == question_number:
                        return answer or None
            except OSError:
                self.disconnect()
            return None

    def report(self, error: Exception) -> None:
        """Send an error of the hook. The program does not see it."""
        with contextlib.suppress(Exception):
            self.send("hook_failed", message=f"{type(error).__name__}: {error}"[:500])

    def _receive_answer(self) -> dict[str, Any]:
        """Return the next answer; empty if Ctrl-C has interrupted the wait for its start."""
        while b"\n" not in self._received:
            data = self._socket.recv(4096)  # type: ignore[union-attr]
            if not data:
                raise OSError
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        with contextlib.suppress(ValueError):
            return dict(json.loads(line))
        return {}

    def _send_event(self, event: str, descriptors: list[int], fields: dict[str, Any]) -> None:
        if self._socket is None:
            return
        if file_identity(self._socket.fileno()) != self._identity:
            self.disconnect()
            return
        fields["event"] = event
        line = json.dumps(fields, default=str).encode() + b"\n"
        try:
            sent_bytes = 0
            if descriptors:
                packed_descriptors = b"".join(
                    descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors
                )
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed_descriptors)]
                sent_bytes = self._socket.sendmsg([line], rights)
            self._socket.sendall(line[sent_bytes:])
        except OSError:
            self.disconnect()


def file_identity(descriptor: int) -> Any:
    """Return what distinguishes an open file from later ones with its number; None if closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino

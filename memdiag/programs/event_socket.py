"""The socket on which a recorder receives events: its address, and the connections of processes."""

import json
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from memdiag.programs.recorded_process import RecordedProcess
from memdiag.temporary_names import own_prefix

MAX_RECEIVED_EVENT_BYTES = 1 << 20
_RECEIVED_CHUNK_BYTES = 1 << 16
_PEER_CREDENTIALS = struct.Struct("3i")
"""Process, user and group (struct ucred)."""


@dataclass(eq=False)
class HookConnection:
    """The connection of one process.

    Attributes:
        socket: the connection.
        is_trusted: whether its first event had the secret.
        process: the process, once it has introduced itself.
        received: bytes of an unfinished event.
        descriptors: descriptors that arrived with the event that is being received.
    """

    socket: socket.socket
    is_trusted: bool = False
    process: RecordedProcess | None = None
    received: bytes = b""
    descriptors: list[int] = field(default_factory=list)

    def pass_descriptors(self) -> list[int]:
        """Return the descriptors of this event. The caller must close them."""
        passed_descriptors, self.descriptors = self.descriptors, []
        return passed_descriptors

    def answer(
        self, asks: int | None, peak_rss_bytes: int | None, wait_s: float | None = None
    ) -> None:
        """Answer the event with the number `asks`; `peak_rss_bytes` is None if the event was lost.

        `wait_s` is the time in seconds until the next reading between runs, if it is known.
        """
        content: dict[str, float | None] = {"answers": asks}
        if wait_s is not None:
            content["wait_s"] = wait_s
        if peak_rss_bytes is not None:
            content["peak_rss_bytes"] = peak_rss_bytes
        self.send_line(json.dumps(content).encode())

    def send_line(self, line: bytes) -> None:
        """Send one line of JSON, unless the process has ended."""
        with suppress(OSError):
            self.socket.sendall(line + b"\n")


class EventSocket:
    """Receives lines of events, which `handle` interprets.

    Args:
        selector: calls its handlers when data has arrived.
        handle: called with the connection and the fields of an event. It returns False if the
            sender cannot be the hook: the sender is then disconnected.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        handle: Callable[[HookConnection, dict[str, Any]], bool],
    ) -> None:
        self._selector = selector
        self._handle = handle
        self._secret = secrets.token_hex(16)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"{own_prefix()}{secrets.token_hex(4)}"
        # An abstract address is not a file: processes of other users can reach it.
        self._address = f"@{name}"
        self._listener.bind(f"\0{name}")
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept_connection)

    @property
    def address(self) -> str:
        """The address with the secret, for processes and for requests of X-rays."""
        return f"{self._address}#{self._secret}"

    def close(self) -> None:
        """Close the socket and all connections."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):  # the listener, and connections
                key.fileobj.close()

    def _accept_connection(self, listener: socket.socket) -> None:
        with suppress(OSError):
            peer_socket, _ = listener.accept()
            connection = HookConnection(peer_socket)
            self._selector.register(
                peer_socket, selectors.EVENT_READ, lambda _: self._receive_events(connection)
            )

    def _receive_events(self, connection: HookConnection) -> None:
        try:
            data, ancillary, _, _ = connection.socket.recvmsg(_RECEIVED_CHUNK_BYTES, 1024)
        except OSError:
            data, ancillary = b"", []
        for level, kind, packed_descriptors in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = memoryview(
                    packed_descriptors[: len(packed_descriptors) // 4 * 4]
                ).cast("i")
                connection.descriptors.extend(descriptors)
        if not data:
            self._close_connection(connection)
            return
        *lines, connection.received = (connection.received + data).split(b"\n")
        if len(connection.received) > MAX_RECEIVED_EVENT_BYTES:
            self._close_connection(connection)
            return
        for line in lines:
            if not self._handle_line(connection, line):
                self._close_connection(connection)
                return
        if not connection.is_trusted:  # a process of another user could use up all descriptors
            _close_descriptors(connection)

    def _close_connection(self, connection: HookConnection) -> None:
        with suppress(KeyError):
            self._selector.unregister(connection.socket)
            if connection.process is not None:
                connection.process.connections -= 1
        connection.socket.close()
        _close_descriptors(connection)

    def _handle_line(self, connection: HookConnection, line: bytes) -> bool:
        """Handle one event; return False if the sender cannot be the hook."""
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(fields, dict) or "event" not in fields:
            return False
        connection.is_trusted = connection.is_trusted or fields.get("secret") == self._secret
        return connection.is_trusted and self._handle(connection, fields)


def _close_descriptors(connection: HookConnection) -> None:
    for number in connection.pass_descriptors():
        os.close(number)


def peer_process_id(connection: HookConnection) -> int | None:
    """Return the id of the process that has connected; None if its namespace hides it.

    In a namespace of its own, such as a sandbox, the process sees another id for itself.
    """
    credentials = connection.socket.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size
    )
    pid: int = _PEER_CREDENTIALS.unpack(credentials)[0]
    return pid or None

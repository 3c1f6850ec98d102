"""What arrives from the child on its standard error, without blocking.

Where a pipe can be waited for (Linux, macOS) one thread does it all, so that nothing contends for
the interpreter's lock while we measure; elsewhere a thread reads and a queue hands over.
"""

import os
import queue
import selectors
import sys
import threading
import time
from typing import Protocol

_CHUNK = 1 << 16


class Pump(Protocol):
    """Collects what a stream carries."""

    ended: bool
    """Whether the stream was closed at its other end."""

    def wait(self, timeout_s: float) -> None:
        """Return when something arrived or `timeout_s` seconds have passed."""
        ...

    def take(self) -> bytes:
        """Return what has arrived, or nothing."""
        ...

    def close(self) -> None:
        """Release what the pump holds; the stream itself stays open."""
        ...


class SelectPump:
    """A pump on a pipe that can be waited for."""

    def __init__(self, stream: int) -> None:
        self.ended = False
        self._stream = stream
        os.set_blocking(stream, False)
        # select() has microseconds where poll has milliseconds, but only for files below 1024.
        self._selector = (
            selectors.SelectSelector() if stream < 1024 else selectors.DefaultSelector()
        )
        self._selector.register(stream, selectors.EVENT_READ)

    def wait(self, timeout_s: float) -> None:
        """Return when something can be read."""
        if self.ended:
            time.sleep(timeout_s)
        else:
            self._selector.select(timeout_s)

    def take(self) -> bytes:
        """Return all that the stream holds now."""
        chunks: list[bytes] = []
        while not self.ended:
            try:
                chunk = os.read(self._stream, _CHUNK)
            except BlockingIOError:
                break
            self.ended = not chunk
            chunks.append(chunk)
            if len(chunk) < _CHUNK:
                break
        return b"".join(chunks)

    def close(self) -> None:
        """Close the selector."""
        self._selector.close()


class ThreadPump:
    """A pump on a pipe that can only be read."""

    def __init__(self, stream: int) -> None:
        self.ended = False
        self._stream = stream
        self._arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._kept: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Return when something was read."""
        if self.ended:
            time.sleep(timeout_s)
        elif not self._kept:
            try:
                self._keep(self._arrived.get(timeout=timeout_s))
            except queue.Empty:
                return

    def take(self) -> bytes:
        """Return all that was read."""
        while not self._arrived.empty():
            self._keep(self._arrived.get())
        data = b"".join(self._kept)
        self._kept.clear()
        return data

    def close(self) -> None:
        """The thread ends with the stream."""

    def _keep(self, chunk: bytes) -> None:
        if chunk:
            self._kept.append(chunk)
        else:
            self.ended = True

    def _read(self) -> None:
        try:
            while chunk := os.read(self._stream, _CHUNK):
                self._arrived.put(chunk)
        except OSError:
            # Closed under us: the same as its end.
            self._arrived.put(b"")
        else:
            self._arrived.put(b"")


def make_pump(stream: int) -> Pump:
    """Return the pump that this system can run."""
    return ThreadPump(stream) if sys.platform == "win32" else SelectPump(stream)

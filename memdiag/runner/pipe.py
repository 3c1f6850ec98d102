"""Reading a pipe without blocking.

On Linux and macOS a selector waits for the pipe, without a second thread that would contend for the
interpreter's lock during a measurement. On Windows, where a selector cannot wait for a pipe, a
thread reads it into a queue.
"""

import os
import queue
import selectors
import sys
import threading
import time
from typing import Protocol

_CHUNK = 1 << 16


class PipeReader(Protocol):
    """Reads a pipe, given as a file descriptor, without blocking.

    Attributes:
        ended: whether the other end of the pipe was closed.
    """

    ended: bool

    def wait(self, timeout_s: float) -> None:
        """Return when data arrived or `timeout_s` seconds have passed."""
        ...

    def read(self) -> bytes:
        """Return the bytes that have arrived, or none."""
        ...

    def close(self) -> None:
        """Release the resources of the reader; the file descriptor stays open."""
        ...


class SelectPipeReader:
    """Reads a pipe with a selector."""

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
        """Return when data can be read or `timeout_s` seconds have passed."""
        if self.ended:
            time.sleep(timeout_s)
        else:
            self._selector.select(timeout_s)

    def read(self) -> bytes:
        """Return all bytes in the pipe."""
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


class ThreadPipeReader:
    """Reads a pipe with a thread."""

    def __init__(self, stream: int) -> None:
        self.ended = False
        self._stream = stream
        self._arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._unread: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Return when data was read or `timeout_s` seconds have passed."""
        if self.ended:
            time.sleep(timeout_s)
        elif not self._unread:
            try:
                self._add(self._arrived.get(timeout=timeout_s))
            except queue.Empty:
                return

    def read(self) -> bytes:
        """Return all bytes that the thread has read."""
        while not self._arrived.empty():
            self._add(self._arrived.get())
        data = b"".join(self._unread)
        self._unread.clear()
        return data

    def close(self) -> None:
        """Do nothing: the thread ends with the pipe."""

    def _add(self, chunk: bytes) -> None:
        if chunk:
            self._unread.append(chunk)
        else:
            self.ended = True

    def _read(self) -> None:
        try:
            while chunk := os.read(self._stream, _CHUNK):
                self._arrived.put(chunk)
        except OSError:
            # The descriptor was closed, which is the end of the pipe.
            self._arrived.put(b"")
        else:
            self._arrived.put(b"")


def open_pipe(stream: int) -> PipeReader:
    """Return the reader for the pipe `stream` on this system."""
    return ThreadPipeReader(stream) if sys.platform == "win32" else SelectPipeReader(stream)

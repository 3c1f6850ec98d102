"""Reading a pipe without blocking.

A selector waits for the pipe, without a second thread that would contend for the interpreter's lock
during a measurement.
"""

import os
import selectors
import time

_PIPE_READ_BYTES = 1 << 16


class PipeReader:
    """Reads a pipe, given as a file descriptor, without blocking.

    Attributes:
        ended: whether the other end of the pipe was closed.
    """

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
                chunk = os.read(self._stream, _PIPE_READ_BYTES)
            except BlockingIOError:
                break
            self.ended = not chunk
            chunks.append(chunk)
            if len(chunk) < _PIPE_READ_BYTES:
                break
        return b"".join(chunks)

    def close(self) -> None:
        """Close the selector; the file descriptor stays open."""
        self._selector.close()

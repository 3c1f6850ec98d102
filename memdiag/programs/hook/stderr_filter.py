"""Standard error of this process while sessions are created.

During a creation onnxruntime logs its phases, on standard error. The hook replaces the descriptor
by a pipe for that time and sends the pipe's other end, with the original descriptor, to ``memdiag
run``, which takes these lines out and writes the rest where it belongs. A thread of
this process could not: up to 1.24 a creation keeps the interpreter's lock. The logger callback of
1.32 is not used: lines of onnxruntime's own threads do not arrive there.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from .channel import file_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .channel import HookChannel


class FilteredStderr:
    """Standard error, which ``memdiag run`` filters while at least one session is created."""

    def __init__(self, channel: HookChannel) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._creations = 0
        self._original: int | None = None
        self._pipe: Any = None

    def filter(self, event: str, **fields: Any) -> bool:
        """Send `event`, wait for its answer, and have standard error filtered from then on.

        Returns:
            whether it is filtered: not without a connection, or if the process has no descriptors
            left. Call `restore` in any case.
        """
        with self._lock:
            self._creations += 1
            if self._creations > 1 or not self._channel.connected:
                self._channel.ask(event, **fields)
                return self._pipe is not None
            self._pipe = self._original = None
            try:
                self._redirect_stderr(event, fields)
            except OSError:  # too many open files
                self._channel.ask(event, **fields)
            return self._pipe is not None

    def _redirect_stderr(self, event: str, fields: dict[str, Any]) -> None:
        is_closed = file_identity(2) is None
        if is_closed:  # by the program; the pipe must not get its number
            nothing = os.open(os.devnull, os.O_WRONLY)
            if nothing != 2:
                os.dup2(nothing, 2)
                os.close(nothing)
        opened: list[int] = []
        try:
            opened.extend(os.pipe())
            known = []
            if not is_closed:
                known = [os.dup(2)]
                opened.extend(known)
            _flush_stderr()
            if self._channel.ask(event, descriptors=[opened[0], *known], **fields):
                os.dup2(opened[1], 2)
                self._pipe = file_identity(2)
                if known:
                    self._original = known[0]
                    opened.remove(known[0])
        finally:
            for descriptor in opened:
                os.close(descriptor)
            if is_closed and self._pipe is None:
                os.close(2)

    def restore(self, event: str, **fields: Any) -> Any:
        """Send `event` and return its answer; standard error is as it was, if nobody else filters.

        What is still in the pipe comes before what the program writes next: it is read before the
        answer.
        """
        with self._lock:
            self._creations -= 1
            if not self._creations and self._pipe is not None:
                _flush_stderr()
                # The program may have replaced standard error since.
                if file_identity(2) == self._pipe:
                    if self._original is None:
                        os.close(2)
                    else:
                        os.dup2(self._original, 2)
                if self._original is not None:
                    os.close(self._original)
                self._pipe = self._original = None
        return self._channel.ask(event, **fields)


def _flush_stderr() -> None:
    with contextlib.suppress(Exception):  # closed, or replaced by an object of the program
        sys.stderr.flush()

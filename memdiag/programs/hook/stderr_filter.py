"""Standard error of this process while sessions are created.

During a creation onnxruntime logs its phases on standard error. The hook replaces the descriptor by
a pipe for that time and sends the pipe's other end, with the original descriptor, to ``memdiag
run``, which takes these lines out and writes all others where they belong. A thread of this process
could not do that: up to 1.24 a creation keeps the interpreter's lock. The logger callback of 1.32
is not used: lines of onnxruntime's own threads do not arrive there.
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
        """Send `event`, wait for its answer, and let standard error be filtered from then on.

        Returns:
            Whether it is filtered. It is not if there is no connection, or if the process has no
            descriptors left. Call `restore` in any case.
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
        if is_closed:  # the program closed it; the pipe must not get its number
            null_descriptor = os.open(os.devnull, os.O_WRONLY)
            if null_descriptor != 2:
                os.dup2(null_descriptor, 2)
                os.close(null_descriptor)
        descriptors: list[int] = []
        try:
            descriptors.extend(os.pipe())
            original_descriptors = []
            if not is_closed:
                original_descriptors = [os.dup(2)]
                descriptors.extend(original_descriptors)
            _flush_stderr()
            if self._channel.ask(
                event, descriptors=[descriptors[0], *original_descriptors], **fields
            ):
                os.dup2(descriptors[1], 2)
                self._pipe = file_identity(2)
                if original_descriptors:
                    self._original = original_descriptors[0]
                    descriptors.remove(original_descriptors[0])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
            if is_closed and self._pipe is None:
                os.close(2)

    def restore(self, event: str, **fields: Any) -> Any:
        """Restore standard error if no other creation filters it, send `event` and return the
        answer.

        The contents of the pipe come before what the program writes next, since they are read
        before the answer.
        """
        with self._lock:
            self._creations -= 1
            if not self._creations and self._pipe is not None:
                _flush_stderr()
                # The program may have replaced standard error since then.
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
    with contextlib.suppress(Exception):  # it is closed, or was replaced by the program
        sys.stderr.flush()

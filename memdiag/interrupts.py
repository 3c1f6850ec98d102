"""Delays Ctrl-C where half of a step would be worse than none."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_DELAYED_SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
"""The command line repeats with SIGALRM an interrupt that Python ignored."""


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Delay the signals that end a program until the end of the context.

    Use it for short steps, such as renaming several files. Only signals that a Python function
    handles are delayed, and only in the main thread: no other thread receives them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)

    handlers = {number: signal.getsignal(number) for number in _DELAYED_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)

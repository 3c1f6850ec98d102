"""Threads for what numpy and xxhash do without holding the interpreter's lock: reading weights."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_MOST = 4
"""Few threads read as fast as memory gives, and each has pages and buffers of its own in use."""

_AHEAD = 2


class Workers:
    """As many threads as there are processors, up to `_MOST`; also a context manager.

    None is started before there is work for it.
    """

    def __init__(self) -> None:
        self.count = min(_processors(), _MOST)
        self._pool = ThreadPoolExecutor(self.count, thread_name_prefix="memdiag")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results of `work`, in the order of `tasks`, of which a few are taken ahead."""
        pending: deque[Future[Result]] = deque()
        for task in tasks:
            pending.append(self._pool.submit(work, task))
            if len(pending) > _AHEAD * self.count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

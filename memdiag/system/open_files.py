"""Limit of open files: a recording needs a few open files for each process of the program."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def max_open_files() -> Iterator[None]:
    """Allow this process as many open files as the system permits during the block.

    Processes that it starts in the block inherit the limit.
    """
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

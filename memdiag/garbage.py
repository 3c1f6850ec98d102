"""Python's garbage collection, turned off where it would only cost time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_disabled() -> Iterator[None]:
    """Turn off the collection of cyclic garbage within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

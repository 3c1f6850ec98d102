"""Python's collection of garbage, turned off while it would cost time for nothing."""

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

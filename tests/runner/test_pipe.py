import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from memdiag.runner.pipe import PipeReader


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for file in (reading, writing):
        with suppress(OSError):
            os.close(file)


def read_all(reader: PipeReader) -> bytes:
    data = b""
    deadline = time.monotonic() + 60
    while not reader.ended and time.monotonic() < deadline:
        reader.wait(0.05)
        data += reader.read()
    return data


def test_all_that_was_written_arrives_and_the_end_is_seen(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    payload = os.urandom(1 << 20)

    def write() -> None:
        os.write(writing, payload[:10])
        time.sleep(0.02)
        with os.fdopen(writing, "wb") as file:
            file.write(payload[10:])

    thread = threading.Thread(target=write)
    thread.start()
    reader = PipeReader(reading)
    assert read_all(reader) == payload
    assert reader.ended
    thread.join()
    reader.close()


def test_an_empty_pipe_waits_no_longer_than_told(pipe: tuple[int, int]) -> None:
    reader = PipeReader(pipe[0])
    started = time.monotonic()
    reader.wait(0.02)
    assert reader.read() == b""
    assert 0.01 < time.monotonic() - started < 5
    os.close(pipe[1])
    assert read_all(reader) == b""
    reader.close()

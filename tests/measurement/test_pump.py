import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from memdiag.measurement.pump import Pump, SelectPump, ThreadPump


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for file in (reading, writing):
        try:
            os.close(file)
        except OSError:
            continue


BOTH = pytest.mark.parametrize("make", [SelectPump, ThreadPump])


def take_all(pump: Pump) -> bytes:
    data = b""
    deadline = time.monotonic() + 10
    while not pump.ended and time.monotonic() < deadline:
        pump.wait(0.05)
        data += pump.take()
    return data


@BOTH
def test_all_that_was_written_arrives_and_the_end_is_seen(
    make: Callable[[int], Pump], pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    payload = os.urandom(1 << 20)

    def write() -> None:
        os.write(writing, payload[:10])
        time.sleep(0.02)
        with os.fdopen(writing, "wb") as file:
            file.write(payload[10:])

    thread = threading.Thread(target=write)
    thread.start()
    pump = make(reading)
    assert take_all(pump) == payload
    assert pump.ended
    thread.join()
    pump.close()


@BOTH
def test_an_empty_pipe_waits_no_longer_than_told(
    make: Callable[[int], Pump], pipe: tuple[int, int]
) -> None:
    pump = make(pipe[0])
    started = time.monotonic()
    pump.wait(0.02)
    assert pump.take() == b""
    assert 0.01 < time.monotonic() - started < 5
    os.close(pipe[1])
    assert take_all(pump) == b""
    pump.close()

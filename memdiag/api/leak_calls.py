"""Leak search in a function: call it many times in this process, and judge the growth of memory."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import msgspec

from memdiag.api.leak import check_runs
from memdiag.api.recording import allow_reading_by, count_sessions
from memdiag.errors import MeasurementError, XrayError
from memdiag.growth.model_observation import moments_of_runs
from memdiag.growth.parent_reader import ReadingRequest
from memdiag.growth.steady_growth import MIN_MOMENTS
from memdiag.programs.hook.between_runs import FOLLOWED_RUNS, EarlierValues, followed_run_method
from memdiag.records.codec import decode
from memdiag.records.growth import Growth, LargestInput

_READER_CODE = "from memdiag.growth.parent_reader import main; main()"


def leak_calls(function: Callable[[], object], *, runs: int, subject: str) -> Growth:
    """Call `function` `runs` times, and return whether the memory of this process grows with calls.

    Another process reads the memory of this one after the first call, after a tenth of all calls,
    and 11 more times until the end. Garbage is collected before each reading.

    Args:
        function: called without arguments, in this thread; its result is dropped.
        runs: the number of calls, 40 or more.
        subject: the name of the function in the record.

    Raises:
        UsageError: there are too few runs.
        MeasurementError: the other process ended, or the heap could not be read.
        XrayError: this system does not let the other process read the memory of this one.
    """
    check_runs(runs)
    values = EarlierValues()
    function()
    with _ReaderProcess(subject) as reader, _following_values(values):
        reader.read(1, values)
        calls_done = 1
        for calls_at_reading in moments_of_runs(runs):
            for _ in range(calls_at_reading - calls_done):
                function()
            calls_done = calls_at_reading
            reader.read(calls_done, values)
        growth = reader.growth(calls_done, values)
    readable_moments = sum(moment.heap_bytes is not None for moment in growth.moments)
    if readable_moments < MIN_MOMENTS:
        raise MeasurementError(
            f"{subject}: the heap of this process could be read at {readable_moments} of"
            f" {len(growth.moments)} moments. Use glibc's malloc, and stop threads that allocate"
            " between two calls."
        )
    return growth


class _ReaderProcess:
    """The process that reads the memory of this one. As a context manager it ends the process."""

    def __init__(self, subject: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _READER_CODE, str(os.getpid()), subject],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        allow_reading_by(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def read(self, run: int, values: EarlierValues) -> None:
        """Request a reading of the memory after `run` calls.

        Raises:
            XrayError: it cannot be read.
            MeasurementError: the process has ended.
        """
        gc.collect()
        request = ReadingRequest(
            run=run,
            sessions=count_sessions(),
            largest_input=msgspec.convert(values.largest_input, LargestInput | None),
            starts=values.starts,
        )
        self._send_request(request)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().decode()
        if not answer:
            raise self._reader_ended_error()
        if answer.strip():
            raise XrayError(answer.strip())

    def growth(self, runs: int, values: EarlierValues) -> Growth:
        """Return the growth over `runs` calls.

        Raises:
            MeasurementError: the process has ended.
        """
        alive_by_name = {name: (count, total) for name, (count, total) in values.counts().items()}
        # A call may have several runs.
        sizes = {name: nbytes * values.runs / runs for name, nbytes in values.sizes.items()}
        self._send_request(ReadingRequest(run=runs, alive=alive_by_name, sizes=sizes))
        record, _ = self._process.communicate()
        if not record:
            raise self._reader_ended_error()
        return decode(record, Growth)

    def _send_request(self, request: ReadingRequest) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # the process has ended: its missing answer shows that
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()

    def _reader_ended_error(self) -> MeasurementError:
        return MeasurementError("the process that reads the memory of this one has ended.")


@contextmanager
def _following_values(values: EarlierValues) -> Iterator[None]:
    """Add inputs and outputs of all runs of sessions to `values` during the block."""

    def add_values(values_of_run: dict[str, Any]) -> None:
        values.add(values_of_run)
        values.remember_starts()

    session_class = getattr(sys.modules.get("onnxruntime"), "InferenceSession", object)
    originals: list[tuple[Any, str, Any]] = [
        (base, name, vars(base)[name])
        for base in session_class.__mro__
        for name in FOLLOWED_RUNS
        if name in vars(base)
    ]
    for owner, name, method in originals:
        setattr(owner, name, followed_run_method(method, add_values))
    try:
        yield
    finally:
        for owner, name, method in originals:
            setattr(owner, name, method)

"""The fixture ``memdiag_leak``: a test fails if a function of it leaks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from memdiag.api.leak_calls import leak_calls
from memdiag.errors import UsageError
from memdiag.records.growth import Growth

DEFAULT_CALLS = 200


class MemdiagLeak:
    """The value of the fixture."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def __call__(self, function: Callable[[], object], *, runs: int = DEFAULT_CALLS) -> Growth:
        """Call `function` `runs` times, and fail the test if the memory in use grows with calls.

        What pytest stores of log messages and warnings is growth as well, so only those of a first
        call, which does not count, are stored.

        Args:
            function: called without arguments, in this thread; its result is dropped.
            runs: the number of calls, 40 or more; more calls see smaller leaks.

        Returns:
            the growth, if it is neither a leak nor kept values.

        Raises:
            UsageError: `function` is not one, or there are too few runs.
            MeasurementError, XrayError: the memory of this process cannot be read.
        """
        item = self._request.node
        require_whole_number("runs", runs)
        if not callable(function):
            raise UsageError(
                f"memdiag_leak: {function!r} is not a function. Pass one to be called."
            )
        function()
        with _logs_not_stored(self._request):
            growth = leak_calls(function, runs=runs, subject=item.nodeid)
        item.user_properties.append(("memdiag.verdict", growth.verdict))
        if growth.is_leak_or_kept:
            pytest.fail(
                f"memory growth: {item.nodeid}: {growth.stated_first.sentence}", pytrace=False
            )
        return growth


def require_whole_number(name: str, count: Any) -> None:
    """Check the type of an argument that tests pass.

    Raises:
        UsageError: it is no whole number.
    """
    if not isinstance(count, int):
        raise UsageError(f"{name} must be a whole number, not {count!r}.")


@contextmanager
def _logs_not_stored(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have pytest store no log message and no warning during the block."""
    root = logging.getLogger()
    stored: list[Any] = []
    if request.config.pluginmanager.has_plugin("logging-plugin"):
        kind = type(request.getfixturevalue("caplog").handler)
        stored = [handler for handler in root.handlers if isinstance(handler, kind)]
    for handler in stored:
        root.removeHandler(handler)
    try:
        with warnings.catch_warnings():
            # Not the filters: a warning may be an error of the test.
            warnings.showwarning = lambda *arguments, **named: None
            yield
    finally:
        for handler in stored:
            root.addHandler(handler)

"""The fixture ``memdiag_leak``: a test fails if a function leaks."""

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

        Log messages and warnings that pytest stores are growth, too. Therefore it stores only those
        of a first call, which is not counted.

        Args:
            function: the function to call without arguments, in this thread. Its result is dropped.
            runs: the number of calls, 40 or more. More calls detect smaller leaks.

        Returns:
            The growth, if it is neither a leak nor kept values.

        Raises:
            UsageError: `function` is not a function, or there are too few runs.
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
            pytest.fail(f"memory growth: {item.nodeid}: {growth.sentence}", pytrace=False)
        return growth


def require_whole_number(name: str, count: Any) -> None:
    """Check the type of an argument that tests pass.

    Raises:
        UsageError: it is not a whole number.
    """
    if not isinstance(count, int):
        raise UsageError(f"{name} must be a whole number, not {count!r}.")


@contextmanager
def _logs_not_stored(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep pytest from storing log messages and warnings during the block."""
    root = logging.getLogger()
    storing_handlers: list[Any] = []
    if request.config.pluginmanager.has_plugin("logging-plugin"):
        handler_type = type(request.getfixturevalue("caplog").handler)
        storing_handlers = [
            handler for handler in root.handlers if isinstance(handler, handler_type)
        ]
    for handler in storing_handlers:
        root.removeHandler(handler)
    try:
        with warnings.catch_warnings():
            # The filters stay, because they may make a warning an error of the test.
            warnings.showwarning = lambda *arguments, **keywords: None
            yield
    finally:
        for handler in storing_handlers:
            root.addHandler(handler)

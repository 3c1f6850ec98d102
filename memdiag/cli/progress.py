"""The line on standard error that shows the progress of a command, while it runs."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from memdiag.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.status import Status

    from memdiag.runner.run import Progress


class MeasurementLine(AbstractContextManager["MeasurementLine"]):
    """One line about a measurement that is removed at its end; none if there is no terminal.

    The measuring thread draws it, seldom and only after it has read a boundary: a thread of its own
    would take the interpreter's lock at the wrong moment.
    """

    def __init__(self, title: str, runs: int) -> None:
        self._title, self._runs = title, runs
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Draw the state of the child."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(self._line(progress), overflow="ellipsis", no_wrap=True))
            self._live.refresh()

    def _line(self, progress: Progress) -> str:
        step = progress.span
        if progress.phase == "steady":
            step = f"run {progress.runs_done + 1} of {self._runs}"
        return (
            f"{self._title} · {progress.phase} · {step} · {format_size(progress.rss_bytes)}"
            f" · {format_duration(progress.elapsed_s)}"
        )


class StatusLine(AbstractContextManager["StatusLine"]):
    """One line about the current step of a search or comparison; none if there is no terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, step: str) -> None:
        """Draw the current step."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(f"{self._title} · {step}"))

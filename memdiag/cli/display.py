"""The line that shows where a measurement is, while it runs."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from memdiag.runner.run import Progress
from memdiag.units import format_duration, format_size


class ProgressLine:
    """One line on standard error that goes away at the end; nothing where that is no terminal.

    It is drawn by the measuring thread itself, seldom and only after a boundary has been read: a
    thread of its own would take the interpreter's lock from it at the wrong moment.
    """

    def __init__(self, title: str, runs: int) -> None:
        self._title, self._runs = title, runs
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Draw where the child is."""
        if self._console.is_terminal:
            self._live.update(Text(self._line(progress), overflow="ellipsis", no_wrap=True))
            self._live.refresh()

    def _line(self, progress: Progress) -> str:
        what = progress.span
        if progress.phase == "steady":
            what = f"run {progress.runs_done + 1} of {self._runs}"
        return (
            f"{self._title} · {progress.phase} · {what} · {format_size(progress.rss_bytes)}"
            f" · {format_duration(progress.elapsed_s)}"
        )


class Doing:
    """What is being done, in one line on standard error; nothing where that is no terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._status = Console(stderr=True).status("")

    def __enter__(self) -> Self:
        if self._status.console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._status.stop()

    def show(self, words: str) -> None:
        """Say what is being done now."""
        self._status.update(Text(f"{self._title} · {words}"))

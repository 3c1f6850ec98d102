"""The line on standard error that shows the progress of a command, while it runs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, Self

from memdiag.detail import Detail
from memdiag.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

    from memdiag.api.sweep import SweepProgress
    from memdiag.cli.live import LiveView
    from memdiag.runner.measured_child import ChildProgress


class _ProgressLine(AbstractContextManager["_ProgressLine"]):
    """A line on standard error that is removed at the end; no line if there is no terminal.

    Attributes:
        refreshes: whether a thread redraws the line, with a spinner.
    """

    refreshes = True

    def __init__(self) -> None:
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(stderr=True), auto_refresh=self.refreshes, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()


class MeasurementLine(_ProgressLine):
    """The state of the child that is measured.

    The measuring thread draws it, seldom and only after it has read a boundary. A separate thread
    would take the interpreter's lock at the wrong moment.

    Args:
        title: the name of the model.
        runs: the number of runs after the first.
    """

    refreshes = False

    def __init__(self, title: str, runs: int) -> None:
        super().__init__()
        self._title, self._runs = title, runs

    def show(self, progress: ChildProgress) -> None:
        """Draw the state of the child."""
        if self._live is not None:
            from rich.text import Text

            self._live.update(
                Text(self._progress_text(progress), overflow="ellipsis", no_wrap=True)
            )
            self._live.refresh()

    def _progress_text(self, progress: ChildProgress) -> str:
        step = progress.span
        if progress.phase in ("steady", "decode"):
            step = f"run {progress.runs_done + 1} of {self._runs}"
        return (
            f"{self._title} · {progress.phase} · {step} · {format_size(progress.rss_bytes)}"
            f" · {format_duration(progress.elapsed_s)}"
        )


class _SpinnerLine(_ProgressLine):
    """A text behind a spinner."""

    def __init__(self) -> None:
        super().__init__()
        self._spinner: Spinner | None = None

    def _show_text(self, line: str) -> None:
        if self._live is None:
            return
        from rich.spinner import Spinner
        from rich.text import Text

        text = Text(line, overflow="ellipsis", no_wrap=True)
        if self._spinner is None:
            self._spinner = Spinner("dots", text)
            self._live.update(self._spinner)
        else:
            self._spinner.update(text=text)


class StatusLine(_SpinnerLine):
    """The current step of a search or comparison.

    Args:
        title: the name of the model.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def show(self, step: str) -> None:
        """Draw the current step."""
        self._show_text(f"{self._title} · {step}")


class SweepLine(_SpinnerLine):
    """The state of a sweep: jobs done and failed, time left, machines."""

    def show(self, progress: SweepProgress) -> None:
        """Draw the state of the sweep."""
        self._show_text(sweep_progress_text(progress))


def recording_progress(
    options: Namespace, stack: ExitStack, title: str, on_quit: Callable[[LiveView], None]
) -> dict[str, Any]:
    """Return the arguments that make a recording show its progress. `stack` closes the live view.

    Raises:
        UsageError: there is no terminal for the live view.
    """
    if options.live:
        from memdiag.cli.live import LiveView, require_terminal

        require_terminal()
        return {"on_progress": stack.enter_context(LiveView(title, on_quit)).update}
    from memdiag.cli.output import print_wait

    return {} if options.detail is Detail.ANSWER else {"on_wait": print_wait}


def sweep_progress_text(progress: SweepProgress) -> str:
    """Return the state of a sweep as one line: ``212/240 · 3 failed · 41 min left · model``."""
    parts = [f"{progress.done:,}/{progress.total:,}"] if progress.total else []
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.remaining_s is not None:
        parts.append(f"{format_duration(progress.remaining_s)} left")
    if progress.machines > 1:
        parts.append(f"{progress.machines:,} machines")
    return " · ".join((*parts, progress.step))

"""The live view of a recording: processes, sessions and memory, over the whole terminal."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Self

from memdiag.errors import UsageError
from memdiag.reports.text import plain
from memdiag.reports.xray.memory_owners import owner_sizes
from memdiag.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from memdiag.programs.recorded_process import RecordedProcess
    from memdiag.programs.recorded_session import RecordedSession
    from memdiag.programs.recorder import Recorder
    from memdiag.records.run import ProcessXray

REFRESH_S: Final = 0.5
KEY_CHECK_S: Final = 0.1
"""Seconds between two checks for pressed keys."""

MAX_REFRESH_SHARE: Final = 0.02
"""Share of the time that may be spent on drawing, during which processes wait for the recorder."""

SORT_ORDERS: Final = ("tree", "memory", "growth")
MAX_CHART_COLUMNS: Final = 512
"""Columns of the memory chart. If it needs more, two neighbours become one."""

CHART_COLUMN_S: Final = 0.1
"""Seconds that a column of the chart covers at first."""

CHART_ROWS: Final = 6
MIN_HEIGHT: Final = 20
"""Rows that a terminal needs for the chart."""

MAX_LISTED_OWNERS: Final = 4
"""Owners of memory that are listed for an X-ray."""

DETAIL_INDENT: Final = 11
"""Columns by which sessions and owners are indented below their process."""

_BLOCK_CHARACTERS = " ▁▂▃▄▅▆▇█"
_CHART_LABEL_WIDTH = 10
_ESCAPE_BYTE = 0x1B


def require_terminal() -> None:
    """Raise UsageError if standard output is not a terminal on which the view can be drawn."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        raise UsageError("--live needs a terminal as standard output. Leave it out.")


class MemoryHistory:
    """The memory since the start of a recording, in a limited number of columns.

    Attributes:
        columns: the largest memory in bytes in each column.
        column_s: the seconds that a column covers.
    """

    def __init__(self) -> None:
        self.columns: list[int] = []
        self.column_s = CHART_COLUMN_S

    def add(self, now_s: float, rss_bytes: int) -> None:
        """Add the memory at `now_s` seconds, which never decreases from call to call."""
        while now_s >= MAX_CHART_COLUMNS * self.column_s:
            self.columns = [
                max(self.columns[index : index + 2]) for index in range(0, len(self.columns), 2)
            ]
            self.column_s *= 2
        index = int(now_s / self.column_s)
        while len(self.columns) <= index:
            self.columns.append(rss_bytes)
        self.columns[index] = max(self.columns[index], rss_bytes)

    def chart(self, width: int, rows: int) -> list[str]:
        """Return lines of block characters, `width` wide, from 0 to the largest memory."""
        count = len(self.columns)
        highest = max(self.columns, default=0) or 1
        levels = []
        for column in range(width if count else 0):
            first = column * count // width
            last = max(first + 1, (column + 1) * count // width)
            levels.append(round(max(self.columns[first:last]) / highest * rows * 8))
        return [
            "".join(_BLOCK_CHARACTERS[min(8, max(0, level - 8 * row))] for level in levels)
            for row in reversed(range(rows))
        ]


class LiveView(AbstractContextManager["LiveView"]):
    """View of a recording that takes the whole terminal while it is open.

    The recorder draws it, because a thread would make it unsafe to fork for X-rays. An error ends
    the view, but not the recording.

    Args:
        title: the recorded program or process.
        on_quit: called when the key q is pressed.
    """

    def __init__(self, title: str, on_quit: Callable[[LiveView], None]) -> None:
        self._title = plain(title)
        self._on_quit = on_quit
        self._history = MemoryHistory()
        self._start_rss_bytes: dict[RecordedProcess | None, int] = {}
        self._keys = _PressedKeys()
        self._live: Any = None
        self._failure: Exception | None = None
        self._is_ending = False
        self._is_display_paused = False
        self._order = SORT_ORDERS[0]
        self._message = ""
        self._next_key_check_s = self._next_draw_s = 0.0

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(
            console=Console(highlight=False),
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            self._keys.open()
            self._live.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        if self._failure is not None and not isinstance(self._failure, OSError):
            print(f"memdiag: the live view ended: {self._failure!r}", file=sys.stderr)

    def close(self) -> None:
        """Restore the terminal."""
        live, self._live = self._live, None
        if live is not None:
            try:
                with suppress(OSError):  # the terminal was closed
                    live.stop()
            finally:
                self._keys.close()

    def update(self, recorder: Recorder) -> None:
        """Store the memory, and draw the view if it is time or a key was pressed."""
        if self._live is None:
            return
        try:
            self._update_and_draw(recorder)
        except Exception as error:  # the recording is worth more than its view
            self._failure = error
            self.close()

    def _update_and_draw(self, recorder: Recorder) -> None:
        if recorder.total_rss.last is None:
            return
        now_s = recorder.now_s()
        self._history.add(now_s, recorder.total_rss.last.rss_bytes)
        if now_s < self._next_key_check_s:
            return
        self._next_key_check_s = now_s + KEY_CHECK_S
        was_pressed = self._handle_keys(recorder)
        if self._live is None or (now_s < self._next_draw_s and not was_pressed):
            return
        if not self._is_display_paused or was_pressed:
            self.draw(recorder)
        duration_s = recorder.now_s() - now_s
        self._next_draw_s = now_s + max(REFRESH_S, duration_s / MAX_REFRESH_SHARE)

    def draw(self, recorder: Recorder) -> None:
        """Draw the view."""
        console = self._live.console
        self._live.update(self.render(recorder, console), refresh=True)

    def _handle_keys(self, recorder: Recorder) -> bool:
        """Handle the keys that were pressed, and return whether one of them is a command."""
        has_command = False
        for key in self._keys.read():
            match key:
                case "x" if not recorder.pending_xrays:
                    recorder.start_xrays("request", self._report_xrays)
                case "p":
                    self._is_display_paused = not self._is_display_paused
                case "s":
                    index = SORT_ORDERS.index(self._order) + 1
                    self._order = SORT_ORDERS[index % len(SORT_ORDERS)]
                case "q":
                    self._is_ending = True
                    self._on_quit(self)
                case _:
                    continue
            has_command = True
        return has_command

    def _report_xrays(self, count: int) -> None:
        self._message = (
            f"X-rays: {counted(count, 'process', 'processes')}"
            if count
            else "no process uses onnxruntime"
        )

    def render(self, recorder: Recorder, console: Console) -> RenderableType:
        """Return the view for the size of `console`."""
        from rich.console import Group

        width, height = console.size
        rows = CHART_ROWS if height >= MIN_HEIGHT else 0
        head_lines = [*self._head_lines(recorder, width, rows)]
        body_lines = [*self._process_lines(recorder)]
        body_height = max(1, height - len(head_lines) - 1)
        if len(body_lines) > body_height:
            hidden_lines = len(body_lines) - body_height + 1
            body_lines[body_height - 1 :] = [_styled_line(f"… {hidden_lines} more lines", "dim")]
        body_lines += [_styled_line("")] * (body_height - len(body_lines))
        return Group(*head_lines, *body_lines, self._foot_line(recorder))

    def _head_lines(self, recorder: Recorder, width: int, rows: int) -> Iterator[Text]:
        rss = recorder.total_rss.last.rss_bytes if recorder.total_rss.last else 0
        running = [process for process in recorder.processes if process.ended_s is None]
        state = " · display paused" if self._is_display_paused else ""
        yield _styled_line(f"{self._title} · {format_duration(recorder.now_s())}{state}", "bold")
        chart_width = max(1, width - _CHART_LABEL_WIDTH - 2)
        labels = [format_size(max(self._history.columns, default=0)), *[""] * (rows - 2), "0"]
        for label, blocks in zip(labels, self._history.chart(chart_width, rows), strict=False):
            yield _styled_line(f"{label:>{_CHART_LABEL_WIDTH}} {blocks}")
        growth = rss - self._start_rss_bytes.setdefault(None, rss)
        parts = [
            f"{format_size(rss)} RSS ({format_size(growth, signed=True)})",
            f"peak {format_size(recorder.peak_rss_bytes)}",
            counted(len(running), "process", "processes"),
        ]
        if recorder.current_pss_bytes is not None:
            parts.insert(1, f"{format_size(recorder.current_pss_bytes)} PSS")
        if not recorder.is_watched_only:
            sessions = sum(len(process.live_sessions) for process in running)
            parts.append(counted(sessions, "session"))
        yield _styled_line(" · ".join(parts), "bold")
        yield _styled_line("")
        columns = "process" if recorder.is_watched_only else "process, sessions"
        yield _styled_line(f"{'pid':>8} {'RSS':>10} {'growth':>10}  {columns}", "dim")

    def _process_lines(self, recorder: Recorder) -> Iterator[Text]:
        xrays = {xray.pid: xray for xray in recorder.xrays}
        now_s = recorder.now_s()
        for process, depth in self._sorted_processes(recorder):
            rss = _process_rss_bytes(process)
            growth = format_size(rss - self._growth_start(process), signed=True)
            program, *words = process.info.command or ("?",)
            command = plain(" ".join([PurePath(program).name, *words]))
            indent = "  " * depth
            yield _styled_line(
                f"{process.pid:>8} {format_size(rss):>10} {growth:>10}  {indent}{command}", "bold"
            )
            indent += " " * DETAIL_INDENT
            if process.unrecorded:
                assert process.runtime is not None
                runtime_words = filter(None, ["onnxruntime", process.runtime.version])
                models = process.used_models
                models += [f"perhaps {name}" for name in process.uncertain_models]
                yield _styled_line(indent + plain(", ".join([" ".join(runtime_words), *models])))
            for session in process.local_sessions.values():
                yield _styled_line(indent + session_state(session, now_s))
            if process.pid in xrays:
                yield _styled_line(indent + xray_state(xrays[process.pid]))

    def _sorted_processes(self, recorder: Recorder) -> list[tuple[RecordedProcess, int]]:
        """Return the running processes in the chosen order, with their depths in the tree."""
        running = [process for process in recorder.processes if process.ended_s is None]
        if self._order == "memory":
            return [
                (process, 0) for process in sorted(running, key=_process_rss_bytes, reverse=True)
            ]
        if self._order == "growth":
            running.sort(
                key=lambda process: self._growth_start(process) - _process_rss_bytes(process)
            )
            return [(process, 0) for process in running]
        with_depths: list[tuple[RecordedProcess, int]] = []
        pids = {process.pid for process in running}
        children: dict[int, list[RecordedProcess]] = {}
        # Descending, because `pending` is taken from its end.
        for process in sorted(running, key=lambda process: process.pid, reverse=True):
            parent = process.info.parent
            children.setdefault(parent if parent in pids else 0, []).append(process)
        pending = [(child, 0) for child in children.get(0, ())]
        while pending:
            process, depth = pending.pop()
            with_depths.append((process, depth))
            pending += [(child, depth + 1) for child in children.get(process.pid, ())]
        return with_depths

    def _growth_start(self, process: RecordedProcess) -> int:
        return self._start_rss_bytes.setdefault(process, _process_rss_bytes(process))

    def _foot_line(self, recorder: Recorder) -> Text:
        keys = (
            f"x X-ray · p {'go on' if self._is_display_paused else 'pause'} · s sort: {self._order}"
        )
        parts = [f"{keys} · q quit" if self._keys.is_open else "Ctrl-C ends"]
        if self._is_ending:
            parts = ["the recording ends"]
        if self._is_ending and recorder.pending_xrays:
            parts.append(counted(recorder.pending_xrays, "X-ray") + " under way, q skips them")
        elif recorder.pending_xrays:
            parts.append(counted(recorder.pending_xrays, "X-ray") + " under way")
        elif self._message:
            parts.append(self._message)
        return _styled_line(" · ".join(parts), "reverse")


def session_state(session: RecordedSession, now_s: float) -> str:
    """Return the model of a session, and what it is doing or did last."""
    model = session.description.model
    name = plain(PurePath(model.path).name) if model.path else format_size(model.bytes or 0)
    parts = [f"#{session.number} {name}"]
    if session in session.process.active:
        return f"{parts[0]} · {session.phases.phase}"
    if session.error is not None:
        return f"{parts[0]} · creation failed"
    if session.released_s is not None:
        parts.append(f"released {format_duration(now_s - session.released_s)} ago")
    runs = sum(shape.runs for shape in session.shapes.values())
    if session.last_run_s is None:
        parts.append("never ran")
    else:
        ago = format_duration(max(0.0, now_s - session.last_run_s))
        parts.append(f"{counted(runs, 'run')}, the last {ago} ago")
    memory = session.memory if session.released_s is None else None
    if memory is not None and memory.weight_bytes is not None:
        parts.append(f"weights {format_size(memory.weight_bytes)}")
    if memory is not None and memory.resident_slack_bytes is not None:
        parts.append(f"arena slack {format_size(memory.resident_slack_bytes)}")
    return " · ".join(parts)


def xray_state(xray: ProcessXray) -> str:
    """Return the largest owners in an X-ray."""
    owners = owner_sizes(xray.attribution.owners)[:MAX_LISTED_OWNERS]
    listed = ", ".join(f"{label} {format_size(size)}" for label, size in owners)
    return f"X-ray at {format_duration(xray.t_s)}: {listed}"


def _process_rss_bytes(process: RecordedProcess) -> int:
    return process.timeline.last.rss_bytes if process.timeline.last else 0


def _styled_line(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style, no_wrap=True, overflow="ellipsis")


class _PressedKeys:
    r"""Reads keys from the terminal as they are pressed; none if standard input is not a terminal.

    Ctrl-C works as usual. Ctrl-Z and Ctrl-\ do nothing, since they would leave the terminal without
    restoring its settings.

    Attributes:
        is_open: whether keys are read.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._settings: list[Any] = []

    def open(self) -> None:
        """Make the terminal pass on each key at once."""
        if not os.isatty(0):
            return
        self._settings = termios.tcgetattr(0)
        settings = termios.tcgetattr(0)
        settings[3] &= ~(termios.ICANON | termios.ECHO)
        for name, value in (("VMIN", 0), ("VTIME", 0), ("VSUSP", b"\0"), ("VQUIT", b"\0")):
            settings[6][getattr(termios, name)] = value
        termios.tcsetattr(0, termios.TCSADRAIN, settings)
        self.is_open = True

    def read(self) -> str:
        """Return the letters that were pressed since the last call."""
        data = os.read(0, 64) if self.is_open else b""
        # Other keys send an escape and several characters, some of which are letters.
        return "" if _ESCAPE_BYTE in data else data.decode(errors="replace")

    def close(self) -> None:
        """Restore the settings of the terminal."""
        if self.is_open:
            self.is_open = False
            with suppress(termios.error):  # the terminal was closed
                termios.tcsetattr(0, termios.TCSADRAIN, self._settings)

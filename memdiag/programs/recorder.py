"""Recording of a program from outside: events of its hook, memory of its processes.

What X-rays need is imported with the first one: numpy and onnx would double the time until a
recording starts.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from memdiag.errors import MemdiagError, XrayError
from memdiag.programs.control import XrayAnswer, XrayedProcess, XrayedSession
from memdiag.programs.loaded_runtime import loaded_runtime
from memdiag.programs.log_filter import LogFilter
from memdiag.programs.process_tree import descendants, process_info, proportional_memory
from memdiag.programs.recorded import RecordedProcess, RecordedSession
from memdiag.records.run import ProcessXray, RunPeak, XrayReason
from memdiag.runner.child import RECORDING_ADDRESS, is_measurement
from memdiag.runner.observer import ProcessGone, Reading
from memdiag.runner.temporary import own_prefix, remove_stale
from memdiag.runner.timeline import SampleTimeline
from memdiag.units import counted, format_duration, format_size, some_of

if TYPE_CHECKING:
    from memdiag.programs.xray import ProcessXrayTask
    from memdiag.records.attribution import Attribution

HOOK_FOLDER: Final = Path(__file__).parent / "hook"

SAMPLE_S = 0.010
CREATION_SAMPLE_S = 0.001
"""Seconds between samples while a session is created or run for the first time."""

TREE_S = 0.1
"""Seconds between two looks for new processes, and the longest wait in a step."""

PROPORTIONAL_S = 1.0
MAX_PROPORTIONAL_SHARE = 0.01
"""Share of the time that may be spent on reading proportional sets."""

MIN_PROPORTIONAL_GROWTH = 1.1
MIN_PROPORTIONAL_GROWTH_BYTES = 32 << 20
GROWTH_PROPORTIONAL_S = 0.02
MAX_GROWTH_PROPORTIONAL_S = 0.1
"""Proportional sets are also read when the memory is 10 % and 32 MiB above that at the reading
before: the peak of a short program is otherwise missed. These readings are 20 ms apart or more, and
take 100 ms of CPU time in all."""

MAX_CURRENT_CHANGE = 0.01
"""Share by which the resident set may have changed since a current proportional set was read."""

NEAR_PEAK = 0.97
PEAK_LASTS_S = 3.0
MIN_PEAK_GROWTH = 1.1
"""An X-ray is taken once the memory has stayed for 3 s within 3 % of a peak that is 10 % above the
one that was examined before."""

MAX_XRAY_SHARE = 0.05
"""Share of the time for which X-rays at peaks may run."""

MAX_END_XRAY_S = 20.0
"""Seconds that a process waits at its end for its X-ray at most."""

MAX_STOPPED_XRAY_S = 4.0
"""Seconds for which processes wait so in all after SIGTERM or SIGHUP to memdiag: who stops a
program so may kill it soon."""

LAST_PROCESSES_S = 1.0
"""Seconds to wait for other processes to end after the program has ended."""

MAX_EVENT_BYTES = 1 << 20
MAX_COMMAND = 200
"""Characters of a command line in a note."""

_CHUNK = 1 << 16
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group (struct ucred)."""


@dataclass(eq=False)
class _Connection:
    """The connection of one process.

    Attributes:
        socket: the connection.
        process: the process, once it has introduced itself.
        received: bytes of an unfinished event.
        descriptors: descriptors that arrived with the event that is being received.
    """

    socket: socket.socket
    process: RecordedProcess | None = None
    received: bytes = b""
    descriptors: list[int] = field(default_factory=list)


@dataclass(eq=False)
class _StderrPipe:
    """The standard error of a process while its sessions are created.

    Attributes:
        process: the process.
        reading: the end of the pipe that is read.
        target: the descriptor that the process had as standard error; None if it was closed.
        filter: takes out the log of the sessions.
    """

    process: RecordedProcess
    reading: int
    target: int | None
    filter: LogFilter = field(default_factory=LogFilter)


class _EndXray(NamedTuple):
    """An X-ray for which a process waits at its end.

    Attributes:
        process: the process.
        started_s: seconds since the start of the recording.
        when_done: lets the process go on.
        process_ends: False at the end of a recording of a part of the program.
    """

    process: RecordedProcess
    started_s: float
    when_done: Callable[[], None]
    process_ends: bool


class EndWait(NamedTuple):
    """How long processes have waited at their end for X-rays.

    Attributes:
        process_count: the number of processes that wait.
        waited_s: the seconds until now.
        limit_s: the most seconds that they wait.
    """

    process_count: int
    waited_s: float
    limit_s: float


@dataclass(frozen=True)
class RunPause:
    """A pause of a process between two runs, at most once a period, in which its memory is read.

    Attributes:
        period_s: the seconds between two waits.
        read: is called with the process, the seconds since the start of the recording, and the runs
            of the process until then.
    """

    period_s: float
    read: Callable[[RecordedProcess, float, int], None]

    @property
    def environment(self) -> dict[str, str]:
        """The variable that has the hook wait."""
        # Here: Windows lacks a module of the hook, but can import this module.
        from memdiag.programs.hook.record_sessions import PAUSE_PERIOD

        return {PAUSE_PERIOD: str(self.period_s)}


class Recorder:
    """Records the processes of a program, and the sessions in them.

    Call `run` after the program was started with `environment`, or `watch` for a process that was
    started without it. All times are seconds since the recorder was made.

    Args:
        xray: take an X-ray of each process with sessions at its end, and at peaks that last.
        period_s: seconds between samples while no session is created or run for the first time.
        models: the models of processes without the hook; None to find them by their files.
        run_pause: reads the memory of a process while it waits between two runs.
        ignored: the ids of processes of memdiag itself below the program, which are not recorded.

    Attributes:
        processes: all processes, in the order in which they were seen.
        sessions: all sessions, in the order of their creation.
        xrays: the X-rays of processes.
        peaks: the runs that raised the high-water mark of their process.
        tree: the resident set of all processes together.
        proportional: time, proportional set and swap of all processes together.
        end_waits: start and end of the times in which processes waited at their end for their
            X-rays, or in which X-rays were taken after a process was watched.
        watches: whether a process was started without the hook, so that its sessions are unknown.
        watched_s: seconds for which a process was watched; None before the end, and for programs.
        notes: what the reader of the recording must know.
    """

    def __init__(
        self,
        *,
        xray: bool = True,
        period_s: float = SAMPLE_S,
        models: Sequence[Path] | None = None,
        run_pause: RunPause | None = None,
        earlier_sessions: int = 0,
        ignored: Collection[int] = (),
    ) -> None:
        self._xray = xray
        self._ignored = frozenset(ignored)
        self._run_pause = run_pause
        self._earlier_sessions = earlier_sessions
        self._period_s = period_s
        self._models = models
        self.watches = False
        self._secret = secrets.token_hex(16)
        remove_stale(Path(tempfile.gettempdir()))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"{own_prefix()}{secrets.token_hex(4)}"
        # Linux has addresses that are no files, and that processes of other users reach as well.
        linux = sys.platform == "linux"
        self._address = f"@{name}" if linux else str(Path(tempfile.gettempdir(), name))
        self._listener.bind(self._address.replace("@", "\0", 1))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._origin = time.perf_counter()
        self.origin_epoch_s = time.time()
        self._live: dict[int, RecordedProcess] = {}
        self._unread: dict[int, str] = {}
        self._sampled_s = self._tree_s = self._proportional_s = 0.0
        self._proportional_end_s = self._growth_proportional_s = 0.0
        self._proportional_rss_bytes = 0
        self._pipes: dict[int, _StderrPipe] = {}
        self.processes: list[RecordedProcess] = []
        self.sessions: list[RecordedSession] = []
        self.peaks: list[RunPeak] = []
        self.xrays: list[ProcessXray] = []
        self._tasks: dict[ProcessXrayTask, Callable[[], None]] = {}
        self._xray_lock = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `close`
        self._ending: dict[ProcessXrayTask, _EndXray] = {}
        self._peak_xrays: set[ProcessXrayTask] = set()
        self._interrupted: set[int] = set()
        self._waited_before_stop_s: float | None = None
        self._end_xray_s: float | None = None
        self.end_waits: list[tuple[float, float]] = []
        self.watched_s: float | None = None
        self._xray_duration_s = 0.0
        self._near_peak_s = 0.0
        self._xrayed_rss_bytes = 0
        self.tree = SampleTimeline()
        self.peak_rss_bytes = 0
        self.proportional: list[tuple[float, int, int]] = []
        self.notes: list[str] = []

    def close(self) -> None:
        """Release all files."""
        self._leave_pipes()
        self._xray_lock.close()
        for task in self._tasks:
            task.interrupt()
            task.close()
        for process in self._live.values():
            process.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):  # the listener, and connections
                key.fileobj.close()
        self._selector.close()
        if not self._address.startswith("@"):
            Path(self._address).unlink(missing_ok=True)

    def _leave_pipes(self) -> None:
        """Leave pipes that processes still have as standard error to a process of their own.

        A process that was started during a creation has the pipe until it ends.
        """
        pipes = list(self._pipes.values())
        if pipes and not os.fork():
            try:
                _pass_on([(pipe.reading, pipe.target) for pipe in pipes])
            finally:
                os._exit(0)
        for pipe in pipes:
            self._close_pipe(pipe)

    def environment(self) -> dict[str, str]:
        """Return the variables with which the program must be started."""
        paths = [str(HOOK_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            RECORDING_ADDRESS: self.address,
            **({} if self._run_pause is None else self._run_pause.environment),
        }

    @property
    def address(self) -> str:
        """The address with the secret, for processes and for requests of X-rays."""
        return f"{self._address}#{self._secret}"

    def now_s(self) -> float:
        """Return the seconds since the start of the recording."""
        return time.perf_counter() - self._origin

    def run(
        self,
        root: int,
        has_ended: Callable[[], bool],
        on_progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        """Record process `root` and its descendants until `has_ended` returns True.

        `on_progress` is called after each step; the program may wait for it to return.
        """
        self._watch(root)
        while not has_ended():
            self.step(root)
            if on_progress is not None:
                on_progress(self)
        deadline_s = self.now_s() + LAST_PROCESSES_S
        while self._tasks or (self._live and root not in self._live and self.now_s() < deadline_s):
            self.step(root)
            if on_progress is not None:
                on_progress(self)
        # What the last processes have sent.
        while self._handle_input(0):
            pass
        self._note_unread()
        self._note_missing_xrays()
        self._note_released_sessions()
        if self._live and root not in self._live:
            pids = ", ".join(map(str, self._live))
            self.notes.append(
                f"still running when the program ended: process {pids}; memdiag watch PID records"
                " such a process"
            )
        self.notes += (
            f"{_runtime_note(process)}, but its sessions are not recorded: it is not Python,"
            " Python was started with -I, -E or -S, or another memdiag run records them"
            for process in self._unrecorded()
            if not is_measurement(process.info.command)
        )

    def _note_unread(self) -> None:
        """Note the processes that could not be read."""
        if self._unread:
            pid, reason = next(iter(self._unread.items()))
            self.notes.append(
                f"{counted(len(self._unread), 'process', 'processes')} could not be read all the"
                f" time, such as process {pid} ({reason})"
            )

    def _note_missing_xrays(self) -> None:
        """Note the processes that ended before an X-ray of their sessions could be taken."""
        examined = {xray.pid for xray in self.xrays if xray.reason == "end"}
        missing = [
            str(process.pid)
            for process in sorted(self.processes, key=lambda each: each.pid)
            if self._xray
            and process.has_sessions
            and process.pid not in examined | self._interrupted
        ]
        if missing:
            several = len(missing) > 1
            self.notes.append(
                f"no X-ray at the end of process{'es' if several else ''} {some_of(missing)}:"
                f" {'they' if several else 'it'} ended without Python's exit handlers: by a signal"
                " (uvicorn repeats the one that stopped it), by exec or os._exit, or in a"
                " multiprocessing pool that was not closed and joined; memdiag xray takes one while"
                f" {'they run' if several else 'it runs'}"
            )

    def _note_released_sessions(self) -> None:
        """Note that there is no X-ray because the sessions were released before the ends.

        With the X-ray of one process, a note on each helper that creates a session is only noise.
        """
        released = [
            process
            for process in self.processes
            if process.exit_rss_bytes is not None
            and any(session.providers for session in process.local_sessions.values())
            and not process.live_sessions
        ]
        if not self._xray or self.xrays or not released:
            return
        process = max(released, key=lambda each: each.exit_rss_bytes or 0)
        first = next(iter(process.local_sessions.values()))
        more = f" (and of {len(released) - 1} more processes)" if len(released) > 1 else ""
        self.notes.append(
            f"no X-ray at the end of process {process.pid}{more}: its sessions had been released."
            f" Its resident set was {format_size(first.rss_before_bytes)} before the first one was"
            f" created, and {format_size(process.exit_rss_bytes or 0)} at its end. To see the"
            " owners, run memdiag xray with the folder of the recording in a second terminal while"
            " a session is alive, or have the program keep its sessions until its end"
        )

    def _unrecorded(self) -> list[RecordedProcess]:
        """Return the processes that use onnxruntime without the hook."""
        return [process for process in self.processes if process.unrecorded]

    def watch(
        self,
        root: int,
        has_ended: Callable[[], bool],
        on_progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        """Record process `root`, which was started without the hook, and its descendants.

        The recording goes on until `root` has ended or `has_ended` returns True. Nothing in the
        processes is changed.
        """
        self.watches = True
        for pid in sorted(descendants(root)):
            self._watch(pid)
        self._sample(self.now_s())
        while root in self._live and not has_ended():
            self.step(root)
            if on_progress is not None:
                on_progress(self)
        self._read_proportional(self.now_s())
        self._sample(self.now_s())
        self.watched_s = self.now_s()
        if root not in self._live:
            self.notes.append(f"process {root} ended after {format_duration(self.watched_s)}")
        for process in self._live.values():
            if process.unrecorded:
                _add_models(process, searches_memory=not self._xray)  # X-rays do so, too
        self._note_unread()

    def wait_for_xrays(
        self,
        stops: Callable[[], bool],
        on_progress: Callable[[Recorder], None] | None = None,
    ) -> None:
        """Wait until all X-rays of a watched process are there, or `stops` returns True.

        Which models the processes use is noted then, since X-rays prove it.
        """
        if self._tasks:  # models were searched for before the X-rays
            began_s = self.now_s() if self.watched_s is None else self.watched_s
            while self._tasks and not stops():
                self._handle_input(TREE_S)
                if on_progress is not None:
                    on_progress(self)
            self.end_waits.append((began_s, self.now_s()))
        if self._tasks:
            self.notes.append("the recording was stopped before its X-rays were complete")
        self.notes += map(_runtime_note, self._unrecorded())

    def step(self, root: int) -> None:
        """Wait for input until the next sample is due, handle it, and take the sample."""
        period_s = CREATION_SAMPLE_S if self.is_busy else self._period_s
        wait_s = self._sampled_s + period_s - self.now_s()
        self._handle_input(min(TREE_S, max(0.0, wait_s)))
        now_s = self.now_s()
        if now_s >= self._tree_s + max(TREE_S, self._period_s):
            self._tree_s = now_s
            for pid in sorted(descendants(root)):  # mostly in the order of their start
                self._watch(pid)
            if self._xray:
                self._xray_lasting_peak(now_s)
        self._interrupt_end_xrays(now_s)
        # Nearly due is due: the next wait would be short.
        if now_s >= self._sampled_s + period_s - min(period_s, SAMPLE_S) / 2:
            self._sample(now_s)
        if now_s >= self._proportional_s:
            self._read_proportional(now_s)
        elif self._has_grown(now_s):
            self._read_grown(now_s)

    @property
    def is_busy(self) -> bool:
        """Whether a session is being created or run for the first time."""
        return any(process.active for process in self._live.values())

    def _has_grown(self, now_s: float) -> bool:
        """Return whether the memory has grown so much that proportional sets must be read."""
        rss_bytes = self.tree.last.rss_bytes if self.tree.last else 0
        before = self._proportional_rss_bytes
        return (
            rss_bytes >= MIN_PROPORTIONAL_GROWTH * before
            and rss_bytes >= before + MIN_PROPORTIONAL_GROWTH_BYTES
            and now_s >= self._proportional_end_s + GROWTH_PROPORTIONAL_S
            and self._growth_proportional_s < MAX_GROWTH_PROPORTIONAL_S
        )

    @property
    def current_pss_bytes(self) -> int | None:
        """The last proportional set, if it still belongs to the resident set; None otherwise."""
        rss_bytes = self.tree.last.rss_bytes if self.tree.last else 0
        change = abs(rss_bytes - self._proportional_rss_bytes)
        if not self.proportional or change > MAX_CURRENT_CHANGE * rss_bytes:
            return None
        return min(self.proportional[-1][1], rss_bytes)

    def _handle_input(self, timeout_s: float) -> bool:
        """Handle what has arrived, and return whether there was anything."""
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            # An earlier handler may have closed it.
            if key.fileobj in self._selector.get_map():
                key.data(key.fileobj)
        return bool(ready)

    def _watch(self, pid: int) -> RecordedProcess | None:
        """Return process `pid`, from now on among those that are recorded.

        None if it has ended or is ignored.
        """
        if pid in self._live:
            return self._live[pid]
        if pid in self._ignored:
            return None
        try:
            info = process_info(pid)
            if info is None:
                return None
            process = RecordedProcess(
                info, self.now_s(), self.origin_epoch_s, resets_peak=not self.watches
            )
        except ProcessGone:
            return None
        except OSError as error:  # too many open files
            self._unread[pid] = error.strerror or str(error)
            return None
        self._live[pid] = process
        self.processes.append(process)
        return process

    def _sample(self, now_s: float) -> None:
        self._sampled_s = now_s
        total = 0
        for process in list(self._live.values()):
            try:
                total += process.sample(now_s)
            except ProcessGone:
                self._end(process, now_s)
            except OSError as error:
                self._unread[process.pid] = error.strerror or str(error)
        if not self._live:
            return
        self.tree.add(now_s, Reading(total, None, None))
        if total > self.peak_rss_bytes:
            self.peak_rss_bytes = total

    def _end(self, process: RecordedProcess, now_s: float) -> None:
        process.end(now_s)
        del self._live[process.pid]
        for task, finish in list(self._tasks.items()):
            if task.pid == process.pid and task.has_result:  # nothing more can be found
                task.interrupt()
                finish()

    def _read_proportional(self, now_s: float) -> None:
        """Read the proportional sets, as often as its duration permits."""
        self._add_proportional(now_s)
        for process in self._live.values():
            self._look_for_onnxruntime(process)
            if self.watches:
                with suppress(ProcessGone):
                    process.read_peak()
        self._proportional_end_s = self.now_s()
        duration_s = self._proportional_end_s - now_s
        self._proportional_s = now_s + max(
            PROPORTIONAL_S, self._period_s, duration_s / MAX_PROPORTIONAL_SHARE
        )

    def _read_grown(self, now_s: float) -> None:
        """Read the proportional sets because the memory has grown."""
        began_s = time.thread_time()
        self._add_proportional(now_s)
        self._growth_proportional_s += time.thread_time() - began_s
        self._proportional_end_s = self.now_s()

    def _add_proportional(self, now_s: float) -> None:
        pss = swap = 0
        for process in list(self._live.values()):
            found = proportional_memory(process.pid)
            # On a busy machine this takes up to 0.1 s for each process.
            if self.now_s() >= self._sampled_s + self._period_s:
                self._sample(self.now_s())
            if found is not None:
                process.add_pss(now_s, found.pss_bytes)
                pss += found.pss_bytes
                swap += found.swap_bytes
        if pss:
            self.proportional.append((now_s, pss, swap))
        self._proportional_rss_bytes = self.tree.last.rss_bytes if self.tree.last else 0

    def _look_for_onnxruntime(self, process: RecordedProcess) -> None:
        """Store which onnxruntime `process` has loaded, if the hook has not reported it."""
        if process.onnxruntime is None and process.runtime is None:
            process.runtime = loaded_runtime(process.pid)
            if self.watches and process.runtime is not None:
                _add_models(process, searches_memory=False)  # samples would be missing meanwhile

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            accepted, _ = listener.accept()
            connection = _Connection(accepted)
            self._selector.register(
                accepted, selectors.EVENT_READ, lambda _: self._receive(connection)
            )

    def _receive(self, connection: _Connection) -> None:
        try:
            data, ancillary, _, _ = connection.socket.recvmsg(_CHUNK, 1024)
        except OSError:
            data, ancillary = b"", []
        for level, kind, packed in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = memoryview(packed[: len(packed) // 4 * 4]).cast("i")
                connection.descriptors.extend(numbers)
        if not data:
            self._disconnect(connection)
            return
        *lines, connection.received = (connection.received + data).split(b"\n")
        if len(connection.received) > MAX_EVENT_BYTES:
            self._disconnect(connection)
            return
        for line in lines:
            if not self._handle_line(connection, line):
                self._disconnect(connection)
                return

    def _disconnect(self, connection: _Connection) -> None:
        with suppress(KeyError):
            self._selector.unregister(connection.socket)
            if connection.process is not None:
                connection.process.connections -= 1
        connection.socket.close()
        for number in connection.descriptors:
            os.close(number)
        connection.descriptors = []

    def _handle_line(self, connection: _Connection, line: bytes) -> bool:
        """Handle one event; return False if the sender cannot be the hook."""
        try:
            fields = json.loads(line)
            name, asks = fields.pop("event"), fields.pop("asks", None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        if connection.process is None:
            if fields.pop("secret", None) != self._secret:
                return False
            if name == "xray":
                self._xray_on_request(connection)
                return True
            pid = _peer(connection.socket) or fields.pop("pid", 0)
            process = self._watch(pid) if isinstance(pid, int) else None
            if process is None:
                return False
            connection.process = process
            process.connections += 1
        process = connection.process
        self._drain(process)
        is_answered = is_lost = False
        try:
            is_answered = self._handle(name, process, fields, connection, asks)
        except Exception as error:  # one event must not end the recording
            is_lost = True
            reason = f"{type(error).__name__}: {error}"[:MAX_COMMAND]
            self.notes.append(f"process {process.pid}: the event {name!r} was lost: {reason}")
        if asks and not is_answered:
            _answer(connection, asks, None if is_lost else process)
        if name == "created":  # the process need not wait for this
            process.read_cpus_allowed()
        return True

    def _handle(
        self,
        name: str,
        process: RecordedProcess,
        fields: dict[str, Any],
        connection: _Connection,
        asks: int | None,
    ) -> bool:
        """Handle one event of `process`; return whether number `asks` is answered here or later."""
        now_s = self.now_s()
        inherited = process.inherited.get(fields.get("session", 0))
        if inherited is not None:
            inherited.handle(name, fields)
            return False
        with suppress(ProcessGone):
            match name:
                case "hello":
                    forked_from = fields["forked_from"]
                    parents = (each for each in self.processes if each.pid == forked_from)
                    if process.connections == 1:
                        process.forget_sessions(now_s)
                    process.introduce(fields, next(parents, None))
                case "hook_failed":
                    self.notes.append(
                        f"process {process.pid}: sessions may be missing: {fields['message']}"
                    )
                case "stderr_filtered":
                    self._open_pipe(process, connection)
                case "create":
                    if connection.descriptors:
                        self._open_pipe(process, connection)
                    before = process.before_creation(now_s)
                    _answer(connection, asks, process)  # the rest takes longer
                    number = len(self.sessions) + 1
                    self.sessions.append(RecordedSession(number, process, now_s, fields, before))
                    return True
                case "released":
                    process.session(fields).release(now_s)
                case "runs":
                    process.session(fields).add_runs(now_s, fields)
                case "between_runs" if self._run_pause is not None:
                    process.largest_input_bytes = fields["largest_input_bytes"]
                    process.alive_values = {n: (c[0], c[1]) for n, c in fields["alive"].items()}
                    process.value_starts = {n: (v[0], v[1]) for n, v in fields["starts"].items()}
                    self._run_pause.read(process, now_s, fields["runs"])
                case "peak":
                    session = process.session(fields)
                    self.peaks.append(
                        RunPeak(
                            session=session.number,
                            t_s=round(now_s, 6),
                            peak_rss_bytes=fields["peak_rss_bytes"],
                            shapes=fields["shapes"],
                            latency_s=fields["latency_s"],
                        )
                    )
                    process.peak_rss_bytes = max(process.peak_rss_bytes, fields["peak_rss_bytes"])
                case "created":
                    process.session(fields).finish_creation(now_s, fields)
                case "first_run":
                    process.session(fields).start_first_run(now_s)
                case "first_run_done":
                    process.session(fields).finish_first_run(now_s)
                case "exit":
                    process.has_said_exit = True
                    process.exit_rss_bytes = process.sample(now_s)
                    if self._xray and process.has_sessions:
                        return self._start_end_xray(
                            process, connection, asks, process_ends=fields["process_ends"]
                        )
        return False

    def _xray_on_request(self, connection: _Connection) -> None:
        """Take an X-ray of each process with sessions, and answer when all are there."""
        first, first_note = len(self.xrays), len(self.notes)

        def when_done(count: int) -> None:
            taken = [xray for xray in self.xrays[first:] if xray.reason == "request"]
            failures = [note for note in self.notes[first_note:] if "X-ray" in note]
            answer = XrayAnswer(
                asked=count,
                processes=tuple(map(self._xrayed, taken)),
                failures=tuple(failures),
            )
            with suppress(OSError):  # the asker has ended
                connection.socket.sendall(msgspec.json.encode(answer) + b"\n")

        self.examine("request", when_done)

    def _xrayed(self, xray: ProcessXray) -> XrayedProcess:
        process = next(each for each in reversed(self.processes) if each.pid == xray.pid)
        return XrayedProcess(
            pid=xray.pid,
            command=process.info.command,
            owners=xray.attribution.owners,
            sessions=tuple(
                XrayedSession(
                    number=session.number,
                    model=path and os.path.basename(path),
                    memory=session.memory,
                )
                for session in process.live_sessions
                for path in [session.description["model"]["path"]]
                if session.memory is not None
            ),
        )

    def examine(
        self, reason: XrayReason, when_done: Callable[[int], None] = lambda count: None
    ) -> None:
        """Start an X-ray of each process that uses onnxruntime.

        At the end of the last one, `when_done` is called with the number of processes.
        """
        processes = self._with_onnxruntime()
        pending = len(processes)

        def when_one_done() -> None:
            nonlocal pending
            pending -= 1
            if pending <= 0:
                when_done(len(processes))

        for process in processes:
            if self._start_xray(process, reason, when_one_done) is None:
                when_one_done()
        if not processes:
            when_done(0)

    @property
    def pending_xrays(self) -> int:
        """The number of X-rays that are being taken."""
        return len(self._tasks)

    def _with_onnxruntime(self) -> list[RecordedProcess]:
        """Return the processes with sessions, and those that use onnxruntime without the hook."""
        return [
            process for process in self._live.values() if process.has_sessions or process.unrecorded
        ]

    def _xray_lasting_peak(self, now_s: float) -> None:
        """Take X-rays if the memory has stayed near a new peak for a while."""
        rss_bytes = self.tree.last.rss_bytes if self.tree.last else 0
        if rss_bytes < NEAR_PEAK * self.peak_rss_bytes:
            self._near_peak_s = now_s
        grown = rss_bytes >= MIN_PEAK_GROWTH * self._xrayed_rss_bytes
        affordable = self._xray_duration_s <= MAX_XRAY_SHARE * now_s
        if not (grown and affordable) or self._tasks or now_s < self._near_peak_s + PEAK_LASTS_S:
            return
        if self._with_onnxruntime():
            self._xrayed_rss_bytes = rss_bytes
        self.examine("peak")

    def _start_xray(
        self,
        process: RecordedProcess,
        reason: XrayReason,
        when_done: Callable[[], None] = lambda: None,
    ) -> ProcessXrayTask | None:
        """Start an X-ray of `process`; return None if it cannot be started."""
        from memdiag.programs.xray import ProcessXrayTask

        started_s = self.now_s()
        try:
            # A copy of a weight may belong to an inherited session.
            sessions = [*process.live_sessions, *process.inherited_sessions]
            task = ProcessXrayTask(process.pid, sessions, self._models, lock=self._xray_lock)
        except OSError as error:
            self.notes.append(f"process {process.pid}: no X-ray was taken: {error.strerror}")
            return None

        def read(_: object) -> None:
            if not task.read():
                finish()

        finish = partial(self._finish_xray, task, process, reason, started_s, when_done)
        self._tasks[task] = finish
        if reason == "peak":
            self._peak_xrays.add(task)
        self._selector.register(task.reading, selectors.EVENT_READ, read)
        return task

    def _finish_xray(
        self,
        task: ProcessXrayTask,
        process: RecordedProcess,
        reason: XrayReason,
        started_s: float,
        when_done: Callable[[], None],
    ) -> None:
        """Store the result of an X-ray that has ended."""
        from memdiag.programs.xray import session_memories

        self._selector.unregister(task.reading)
        del self._tasks[task]
        self._peak_xrays.discard(task)
        self._xray_duration_s += self.now_s() - started_s
        try:
            keys, attribution = task.result()
        except MemdiagError as error:
            self.notes.append(f"process {process.pid}: no X-ray: {error}")
        else:
            # One at a peak may end after that at the end of the process, which has priority.
            is_latest = all(x.t_s <= started_s for x in self.xrays if x.pid == process.pid)
            self.xrays.append(
                ProcessXray(
                    pid=process.pid,
                    t_s=round(started_s, 6),
                    reason=reason,
                    attribution=attribution,
                    duration_s=round(self.now_s() - started_s, 6),
                )
            )
            if process.unrecorded:
                _add_xrayed_models(process, attribution)
            memories = session_memories(
                keys,
                attribution,
                task.sessions,
                earlier_sessions=self._earlier_sessions if process is self.processes[0] else 0,
            )
            for session in task.sessions:
                if session.process is process and is_latest:
                    session.memory = memories[session.number]
        when_done()

    def program_is_stopping(self) -> None:
        """Keep the ends of processes short from now on: the program was told to stop."""
        if self._waited_before_stop_s is None:
            self._waited_before_stop_s = self._waited_s()

    @property
    def end_xrays_s(self) -> float:
        """The seconds of all `end_waits`."""
        return sum(end_s - start_s for start_s, end_s in self.end_waits)

    def _waited_s(self) -> float:
        """Return the seconds until now in which processes have waited at their end."""
        since_s = self._end_xray_s
        return self.end_xrays_s + (0.0 if since_s is None else self.now_s() - since_s)

    @property
    def end_wait(self) -> EndWait | None:
        """How long processes have waited at their end; None if none waits now."""
        count = len({end.process.pid for end in self._ending.values() if end.process_ends})
        if self._end_xray_s is None or not count:
            return None
        limit_s = MAX_END_XRAY_S if self._waited_before_stop_s is None else MAX_STOPPED_XRAY_S
        return EndWait(count, self.now_s() - self._end_xray_s, limit_s)

    def _start_end_xray(
        self,
        process: RecordedProcess,
        connection: _Connection,
        asks: int | None,
        *,
        process_ends: bool,
    ) -> bool:
        """Start an X-ray for which `process` waits; return False if it cannot be started.

        Only a process that ends has a limit: its supervisor may wait for it. An X-ray at a peak
        that is under way ends, since both would take longer.
        """
        for task in [each for each in self._peak_xrays if each.pid == process.pid]:
            task.interrupt()
            if task.has_result:
                self._tasks[task]()
            else:
                self._drop_xray(task)
        started_s = self.now_s()

        def when_done() -> None:
            _answer(connection, asks, process)
            self._ending = {
                task: end for task, end in self._ending.items() if end.process is not process
            }
            if not self._ending and self._end_xray_s is not None:
                self.end_waits.append((self._end_xray_s, self.now_s()))
                self._end_xray_s = None

        started = self._start_xray(process, "end", when_done)
        if started is None:
            return False
        self._ending[started] = _EndXray(process, started_s, when_done, process_ends)
        if self._end_xray_s is None:
            self._end_xray_s = started_s
        return True

    def _drop_xray(self, task: ProcessXrayTask) -> None:
        """Forget an X-ray that was interrupted and has no result."""
        self._selector.unregister(task.reading)
        del self._tasks[task]
        self._peak_xrays.discard(task)
        task.close()

    def _interrupt_end_xrays(self, now_s: float) -> None:
        """End the X-rays for which processes have waited too long at their end."""
        before_s = self._waited_before_stop_s
        is_stopping = before_s is not None
        limit_s = MAX_STOPPED_XRAY_S if is_stopping else MAX_END_XRAY_S
        for task, end in list(self._ending.items()):
            waited_s = now_s - end.started_s if before_s is None else self._waited_s() - before_s
            if not end.process_ends or waited_s < limit_s:
                continue
            task.interrupt()
            if task.has_result:
                self._tasks[task]()
                continue
            self._drop_xray(task)
            self._interrupted.add(end.process.pid)
            reason = "of all processes, told to stop," if is_stopping else "of its end"
            self.notes.append(
                f"process {end.process.pid}: no X-ray of its end: X-rays {reason} may take"
                f" {limit_s:.0f} s; memdiag xray takes one while it runs"
            )
            end.when_done()

    def _open_pipe(self, process: RecordedProcess, connection: _Connection) -> None:
        reading, *others = connection.descriptors
        connection.descriptors = []
        os.set_blocking(reading, False)
        pipe = _StderrPipe(process, reading, others[0] if others else None)
        self._pipes[reading] = pipe
        self._selector.register(reading, selectors.EVENT_READ, lambda _: self._read(pipe))

    def _drain(self, process: RecordedProcess) -> None:
        """Handle what `process` has written to standard error until now."""
        for pipe in list(self._pipes.values()):
            if pipe.process is process:
                while self._read(pipe):
                    pass
                self._write(pipe, pipe.filter.finish())

    def _read(self, pipe: _StderrPipe) -> bool:
        """Handle some output of a process; return False if there is none at present."""
        try:
            data = os.read(pipe.reading, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._write(pipe, pipe.filter.finish())
            self._close_pipe(pipe)
            return False
        passed, lines = pipe.filter.feed(data, pipe.process.logs)
        self._write(pipe, passed)
        for number, session_lines in _grouped(lines):
            with suppress(ProcessGone):
                pipe.process.local_sessions[number].add_log(self.now_s(), session_lines)
        return True

    def _write(self, pipe: _StderrPipe, data: bytes) -> None:
        with suppress(OSError):  # nobody reads it, which the program would have been told
            while data and pipe.target is not None:
                data = data[os.write(pipe.target, data) :]

    def _close_pipe(self, pipe: _StderrPipe) -> None:
        self._selector.unregister(pipe.reading)
        del self._pipes[pipe.reading]
        os.close(pipe.reading)
        if pipe.target is not None:
            os.close(pipe.target)


def _runtime_note(process: RecordedProcess) -> str:
    """Return which onnxruntime and which models were found in `process` from outside."""
    assert process.runtime is not None
    version, build = process.runtime
    words = [f"process {process.pid} ({' '.join(process.info.command)[:MAX_COMMAND]}) uses"]
    words += filter(None, ["onnxruntime", version, build and f"({build})"])
    words += ["with", ", ".join(process.used_models)] if process.used_models else []
    names = ", ".join(process.uncertain_models)
    if names and process.has_searched_models:
        words += ["and may use", names]
    elif names:
        words[-1] += "; only named in its memory (--xray searches for their weights):"
        words.append(names)
    return " ".join(words)


def _add_models(process: RecordedProcess, *, searches_memory: bool = True) -> None:
    """Store the names of the models that `process` uses or may use; see `guess_models`."""
    from memdiag.programs.process_files import guess_models

    with suppress(XrayError):  # it has ended
        for path, is_used in guess_models(process.pid, searches_memory=searches_memory):
            process.models[path.name] = is_used or process.models.get(path.name, False)


def _add_xrayed_models(process: RecordedProcess, attribution: Attribution) -> None:
    """Store the models whose weights are in `process`, and forget those that are only named.

    It is not certain that the process uses a model whose weights another model has, too.
    """
    from memdiag.programs.process_files import proven_models

    indices = {index for copy in attribution.copies for index in copy.models or (0,)}
    found = {PurePath(attribution.models[index].name).name for index in indices}
    found |= {name for name, is_used in process.models.items() if is_used}
    process.models = {name: process.models.get(name, False) for name in found}
    process.models |= {PurePath(name).name: True for name in proven_models(attribution)}
    process.has_searched_models = True


def _pass_on(pipes: Sequence[tuple[int, int | None]]) -> None:
    """Write what arrives in each pipe to its target until all have ended."""
    kept = {number for pipe in pipes for number in pipe if number is not None}
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    targets = dict(pipes)
    poll = select.poll()  # select.select has a limit of 1024
    for reading in targets:
        poll.register(reading, select.POLLIN)
    while targets:
        for reading, _ in poll.poll():
            data, target = os.read(reading, _CHUNK), targets[reading]
            if not data:
                poll.unregister(reading)
                del targets[reading]
            with suppress(OSError):  # nobody reads it
                while data and target is not None:
                    data = data[os.write(target, data) :]


def _peer(connection: socket.socket) -> int | None:
    """Return the id of the process that has connected; None where the system does not tell it.

    In a namespace of its own, as in a sandbox, the process has another id for itself.
    """
    if sys.platform != "linux":
        return None
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid or None


def _answer(connection: _Connection, asks: int | None, process: RecordedProcess | None) -> None:
    """Answer the event of `process` with the number `asks`; None if the event was lost."""
    content = {"answers": asks}
    if process is not None:
        content["peak_rss_bytes"] = process.peak_rss_bytes
    answer = json.dumps(content).encode() + b"\n"
    with suppress(OSError):  # the process has ended
        connection.socket.sendall(answer)


def _grouped(lines: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of each session together, each with its line break."""
    found: dict[int, bytearray] = {}
    for number, line in lines:
        found.setdefault(number, bytearray()).extend(line + b"\n")
    for number, together in found.items():
        yield number, bytes(together)

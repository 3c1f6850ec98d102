"""The sessions of this process: introduction, forks, and the end."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import weakref

from .stderr_filter import FilteredStderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .channel import HookChannel
    from .runs import SessionRuns

SEVERITY_WARNING = 2
MAX_SHAPES = 1000
TELEMETRY_OFF_IF_SET = (
    "CI",
    "TF_BUILD",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "CIRCLECI",
    "TRAVIS",
    "JENKINS_URL",
    "CODEBUILD_BUILD_ID",
    "BUILDKITE",
    "TEAMCITY_VERSION",
    "APPVEYOR",
    "BITBUCKET_BUILD_NUMBER",
)  # variables of build servers with which onnxruntime turns its telemetry off


class HookSessions:
    """The sessions of this process.

    Args:
        onnxruntime: the imported package.
        channel: the connection to ``memdiag run``.

    Attributes:
        stderr: standard error during creations; a new object in a forked child.
        package: the folder of onnxruntime.
        max_rss: the last high-water mark of the resident set that was sent or received, in KiB.
        recorded: the runs of each session that is alive.
        default_severity: the severity of sessions that have none of their own.
        config_names: the config entries that the program may have set.
        max_shapes: the most shapes of one session whose runs are counted by shapes.
        before_exit: called at the end of the process, after the last counts of runs; None for
            nothing.
    """

    def __init__(self, onnxruntime: Any, channel: HookChannel) -> None:
        self.onnxruntime = onnxruntime
        self.channel = channel
        self.stderr = FilteredStderr(channel)
        self.package = os.path.dirname(os.path.abspath(onnxruntime.__file__))
        self.max_rss = high_water_mark()
        self.recorded: weakref.WeakSet[SessionRuns] = weakref.WeakSet()
        self.default_severity = SEVERITY_WARNING
        self.config_names: set[str] = set()
        self.max_shapes = MAX_SHAPES
        self._pid = os.getpid()
        self._expects_exit = False
        self._has_exited = False
        self._count = 0
        self._lock = threading.Lock()
        self._options_locks: dict[int, tuple[threading.Lock, int]] = {}
        self.before_exit: Callable[[], None] | None = None

    def number(self) -> int:
        """Return the number of the next session."""
        with self._lock:
            self._count += 1
            return self._count

    @contextlib.contextmanager
    def sole_user(self, options: Any) -> Iterator[None]:
        """Let one creation at a time use `options`, because the creation changes them."""
        key = id(options)
        with self._lock:
            lock, users = self._options_locks.get(key, (threading.Lock(), 0))
            self._options_locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._options_locks.pop(key)
                if users > 1:
                    self._options_locks[key] = lock, users - 1

    def hello(self, forked_from: int | None = None) -> None:
        """Connect to ``memdiag run``, and introduce this process."""
        self.channel.connect(
            forked_from=forked_from,
            sessions=[session_runs.number for session_runs in self.recorded],
            onnxruntime=self.onnxruntime.__version__,
            build=distribution_of(self.onnxruntime),
            python=sys.version.split()[0],
            executable=sys.executable or "",
            import_path=import_path(),
            telemetry=telemetry_is_on(),
        )

    def flush(self) -> None:
        """Send the counts of runs that were not sent yet."""
        for session_runs in list(self.recorded):
            session_runs.send_runs()

    def after_fork(self) -> None:
        """Connect a forked child, whose parent keeps its own connection."""
        parent, self._pid = self._pid, os.getpid()
        self._expects_exit = self._has_exited = False
        if not self.channel.connected:  # the recording has ended
            return
        self.channel.disconnect()
        self._lock = threading.Lock()
        self._options_locks = {}
        self.stderr = FilteredStderr(self.channel)
        for session_runs in list(self.recorded):
            session_runs.forget_runs()
            session_runs.first_run_lock = threading.Lock()
            session_runs.started = False
        self.hello(forked_from=parent)

    def expect_exit_of_worker(self) -> None:
        """Register `at_exit` as a finalizer if this is a worker of multiprocessing.

        Forked workers end by os._exit, without atexit. The finalizers from before the fork are
        cleared, so call this in a worker that has started.
        """
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is None or process is None or self._expects_exit:
            return
        if process.parent_process() is not None:
            self._expects_exit = True
            # It is called last: finalizers of the program may still run sessions.
            util.Finalize(None, self.at_exit, exitpriority=-1_000_000)

    def finish(self, *, process_ends: bool = True) -> None:
        """Send the remaining counts, and wait until the memory of this process has been read."""
        if not self._has_exited:
            self._has_exited = True
            self.flush()
            if self.before_exit is not None:
                with contextlib.suppress(Exception):
                    self.before_exit()
            self.channel.ask("exit", process_ends=process_ends)

    def at_exit(self) -> None:
        """Finish at the end of the program. Ctrl-C ends the program as it would without memdiag.

        A signal handler of the program may raise SystemExit, which would be printed here.
        """
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            self.finish()


def high_water_mark() -> int:
    """Return the high-water mark of the resident set in KiB.

    It is not `ru_maxrss`, which starts at the resident set of the process that started this one.
    """
    try:
        with open("/proc/self/status", "rb") as file:
            text = file.read()
        start = text.index(b"VmHWM:") + 6
        return int(text[start : text.index(b"kB", start)])
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def distribution_of(package: Any) -> str:
    """Return the name of the distribution that provides onnxruntime, such as onnxruntime-gpu."""
    try:
        from onnxruntime.capi import build_and_package_info

        return str(build_and_package_info.package_name)
    except Exception:
        return "onnxruntime"


def telemetry_is_on() -> bool:
    """Return whether the environment leaves the telemetry of onnxruntime 1.29 and newer on."""
    is_disabled = os.environ.get("ORT_DISABLE_TELEMETRY", "") not in ("", "0", "false")
    return not is_disabled and not any(map(os.environ.get, TELEMETRY_OFF_IF_SET))


def import_path() -> list[str]:
    """Return the folders from which this process imports modules, in order."""
    try:
        return [os.path.abspath(folder) for folder in sys.path]
    except Exception:  # the working directory was removed, or a folder is not a text
        return [folder for folder in map(str, sys.path) if os.path.isabs(folder)]

"""Records the sessions of onnxruntime in the process that imports it, for ``memdiag run``.

The process sends events, one line of JSON each, to the socket of ``memdiag run``. At the boundaries
of a session's creation and first run it waits for the answer, so that the memory is read there.

During a creation onnxruntime logs its phases, on standard error. The hook replaces the descriptor
by a pipe for that time and sends the pipe's other end, with the original descriptor, to ``memdiag
run``, which takes these lines out and writes the rest where it belongs. A thread of
this process could not: up to 1.24 a creation keeps the interpreter's lock. The logger callback of
1.32 is not used: lines of onnxruntime's own threads do not arrive there.

Everything here runs inside the user's program: errors are reported and never raised, and only the
standard library is imported. Written for Python 3.8 and newer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import operator
import os
import resource
import socket
import sys
import threading
import time
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

SEND_PERIOD_S = 0.5
CHECK_PERIOD_S = 0.02  # between two readings of the high-water mark, unless shapes are new
MAX_CHECK_SHARE = 0.001  # of the time of a thread, for these readings
FIRST_RUNS = 20  # of a session, which are sent at once
MAX_SHAPES = 1000  # different shapes of one session that are counted apart
MAX_FRAMES = 12
MIN_GROWTH_BYTES = 1 << 20  # of the high-water mark, for a run to be recorded as its cause
SAMPLED_BLOCKS = 64
SAMPLED_BLOCK_BYTES = 16 << 10
ANSWER_S = 120
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
PAUSE_PERIOD = "MEMDIAG_RUN_BETWEEN_RUNS"
SEVERITY_INFO = 1
SEVERITY_WARNING = 2
_OTHER_SHAPES = (None,)
_shape_of = operator.attrgetter("shape")
_BYTES_HEADER = bytes.__basicsize__ - 1
"""Bytes of a bytes object before its content (CPython)."""


class _Channel:
    """The connection to ``memdiag run``. Once it fails, it is silent."""

    def __init__(self, address: str) -> None:
        self._address, _, self._secret = address.partition("#")
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._identity: Any = None
        self._asked = 0
        self._received = b""

    def connect(self, **hello: Any) -> None:
        """Connect, and introduce this process."""
        self._lock = threading.Lock()
        self._received = b""
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(ANSWER_S)
            self._socket.connect(self._address.replace("@", "\0", 1))
            self._identity = _identity(self._socket.fileno())
        except OSError:
            self._socket = None
        self.send("hello", secret=self._secret, pid=os.getpid(), **hello)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    def disconnect(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            if _identity(self._socket.fileno()) == self._identity:
                self._socket.close()
            else:  # the program has closed our descriptor, and may have reused its number
                self._socket.detach()
            self._socket = None

    def send(self, event: str, *, descriptors: list[int] | None = None, **fields: Any) -> None:
        """Send one event without waiting."""
        with self._lock:
            self._send(event, descriptors or [], fields)

    def ask(self, event: str, *, descriptors: list[int] | None = None, **fields: Any) -> Any:
        """Send one event and return the answer to it; None if there is nobody to answer."""
        with self._lock:
            self._asked += 1
            fields["asks"] = number = self._asked
            self._send(event, descriptors or [], fields)
            try:
                while self._socket is not None:
                    answer = self._receive()
                    if answer.pop("answers", None) == number:
                        return answer or None
            except OSError:
                self.disconnect()
            return None

    def _receive(self) -> dict[str, Any]:
        """Return the next answer; empty if Ctrl-C has interrupted the wait for its start."""
        while b"\n" not in self._received:
            received = self._socket.recv(4096)  # type: ignore[union-attr]
            if not received:
                raise OSError
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        with contextlib.suppress(ValueError):
            return dict(json.loads(line))
        return {}

    def _send(self, event: str, descriptors: list[int], fields: dict[str, Any]) -> None:
        if self._socket is None:
            return
        if _identity(self._socket.fileno()) != self._identity:
            self.disconnect()
            return
        fields["event"] = event
        fields["time"] = time.time()
        line = json.dumps(fields, default=str).encode() + b"\n"
        try:
            sent = 0
            if descriptors:
                packed = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
                sent = self._socket.sendmsg([line], rights)
            self._socket.sendall(line[sent:])
        except OSError:
            self.disconnect()


def _identity(descriptor: int) -> Any:
    """Return what tells a file from others that get the same number later; None if closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Stderr:
    """Standard error, which ``memdiag run`` filters while at least one session is created."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._creations = 0
        self._original: int | None = None
        self._pipe: Any = None

    def filter(self, event: str, **fields: Any) -> bool:
        """Send `event`, wait for its answer, and have standard error filtered from then on.

        Returns:
            whether it is filtered: not without a connection, or if the process has no descriptors
            left. Call `restore` in any case.
        """
        with self._lock:
            self._creations += 1
            if self._creations > 1 or not self._channel.connected:
                self._channel.ask(event, **fields)
                return self._pipe is not None
            self._pipe = self._original = None
            try:
                self._redirect(event, fields)
            except OSError:  # too many open files
                self._channel.ask(event, **fields)
            return self._pipe is not None

    def _redirect(self, event: str, fields: dict[str, Any]) -> None:
        is_closed = _identity(2) is None
        if is_closed:  # by the program; the pipe must not get its number
            nothing = os.open(os.devnull, os.O_WRONLY)
            if nothing != 2:
                os.dup2(nothing, 2)
                os.close(nothing)
        opened: list[int] = []
        try:
            opened.extend(os.pipe())
            known = []
            if not is_closed:
                known = [os.dup(2)]
                opened.extend(known)
            _flush_stderr()
            if self._channel.ask(event, descriptors=[opened[0], *known], **fields):
                os.dup2(opened[1], 2)
                self._pipe = _identity(2)
                if known:
                    self._original = known[0]
                    opened.remove(known[0])
        finally:
            for descriptor in opened:
                os.close(descriptor)
            if is_closed and self._pipe is None:
                os.close(2)

    def restore(self, event: str, **fields: Any) -> Any:
        """Send `event` and return its answer; standard error is as it was, if nobody else filters.

        What is still in the pipe comes before what the program writes next: it is read before the
        answer.
        """
        with self._lock:
            self._creations -= 1
            if not self._creations and self._pipe is not None:
                _flush_stderr()
                # The program may have replaced standard error meanwhile.
                if _identity(2) == self._pipe:
                    if self._original is None:
                        os.close(2)
                    else:
                        os.dup2(self._original, 2)
                if self._original is not None:
                    os.close(self._original)
                self._pipe = self._original = None
        return self._channel.ask(event, **fields)


def _flush_stderr() -> None:
    with contextlib.suppress(Exception):  # closed, or replaced by an object of the program
        sys.stderr.flush()


class _Sessions:
    """The sessions of this process.

    Args:
        onnxruntime: the imported package.
        channel: the connection to ``memdiag run``.
    """

    def __init__(self, onnxruntime: Any, channel: _Channel) -> None:
        self.onnxruntime = onnxruntime
        self.channel = channel
        self.stderr = _Stderr(channel)
        self.package = os.path.dirname(os.path.abspath(onnxruntime.__file__))
        self.max_rss = _max_rss()
        self.recorded: weakref.WeakSet[_Recorded] = weakref.WeakSet()
        self.default_severity = SEVERITY_WARNING
        self.config_names: set[str] = set()
        self._pid = os.getpid()
        self._expects_exit = False
        self._has_exited = False
        self._count = 0
        self._lock = threading.Lock()
        self._options_locks: dict[int, tuple[threading.Lock, int]] = {}

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
            sessions=[recorded.number for recorded in self.recorded],
            onnxruntime=self.onnxruntime.__version__,
            build=_distribution_of(self.onnxruntime),
            python=sys.version.split()[0],
            executable=sys.executable or "",
            import_path=_import_path(),
            telemetry=_telemetry_is_on(),
        )

    def flush(self) -> None:
        """Send the runs that were not sent yet."""
        for recorded in list(self.recorded):
            recorded.send_runs()

    def after_fork(self) -> None:
        """Connect a forked child, whose parent keeps its own connection."""
        parent, self._pid = self._pid, os.getpid()
        self._expects_exit = self._has_exited = False
        if not self.channel.connected:  # the recording has ended
            return
        self.channel.disconnect()
        self._lock = threading.Lock()
        self._options_locks = {}
        self.stderr = _Stderr(self.channel)
        for recorded in list(self.recorded):
            recorded.forget_runs()
            recorded.first_run_lock = threading.Lock()
            recorded.started = False
        self.hello(forked_from=parent)

    def expect_exit_of_worker(self) -> None:
        """Have `at_exit` called if this is a worker of multiprocessing.

        Forked workers end by os._exit, without atexit. The finalizers that they had from before the
        fork are cleared, so that this is for a worker that has started.
        """
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is None or process is None or self._expects_exit:
            return
        if process.parent_process() is not None:
            self._expects_exit = True
            # The last of all: finalizers of the program may still run sessions.
            util.Finalize(None, self.at_exit, exitpriority=-1_000_000)

    def finish(self, *, process_ends: bool = True) -> None:
        """Send what is left, and wait until the memory of this process was read."""
        if not self._has_exited:
            self._has_exited = True
            self.flush()
            self.channel.ask("exit", process_ends=process_ends)

    def at_exit(self) -> None:
        """Finish at the end of the program, which Ctrl-C ends as it would without memdiag."""
        with contextlib.suppress(KeyboardInterrupt):
            self.finish()


class _Recorded:
    """What is known of one session."""

    def __init__(self, sessions: _Sessions, number: int, severity: int) -> None:
        self.number = number
        self._sessions = sessions
        self._severity = severity
        self.run_options = sessions.onnxruntime.RunOptions()
        self.run_options.log_severity_level = severity
        self.started = False
        self.first_run_lock = threading.Lock()
        self.forget_runs()

    def forget_runs(self) -> None:
        """Reset the counts of runs."""
        self._lock = threading.Lock()
        self.counts: dict[Any, list[float]] = {}
        self._by_shapes: dict[Any, list[list[float]]] = {}
        self._check_s = self._send_s = 0.0
        self._first_runs = 0

    def quiet(self, options: Any) -> Any:
        """Return RunOptions for a run as loud as it would be without memdiag.

        The session was created at the severity that logs its phases, which runs inherit.
        """
        if options is None:
            return self.run_options
        if options.log_severity_level == -1:
            options.log_severity_level = self._severity
        return options

    def add_run(self, key: Any, began: float, ended: float) -> None:
        """Count a run.

        The program's run has emptied the processor's caches, so that each object that is used here
        takes a tenth of a microsecond: nothing may be added lightly. There is no lock, because each
        thread has counts of its own.

        Args:
            key: the thread, the names of its inputs, and their shapes.
            began: the reading of `time.perf_counter` before it.
            ended: the reading after it.
        """
        latency_s = ended - began
        counted = self.counts.get(key)
        if counted is None:
            counted = self._new_count(key, latency_s)
        counted[0] += 1
        counted[1] += latency_s
        counted[4] = ended
        if latency_s < counted[2]:
            counted[2] = latency_s
        elif latency_s > counted[3]:
            counted[3] = latency_s
        if ended >= self._check_s:
            self._check(key, ended, latency_s)

    def _new_count(self, key: Any, latency_s: float) -> list[float]:
        """Return the counts of runs with `key`, which has none under this very key.

        They are: runs, the sum of their latencies, the least, the greatest, the end of the last,
        and the runs that were sent.
        """
        # OrtValue.shape is a method, which would keep the value as long as the key.
        shapes = tuple([tuple(part()) if callable(part) else part for part in key[1:]])
        if len(self._by_shapes) >= MAX_SHAPES and shapes not in self._by_shapes:
            shapes = _OTHER_SHAPES
        key = (key[0], *shapes)
        counted = self.counts.get(key)
        if counted is None:
            counted = self.counts[key] = [0, 0.0, latency_s, latency_s, 0.0, 0]
            self._by_shapes.setdefault(shapes, []).append(counted)
            # Shapes that were not seen before raise the mark; so may any run that takes its time.
            self._check_s = 0.0
        return counted

    def _check(self, key: Any, ended: float, latency_s: float) -> None:
        """Send an event if the high-water mark has risen, and the counts if it is time."""
        sessions = self._sessions
        enough = sessions.max_rss + (MIN_GROWTH_BYTES >> 10)
        # `ru_maxrss` is never less than the mark, and takes a tenth of the time to read.
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if rss >= enough:
            rss = _max_rss()
        # A program may make a few runs, wait, and be killed.
        is_first = self._first_runs < FIRST_RUNS
        if is_first:
            self._first_runs += 1
        else:
            duration_s = time.perf_counter() - ended
            self._check_s = ended + max(CHECK_PERIOD_S, duration_s / MAX_CHECK_SHARE)
        if rss >= enough:
            sessions.max_rss = rss
            sessions.channel.send(
                "peak",
                session=self.number,
                shapes=_shapes(key[1:]),
                peak_rss_bytes=rss << 10,
                latency_s=latency_s,
            )
        if is_first or ended >= self._send_s:
            sessions.flush()  # the others as well: they may not run again

    @property
    def runs(self) -> int:
        """The number of runs until now."""
        return sum(int(counted[0]) for counted in list(self.counts.values()))

    def send_runs(self) -> None:
        """Send the counts that have changed since the last time."""
        with self._lock:  # counts that are sent later must arrive later
            now_s = time.perf_counter()
            self._send_s = now_s + SEND_PERIOD_S
            counts = list(self.counts.items())
            changed: dict[Any, None] = {}
            for key, counted in counts:
                if counted[0] != counted[5]:
                    counted[5] = counted[0]
                    changed[key[1:]] = None
            if not changed:
                return
            runs = []
            for shapes in changed:
                number, total, least, most, _, _ = zip(*self._by_shapes[shapes])
                runs.append([_shapes(shapes), sum(number), sum(total), min(least), max(most)])
            self._sessions.channel.send(
                "runs",
                session=self.number,
                runs=runs,
                threads=len({key[0] for key, _ in counts}),
                last_run_age_s=now_s - max(counted[4] for _, counted in counts),
            )


def _max_rss() -> int:
    """Return the high-water mark of the resident set in KiB.

    Not `ru_maxrss`, which starts at the resident set of the process that started this one.
    """
    try:
        with open("/proc/self/status", "rb") as file:
            text = file.read()
        start = text.index(b"VmHWM:") + 6
        return int(text[start : text.index(b"kB", start)])
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _key(feeds: Any) -> Any:
    """Return this thread, and the names and shapes of `feeds`, as a key."""
    try:
        shapes = tuple(map(_shape_of, feeds.values()))
    except AttributeError:
        shapes = tuple(map(_shape, feeds.values()))
    return (threading.get_ident(), *feeds, *shapes)


def _shape(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is None:
        return (len(value),) if isinstance(value, (list, tuple)) else ()
    return tuple(shape)


def _shapes(part: Any) -> dict[str, Any] | None:
    """Return the shapes by input name; None for runs that are not counted apart.

    Args:
        part: a key without its thread.
    """
    if part == _OTHER_SHAPES:
        return None
    inputs = len(part) // 2
    found = {}
    for name, shape in zip(part[:inputs], part[inputs:]):
        with contextlib.suppress(Exception):  # a dimension that is no number
            found[str(name)] = [int(size) for size in (shape() if callable(shape) else shape)]
    return found


def _distribution_of(package: Any) -> str:
    """Return the name of the distribution that provides onnxruntime, such as onnxruntime-gpu."""
    try:
        from onnxruntime.capi import build_and_package_info

        return str(build_and_package_info.package_name)
    except Exception:
        return "onnxruntime"


def _model(source: Any) -> dict[str, Any]:
    """Return what identifies the model that a session is created from."""
    if isinstance(source, bytes):
        return {
            "path": None,
            "bytes": len(source),
            "address": id(source) + _BYTES_HEADER,
            "digest": content_digest(len(source), memoryview(source).__getitem__),
        }
    return {"path": os.path.abspath(os.fspath(source)), "bytes": None}


def content_digest(length: int, read: Callable[[slice], Any]) -> str:
    """Return a hash of evenly spaced blocks and the length: whole models take too long.

    Args:
        length: the bytes of the model.
        read: returns the bytes at a slice; the last slice may reach beyond the end.
    """
    # Not from hashlib, which loads OpenSSL: 4 MB.
    from _blake2 import blake2b

    digest = blake2b(str(length).encode(), digest_size=16)
    step = max(SAMPLED_BLOCK_BYTES, length // SAMPLED_BLOCKS)
    for start in range(0, length, step):
        digest.update(read(slice(start, start + SAMPLED_BLOCK_BYTES)))
    return digest.hexdigest()


def _telemetry_is_on() -> bool:
    """Return whether the environment leaves the telemetry of onnxruntime 1.29 and newer on."""
    off = os.environ.get("ORT_DISABLE_TELEMETRY", "") not in ("", "0", "false")
    return not off and not any(map(os.environ.get, TELEMETRY_OFF_IF_SET))


def _import_path() -> list[str]:
    """Return the folders from which this process imports modules, in order."""
    try:
        return [os.path.abspath(folder) for folder in sys.path]
    except Exception:  # the working directory was removed; not a text
        return [folder for folder in map(str, sys.path) if os.path.isabs(folder)]


@functools.lru_cache
def _default_options(options_class: Callable[[], Any]) -> dict[str, Any]:
    """Return the settings of new options by name."""
    found = {}
    options = options_class()
    for name in dir(options):
        if name.startswith("_") or name in ("logid", "log_severity_level"):
            continue
        with contextlib.suppress(Exception):
            value = getattr(options, name)
            if not callable(value):
                found[name] = value
    return found


def _options(options: Any) -> dict[str, str]:
    """Return the settings of `options` that differ from the defaults of this onnxruntime."""
    found = {}
    for name, default in _default_options(options.__class__).items():
        with contextlib.suppress(Exception):
            value = getattr(options, name)
            if value != default:
                found[name] = str(value)
    return found


def _callers(package: str) -> list[list[Any]]:
    """Return file, line and function of the callers outside onnxruntime, the nearest first."""
    found: list[list[Any]] = []
    frame: Any = sys._getframe(2)
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(package) and code.co_filename != __file__:
            found.append([_file_or_cell(code.co_filename), frame.f_lineno, code.co_name])
        frame = frame.f_back
    return found


def _file_or_cell(file: str) -> str:
    """Return `file`, or ``cell [2]`` for the temporary name of a cell in a notebook."""
    if "ipykernel_" not in file:
        return file
    try:
        shell = sys.modules["IPython"].get_ipython()
        return f"cell [{int(shell.compile._filename_map[file])}]"
    except Exception:  # not in a notebook, or another release of IPython
        return file


def install(onnxruntime: Any, address: str, *, at_import: bool) -> Callable[[], None]:
    """Wrap the sessions of `onnxruntime`, and connect to the recording at `address`.

    Args:
        onnxruntime: the imported package.
        address: where ``memdiag run`` listens, and its secret.
        at_import: whether the program has not used `onnxruntime` yet.

    Returns:
        a function that ends the recording in this process.
    """
    session_class = onnxruntime.InferenceSession
    sessions = _Sessions(onnxruntime, _Channel(address))
    if not at_import:
        sessions.config_names.update(_CONFIG)
    sessions.hello()
    wrapped = [(session_class, "__init__", _recorded_init(session_class.__init__, sessions))]
    for base in session_class.__mro__:
        for name, wrap in _RUNS.items():
            if name in vars(base):
                wrapped.append((base, name, wrap(vars(base)[name])))
    if os.environ.get(PAUSE_PERIOD):
        wrapped = _stopping_between_runs(wrapped, sessions)
    for base in session_class.__mro__:
        if "end_profiling" in vars(base):
            wrapped.append(
                (base, "end_profiling", _filtered(vars(base)["end_profiling"], sessions))
            )
    set_entry = onnxruntime.SessionOptions.add_session_config_entry
    remembered = _remembered_name(set_entry, sessions.config_names)
    wrapped.append((onnxruntime.SessionOptions, "add_session_config_entry", remembered))
    set_severity = _remembered_severity(onnxruntime.set_default_logger_severity, sessions)
    for module in (onnxruntime, onnxruntime.capi._pybind_state):
        wrapped.append((module, "set_default_logger_severity", set_severity))
    for owner, name, method in wrapped:
        setattr(owner, name, method)
    os.register_at_fork(before=sessions.flush, after_in_child=sessions.after_fork)
    atexit.register(sessions.at_exit)

    def uninstall() -> None:
        for owner, name, method in wrapped:
            if vars(owner).get(name) is method:
                setattr(owner, name, method.__wrapped__)
        sessions.finish(process_ends=False)
        atexit.unregister(sessions.at_exit)
        sessions.channel.disconnect()
        sessions.recorded.clear()

    return uninstall


def _stopping_between_runs(
    wrapped: list[tuple[Any, str, Any]], sessions: _Sessions
) -> list[tuple[Any, str, Any]]:
    """Return `wrapped` with methods that also stop between runs, so that the memory is read."""
    import importlib.util

    # By its path: the folder of the hook need not be among those that modules are imported from.
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "between_runs.py")
    spec = importlib.util.spec_from_file_location("memdiag_between_runs", path)
    if spec is None or spec.loader is None:
        return wrapped
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stops = module.PauseBetweenRuns(sessions.channel.ask, float(os.environ[PAUSE_PERIOD]))
    return [
        (owner, name, stops.watched(method) if name in _RUNS else method)
        for owner, name, method in wrapped
    ]


def _remembered_severity(
    original: Callable[[int], None], sessions: _Sessions
) -> Callable[[int], None]:
    """Return `original`, which sets the severity of sessions that have none of their own."""

    @functools.wraps(original)
    def set_default_logger_severity(severity: int) -> None:
        original(severity)
        sessions.default_severity = severity

    return set_default_logger_severity


def _filtered(original: Callable[..., Any], sessions: _Sessions) -> Callable[..., Any]:
    """Return `original`, during which the session's log is taken out of standard error."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        sessions.stderr.filter("stderr_filtered")
        try:
            return original(self, *arguments, **named)
        finally:
            sessions.stderr.restore("stderr_restored")

    return method


def _recorded_init(original: Callable[..., None], sessions: _Sessions) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            creation = _Creation(sessions, arguments, named)
        except Exception as error:
            _report(sessions, error)
            original(self, *arguments, **named)
            return
        creation.run(functools.partial(original, self), self)

    return __init__


def _report(sessions: _Sessions, error: Exception) -> None:
    with contextlib.suppress(Exception):
        sessions.channel.send("hook_failed", message=f"{type(error).__name__}: {error}"[:500])


class _Creation:
    """The creation of one session.

    Args:
        sessions: the sessions of this process.
        arguments, named: the arguments of InferenceSession.
    """

    def __init__(
        self, sessions: _Sessions, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self._sessions = sessions
        self._number = sessions.number()
        given = dict(zip(("path_or_bytes", "sess_options", "providers"), arguments))
        given.update(named)
        self._own_options = given.get("sess_options") is None
        self._options = given.get("sess_options") or sessions.onnxruntime.SessionOptions()
        if len(arguments) > 1:
            arguments = (arguments[0], self._options, *arguments[2:])
        else:
            named = {**named, "sess_options": self._options}
        self._arguments, self._named = arguments, named
        self._severity = self._options.log_severity_level
        if self._severity < 0:
            self._severity = sessions.default_severity
        self._logid = self._options.logid
        self._description = {
            "model": _model(given.get("path_or_bytes", b"")),
            "callers": _callers(sessions.package),
            "options": _options(self._options),
            "config": _named_config(self._options, sessions.config_names),
            "providers": [
                provider if isinstance(provider, str) else str(provider[0])
                for provider in given.get("providers") or ()
            ],
            "threads": [self._options.intra_op_num_threads, self._options.inter_op_num_threads],
            "severity": self._severity,
            "logid": self._logid,
        }

    def run(self, create: Callable[..., None], session: Any) -> None:
        """Create the session; what it raises is the program's."""
        sessions = self._sessions
        options = self._options
        self._runs = {other.number: other.runs for other in sessions.recorded}
        error: BaseException | None = None
        with sessions.sole_user(options):
            started = options.log_severity_level, options.logid
            if sessions.stderr.filter("create", session=self._number, **self._description):
                # Not verbose: in runs, sessions write verbose lines whatever their RunOptions say.
                options.log_severity_level = min(self._severity, SEVERITY_INFO)
                options.logid = f"memdiag-{self._number}"
            began = time.perf_counter()
            try:
                create(*self._arguments, **self._named)
            except BaseException as raised:
                error = raised
                raise
            finally:
                latency_s = time.perf_counter() - began
                options.log_severity_level, options.logid = started
                fields: dict[str, Any] = {"session": self._number, "latency_s": latency_s}
                if error is not None:
                    fields["error"] = str(error)[:1000]
                else:
                    try:
                        fields.update(self._finish(session, started))
                    except Exception as failed:
                        _report(sessions, failed)
                answer = sessions.stderr.restore("created", **fields)
                if answer:
                    sessions.max_rss = max(sessions.max_rss, answer["peak_rss_bytes"] >> 10)

    def _finish(self, session: Any, started: tuple[int, str]) -> dict[str, Any]:
        """Return the facts of the session that was created, whose runs are counted from now on."""
        sessions = self._sessions
        kept = session._sess_options
        if kept is not None:
            kept.log_severity_level, kept.logid = started
        if self._own_options and hasattr(session, "_sess_options_initial"):
            session._sess_options_initial = None
        ran_meanwhile = [
            other.number
            for other in sessions.recorded
            if other.runs != self._runs.get(other.number, 0)
        ]
        recorded = _Recorded(sessions, self._number, self._severity)
        session._memdiag_recorded = recorded
        sessions.recorded.add(recorded)
        with contextlib.suppress(Exception):
            sessions.expect_exit_of_worker()
        weakref.finalize(session, _released, sessions, recorded).atexit = False
        return {
            "providers": session.get_providers(),
            "address": _native_address(session._sess),
            "ran_meanwhile": ran_meanwhile,
        }


_CONFIG = frozenset(
    {
        "session.disable_prepacking",
        "session.use_env_allocators",
        "session.use_device_allocator_for_initializers",
        "session.save_external_prepacked_constant_initializers",
        "session.use_memory_mapped_ort_model",
        "session.use_ort_model_bytes_directly",
        "session.disable_quant_qdq",
        "session.set_denormal_as_zero",
        "optimization.disable_specified_optimizers",
    }
)
"""The config entries that change memory; there is no list of those that are set."""


def _named_config(options: Any, names: Any) -> dict[str, str]:
    """Return the config entries of `options` among `names`."""
    found = {}
    for name in sorted(names):
        with contextlib.suppress(Exception):  # not set: this takes 30 microseconds
            found[name] = str(options.get_session_config_entry(name))
    return found


def _remembered_name(original: Callable[..., None], names: set[str]) -> Callable[..., None]:
    """Return `original`, which sets a config entry, and adds the entry's name to `names`."""

    @functools.wraps(original)
    def add_session_config_entry(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        names.update(_CONFIG.intersection([*arguments, *named.values()]))

    return add_session_config_entry


def _native_address(session: Any) -> int:
    """Return the address of the C++ object of `session`, a session of the extension module.

    pybind11 stores it after the header that every object of CPython has.
    """
    import ctypes

    return ctypes.c_size_t.from_address(id(session) + object.__basicsize__).value


def _released(sessions: _Sessions, recorded: _Recorded) -> None:
    with contextlib.suppress(Exception):
        recorded.send_runs()
        sessions.channel.send("released", session=recorded.number)


def _wrap_run(
    original: Callable[..., Any], feeds_at: int | None, options_at: int
) -> Callable[..., Any]:
    """Return a method that runs a session as `original` does, and counts the run.

    Args:
        original: the method of the session.
        feeds_at: position of the inputs among its arguments; None for an IOBinding.
        options_at: position of the RunOptions.
    """
    perf_counter = time.perf_counter

    @functools.wraps(original)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        recorded = self.__dict__.get("_memdiag_recorded")
        if recorded is None:
            return original(self, *arguments, **named)
        try:
            if len(arguments) > options_at:
                options = recorded.quiet(arguments[options_at])
                arguments = (*arguments[:options_at], options, *arguments[options_at + 1 :])
            else:
                named["run_options"] = recorded.quiet(named.get("run_options"))
            if feeds_at is None:
                key: Any = _key({})
            else:
                key = _key(arguments[feeds_at] if len(arguments) > feeds_at else _feeds_of(named))
        except Exception as error:
            _report(recorded._sessions, error)
            return original(self, *arguments, **named)
        if not recorded.started:
            return _first_run(recorded, functools.partial(original, self), key, arguments, named)
        began = perf_counter()
        result = original(self, *arguments, **named)
        try:
            recorded.add_run(key, began, perf_counter())
        except Exception as error:
            _report(recorded._sessions, error)
        return result

    return run


def _wrap_plain_run(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `InferenceSession.run` with counting: as `_wrap_run`, for the most frequent way."""
    counted_run = _wrap_run(original, feeds_at=1, options_at=2)
    perf_counter, get_ident, shape_of = time.perf_counter, threading.get_ident, _shape_of

    @functools.wraps(original)
    def run(
        self: Any, output_names: Any, input_feed: Any, run_options: Any = None, **named: Any
    ) -> Any:
        try:
            recorded = self._memdiag_recorded
            options = recorded.run_options if recorded.started else None
            key = (get_ident(), *input_feed, *map(shape_of, input_feed.values()))
        except Exception:  # not recorded; a list of texts; no dictionary
            options = None
        if options is None or run_options is not None or named:
            return counted_run(self, output_names, input_feed, run_options, **named)
        began = perf_counter()
        result = original(self, output_names, input_feed, options)
        try:
            recorded.add_run(key, began, perf_counter())
        except Exception as error:
            _report(recorded._sessions, error)
        return result

    return run


def _feeds_of(named: dict[str, Any]) -> Any:
    for name in ("input_feed", "input_dict_ort_values"):
        if name in named:
            return named[name]
    return {}


def _first_run(
    recorded: Any, run: Callable[..., Any], key: Any, arguments: Any, named: dict[str, Any]
) -> Any:
    """Run for the first time, with the memory read before and after."""
    channel = recorded._sessions.channel
    with recorded.first_run_lock:
        is_first, recorded.started = not recorded.started, True
    if is_first:
        with contextlib.suppress(Exception):
            recorded._sessions.expect_exit_of_worker()
        channel.ask("first_run", session=recorded.number, shapes=_shapes(key[1:]))
    began = time.perf_counter()
    try:
        return run(*arguments, **named)
    finally:
        latency_s = time.perf_counter() - began
        with contextlib.suppress(Exception):
            if is_first:
                answer = channel.ask("first_run_done", session=recorded.number, latency_s=latency_s)
                if answer:
                    recorded._sessions.max_rss = max(
                        recorded._sessions.max_rss, answer["peak_rss_bytes"] >> 10
                    )
            recorded.add_run(key, began, began + latency_s)
            recorded.send_runs()


_RUNS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "run": _wrap_plain_run,
    "run_with_ort_values": functools.partial(_wrap_run, feeds_at=1, options_at=2),
    "run_with_iobinding": functools.partial(_wrap_run, feeds_at=None, options_at=1),
    "run_async": functools.partial(_wrap_run, feeds_at=1, options_at=4),
}

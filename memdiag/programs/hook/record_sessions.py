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
import collections
import contextlib
import functools
import json
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
MAX_SHAPES = 1000  # different shapes of one session that are counted apart
MAX_FRAMES = 12
MIN_GROWTH_BYTES = 1 << 20  # of the high-water mark, for a run to be recorded as its cause
SAMPLED_BLOCKS = 64
SAMPLED_BLOCK_BYTES = 16 << 10
ANSWER_S = 120
BETWEEN_RUNS = "MEMDIAG_RUN_BETWEEN_RUNS"
WATCHED_RUNS = ("run", "run_with_ort_values")
SEVERITY_INFO = 1
SEVERITY_WARNING = 2
_BYTES_HEADER = bytes.__basicsize__ - 1
"""Bytes of a bytes object before its content (CPython)."""


class _Channel:
    """The connection to ``memdiag run``. Once it fails, it is silent."""

    def __init__(self, address: str) -> None:
        self._address, _, self._secret = address.partition("#")
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._identity: Any = None

    def connect(self, **hello: Any) -> None:
        """Connect, and introduce this process."""
        self._lock = threading.Lock()
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
        fields["asks"] = True
        with self._lock:
            self._send(event, descriptors or [], fields)
            if self._socket is None:
                return None
            answer = b""
            try:
                while not answer.endswith(b"\n"):
                    received = self._socket.recv(4096)
                    if not received:
                        raise OSError
                    answer += received
            except OSError:
                self.disconnect()
                return None
            return json.loads(answer)

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
    """Standard error, which ``memdiag run`` filters while at least one session is created.

    As a context manager it returns whether it is filtered: not without a connection, or if the
    process has no descriptors left.
    """

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._creations = 0
        self._original: int | None = None
        self._pipe: Any = None

    def __enter__(self) -> bool:
        with self._lock:
            if not self._creations:
                try:
                    self._redirect()
                except OSError:  # too many open files
                    self._pipe = None
            self._creations += 1
            return self._pipe is not None

    def _redirect(self) -> None:
        self._pipe = self._original = None
        if not self._channel.connected:
            return
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
            if self._channel.ask("stderr_filtered", descriptors=[opened[0], *known]):
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

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._creations -= 1
            if self._creations or self._pipe is None:
                return
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
            # What is still in the pipe must come before whatever the program writes next.
            self._channel.ask("stderr_restored")


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
        self._pid = os.getpid()
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
        )

    def flush(self) -> None:
        """Send the runs that were not sent yet."""
        for recorded in list(self.recorded):
            recorded.send_runs()

    def after_fork(self) -> None:
        """Connect a forked child, whose parent keeps its own connection."""
        parent, self._pid = self._pid, os.getpid()
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

    def at_exit(self) -> None:
        """Send what is left, and wait until the memory of this process was read."""
        self.flush()
        self.channel.ask("exit")


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
        self._counts: dict[Any, list[float]] = {}
        self._threads: set[int] = set()
        self._unsent: set[Any] = set()
        self._sent = self._checked = time.perf_counter()
        self._last_run = self._sent

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

        This takes a microsecond, in every run of the program: nothing may be added lightly.

        Args:
            key: the names of its inputs, and their shapes.
            began: the reading of `time.perf_counter` before it.
            ended: the reading after it.
        """
        latency_s = ended - began
        thread = threading.get_ident()
        with self._lock:
            self._last_run = ended
            counted = self._counts.get(key)
            if counted is None:
                if len(self._counts) >= MAX_SHAPES:
                    key = None
                counted = self._counts.setdefault(key, [0, 0.0, latency_s, latency_s])
                self._checked = 0.0
            counted[0] += 1
            counted[1] += latency_s
            if latency_s < counted[2]:
                counted[2] = latency_s
            elif latency_s > counted[3]:
                counted[3] = latency_s
            if thread not in self._threads:
                self._threads.add(thread)
            self._unsent.add(key)
        # Shapes that were not seen before raise the mark; so may any run that takes its time.
        if ended - self._checked >= CHECK_PERIOD_S:
            self._checked = ended
            self._check_mark(key, latency_s)
            if ended - self._sent >= SEND_PERIOD_S:
                self.send_runs()

    def _check_mark(self, key: Any, latency_s: float) -> None:
        """Send an event if the high-water mark of the process has risen."""
        sessions = self._sessions
        rss = _max_rss()
        if rss - sessions.max_rss >= MIN_GROWTH_BYTES >> 10:
            sessions.max_rss = rss
            sessions.channel.send(
                "peak",
                session=self.number,
                shapes=_shapes(key),
                peak_rss_bytes=rss << 10,
                latency_s=latency_s,
            )

    @property
    def runs(self) -> int:
        """The number of runs until now."""
        with self._lock:
            return sum(int(counted[0]) for counted in self._counts.values())

    def send_runs(self) -> None:
        """Send the counts that have changed since the last time."""
        with self._lock:
            changed, self._unsent = self._unsent, set()
            runs = [[_shapes(key), *self._counts[key]] for key in changed]
            threads = len(self._threads)
            self._sent = time.perf_counter()
            age_s = self._sent - self._last_run
        if runs:
            self._sessions.channel.send(
                "runs", session=self.number, runs=runs, threads=threads, last_run_age_s=age_s
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
    """Return the names and shapes of `feeds`, as a key."""
    try:
        return tuple(feeds), tuple([value.shape for value in feeds.values()])
    except AttributeError:
        return tuple(feeds), tuple([_shape(value) for value in feeds.values()])


def _shape(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    if shape is None:
        return (len(value),) if isinstance(value, (list, tuple)) else ()
    return tuple(shape)


def _shapes(key: Any) -> dict[str, Any] | None:
    """Return the shapes by input name; None for runs that are not counted apart."""
    if key is None:
        return None
    names, shapes = key
    found = {}
    for name, shape in zip(names, shapes):
        # OrtValue.shape is a method.
        with contextlib.suppress(Exception):
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
            "digest": _digest(source),
        }
    return {"path": os.path.abspath(os.fspath(source)), "bytes": None}


def _digest(content: bytes) -> str:
    """Return a hash of evenly spaced blocks and the length: whole models take too long."""
    # Not from hashlib, which loads OpenSSL: 4 MB.
    from _blake2 import blake2b

    digest = blake2b(str(len(content)).encode(), digest_size=16)
    view = memoryview(content)
    step = max(SAMPLED_BLOCK_BYTES, len(content) // SAMPLED_BLOCKS)
    for start in range(0, len(content), step):
        digest.update(view[start : start + SAMPLED_BLOCK_BYTES])
    return digest.hexdigest()


def _options(options: Any) -> dict[str, str]:
    """Return the settings of `options` that differ from the defaults of this onnxruntime."""
    found = {}
    for name in dir(options):
        if name.startswith("_") or name in ("logid", "log_severity_level"):
            continue
        with contextlib.suppress(Exception):
            value, default = getattr(options, name), getattr(type(options)(), name)
            if not callable(value) and value != default:
                found[name] = str(value)
    return found


def _callers(package: str) -> list[list[Any]]:
    """Return file, line and function of the callers outside onnxruntime, the nearest first."""
    found: list[list[Any]] = []
    frame: Any = sys._getframe(2)
    while frame is not None and len(found) < MAX_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(package) and code.co_filename != __file__:
            found.append([code.co_filename, frame.f_lineno, code.co_name])
        frame = frame.f_back
    return found


def install(onnxruntime: Any, address: str) -> Callable[[], None]:
    """Wrap the sessions of `onnxruntime`, and connect to the recording at `address`.

    Returns:
        a function that ends the recording in this process.
    """
    session_class = onnxruntime.InferenceSession
    sessions = _Sessions(onnxruntime, _Channel(address))
    sessions.hello()
    wrapped = [(session_class, "__init__", _recorded_init(session_class.__init__, sessions))]
    for base in session_class.__mro__:
        for name, wrap in _RUNS.items():
            if name in vars(base):
                wrapped.append((base, name, wrap(vars(base)[name])))
    if os.environ.get(BETWEEN_RUNS):
        wrapped = _stopping_between_runs(wrapped, sessions)
    for base in session_class.__mro__:
        if "end_profiling" in vars(base):
            wrapped.append(
                (base, "end_profiling", _filtered(vars(base)["end_profiling"], sessions))
            )
    for owner, name, method in wrapped:
        setattr(owner, name, method)
    os.register_at_fork(before=sessions.flush, after_in_child=sessions.after_fork)
    atexit.register(sessions.at_exit)

    def uninstall() -> None:
        for owner, name, method in wrapped:
            if vars(owner).get(name) is method:
                setattr(owner, name, method.__wrapped__)
        sessions.at_exit()
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
    stops = module.BetweenRuns(sessions.channel.ask, float(os.environ[BETWEEN_RUNS]))
    return [
        (owner, name, stops.watched(method, feeds_at=1) if name in WATCHED_RUNS else method)
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
        with sessions.stderr:
            return original(self, *arguments, **named)

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
            "config": named_config(self._options),
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
        self._runs = collections.defaultdict(
            int, {other.number: other.runs for other in sessions.recorded}
        )
        error: BaseException | None = None
        with sessions.sole_user(options), sessions.stderr as is_filtered:
            started = options.log_severity_level, options.logid
            if is_filtered:
                # Not verbose: in runs, sessions write verbose lines whatever their RunOptions say.
                options.log_severity_level = min(self._severity, SEVERITY_INFO)
                options.logid = f"memdiag-{self._number}"
            sessions.channel.ask("create", session=self._number, **self._description)
            began = time.perf_counter()
            try:
                create(*self._arguments, **self._named)
            except BaseException as raised:
                error = raised
                raise
            finally:
                latency_s = time.perf_counter() - began
                options.log_severity_level, options.logid = started
                try:
                    self._finish(session, started, latency_s, error)
                except Exception as failed:
                    _report(sessions, failed)

    def _finish(
        self, session: Any, started: tuple[int, str], latency_s: float, error: BaseException | None
    ) -> None:
        sessions = self._sessions
        fields: dict[str, Any] = {"session": self._number, "latency_s": latency_s}
        if error is not None:
            sessions.channel.ask("created", error=str(error)[:1000], **fields)
            return
        kept = session._sess_options
        if kept is not None:
            kept.log_severity_level, kept.logid = started
        if self._own_options and hasattr(session, "_sess_options_initial"):
            session._sess_options_initial = None
        recorded = _Recorded(sessions, self._number, self._severity)
        session._memdiag_recorded = recorded
        sessions.recorded.add(recorded)
        weakref.finalize(session, _released, sessions, recorded).atexit = False
        answer = sessions.channel.ask(
            "created",
            providers=session.get_providers(),
            address=_native_address(session._sess),
            ran_meanwhile=[
                other.number
                for other in sessions.recorded
                if other.runs != self._runs[other.number]
            ],
            **fields,
        )
        if answer:
            sessions.max_rss = max(sessions.max_rss, answer["peak_rss_bytes"] >> 10)


def named_config(options: Any) -> dict[str, str]:
    """Return the config entries of `options` that change memory; there is no list of all."""
    found = {}
    for name in (
        "session.disable_prepacking",
        "session.use_env_allocators",
        "session.use_device_allocator_for_initializers",
        "session.save_external_prepacked_constant_initializers",
        "session.use_memory_mapped_ort_model",
        "session.use_ort_model_bytes_directly",
        "session.disable_quant_qdq",
        "session.set_denormal_as_zero",
        "optimization.disable_specified_optimizers",
    ):
        with contextlib.suppress(Exception):  # not set
            found[name] = str(options.get_session_config_entry(name))
    return found


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
                key: Any = ((), ())
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
    perf_counter = time.perf_counter

    @functools.wraps(original)
    def run(
        self: Any, output_names: Any, input_feed: Any, run_options: Any = None, **named: Any
    ) -> Any:
        recorded = self.__dict__.get("_memdiag_recorded")
        if recorded is None or not recorded.started or run_options is not None or named:
            return counted_run(self, output_names, input_feed, run_options, **named)
        try:
            key = tuple(input_feed), tuple([value.shape for value in input_feed.values()])
        except AttributeError:  # a list of texts, or no dictionary
            return counted_run(self, output_names, input_feed, run_options)
        began = perf_counter()
        result = original(self, output_names, input_feed, recorded.run_options)
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
        channel.ask("first_run", session=recorded.number, shapes=_shapes(key))
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

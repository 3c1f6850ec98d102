"""Records the sessions of onnxruntime in the process that imports it, for ``memdiag run``.

The process sends events (`channel`) of its sessions (`sessions`) to ``memdiag run``. At the
boundaries of a session's creation (`creation`) and first run (`runs`) it waits for the answer, so
that the memory is read there.

Everything in this folder runs inside the user's program: errors are reported and never raised, and
only the standard library is imported. Written for Python 3.8 and newer. The files import each other
by relative names: in a program the folder is the package ``_memdiag_hook`` (`sitecustomize`).
"""

from __future__ import annotations

import atexit
import functools
import os

from .channel import HookChannel
from .creation import CONFIG_NAMES, outside_callers, recorded_init
from .runs import WRAPPED_RUNS
from .sessions import HookSessions
from .tracebacks import hide_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PAUSE_PERIOD = "MEMDIAG_RUN_BETWEEN_RUNS"
"""The variable with the seconds between two pauses, for ``memdiag leak``."""


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
    sessions = HookSessions(onnxruntime, HookChannel(address))
    if not at_import:
        sessions.config_names.update(CONFIG_NAMES)
    sessions.hello()
    wrapped = [(session_class, "__init__", recorded_init(session_class.__init__, sessions))]
    for base in session_class.__mro__:
        for name, wrap in WRAPPED_RUNS.items():
            if name in vars(base):
                wrapped.append((base, name, wrap(vars(base)[name])))
    if os.environ.get(PAUSE_PERIOD):
        wrapped = _stopping_between_runs(wrapped, sessions)
    for base in session_class.__mro__:
        if "end_profiling" in vars(base):
            wrapped.append(
                (
                    base,
                    "end_profiling",
                    _stderr_filtered_method(vars(base)["end_profiling"], sessions),
                )
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
    wrapped: list[tuple[Any, str, Any]], sessions: HookSessions
) -> list[tuple[Any, str, Any]]:
    """Return `wrapped` with methods that also stop between runs, so that the memory is read."""
    from .between_runs import PauseBetweenRuns

    stops = PauseBetweenRuns(
        sessions.channel.ask,
        float(os.environ[PAUSE_PERIOD]),
        # Of onnxruntime's own tools, such as its calibrators, the line is told as of a library.
        functools.partial(outside_callers, os.path.join(sessions.package, "capi")),
    )
    sessions.before_exit = stops.at_exit
    sessions.max_shapes = 0  # counts of other shapes in each run would grow as a leak does
    sessions.records_device = False  # so would the records of allocations
    os.register_at_fork(after_in_child=stops.after_fork)
    return [
        (owner, name, stops.watched(method) if name in WRAPPED_RUNS else method)
        for owner, name, method in wrapped
    ]


def _stderr_filtered_method(
    original: Callable[..., Any], sessions: HookSessions
) -> Callable[..., Any]:
    """Return `original`, during which the session's log is taken out of standard error."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        sessions.stderr.filter("stderr_filtered")
        try:
            return original(self, *arguments, **named)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            sessions.stderr.restore("stderr_restored")

    return method


def _remembered_severity(
    original: Callable[[int], None], sessions: HookSessions
) -> Callable[[int], None]:
    """Return `original`, which sets the severity of sessions that have none of their own."""

    @functools.wraps(original)
    def set_default_logger_severity(severity: int) -> None:
        try:
            original(severity)
        except BaseException as error:
            hide_frames(error)
            raise
        sessions.default_severity = severity

    return set_default_logger_severity


def _remembered_name(original: Callable[..., None], names: set[str]) -> Callable[..., None]:
    """Return `original`, which sets a config entry, and adds the entry's name to `names`."""

    @functools.wraps(original)
    def add_session_config_entry(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            original(self, *arguments, **named)
        except BaseException as error:
            hide_frames(error)
            raise
        names.update(CONFIG_NAMES.intersection([*arguments, *named.values()]))

    return add_session_config_entry

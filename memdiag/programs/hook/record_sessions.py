"""Records the sessions of onnxruntime in the process that imports it, for ``memdiag run``.

The process sends events (`channel`) of its sessions (`sessions`) to ``memdiag run``. At the
boundaries of a session's creation (`creation`) and first run (`runs`) it waits for the answer, so
that the memory is read there.

Everything in this folder runs inside the user's program: errors are reported and never raised, and
only the standard library is imported. The code is for Python 3.8 and newer. The files import each
other by relative names: in a program the folder is the package ``_memdiag_hook`` (`sitecustomize`).
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
        address: the address at which ``memdiag run`` listens, and its secret.
        at_import: whether the program has not used `onnxruntime` yet.

    Returns:
        A function that ends the recording in this process.
    """
    session_class = onnxruntime.InferenceSession
    sessions = HookSessions(onnxruntime, HookChannel(address))
    if not at_import:
        sessions.config_names.update(CONFIG_NAMES)
    sessions.hello()
    wrapped_methods = [(session_class, "__init__", recorded_init(session_class.__init__, sessions))]
    for base in session_class.__mro__:
        for name, wrap in WRAPPED_RUNS.items():
            if name in vars(base):
                wrapped_methods.append((base, name, wrap(vars(base)[name])))
    if os.environ.get(PAUSE_PERIOD):
        wrapped_methods = _with_pause_between_runs(wrapped_methods, sessions)
    for base in session_class.__mro__:
        if "end_profiling" in vars(base):
            wrapped_methods.append(
                (
                    base,
                    "end_profiling",
                    _stderr_filtered_method(vars(base)["end_profiling"], sessions),
                )
            )
    set_entry = onnxruntime.SessionOptions.add_session_config_entry
    add_config_entry = _config_entry_setter(set_entry, sessions.config_names)
    wrapped_methods.append(
        (onnxruntime.SessionOptions, "add_session_config_entry", add_config_entry)
    )
    set_severity = _severity_setter(onnxruntime.set_default_logger_severity, sessions)
    for module in (onnxruntime, onnxruntime.capi._pybind_state):
        wrapped_methods.append((module, "set_default_logger_severity", set_severity))
    for owner, name, method in wrapped_methods:
        setattr(owner, name, method)
    os.register_at_fork(before=sessions.flush, after_in_child=sessions.after_fork)
    atexit.register(sessions.at_exit)

    def uninstall() -> None:
        for owner, name, method in wrapped_methods:
            if vars(owner).get(name) is method:
                setattr(owner, name, method.__wrapped__)
        sessions.finish(process_ends=False)
        atexit.unregister(sessions.at_exit)
        sessions.channel.disconnect()
        sessions.recorded.clear()

    return uninstall


def _with_pause_between_runs(
    wrapped_methods: list[tuple[Any, str, Any]], sessions: HookSessions
) -> list[tuple[Any, str, Any]]:
    """Return `wrapped_methods` with methods of runs that also pause, for readings of the memory."""
    from .between_runs import PauseBetweenRuns

    pause = PauseBetweenRuns(
        sessions.channel.ask,
        float(os.environ[PAUSE_PERIOD]),
        # onnxruntime's own tools, such as its calibrators, are callers as libraries are.
        functools.partial(outside_callers, os.path.join(sessions.package, "capi")),
    )
    sessions.before_exit = pause.at_exit
    sessions.max_shapes = 0  # counts of other shapes in each run would grow as a leak does
    os.register_at_fork(after_in_child=pause.after_fork)
    return [
        (owner, name, pause.pausing_method(method) if name in WRAPPED_RUNS else method)
        for owner, name, method in wrapped_methods
    ]


def _stderr_filtered_method(
    original: Callable[..., Any], sessions: HookSessions
) -> Callable[..., Any]:
    """Return `original` as a method that takes the session's log out of standard error."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        sessions.stderr.filter("stderr_filtered")
        try:
            return original(self, *arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            sessions.stderr.restore("stderr_restored")

    return method


def _severity_setter(
    original: Callable[[int], None], sessions: HookSessions
) -> Callable[[int], None]:
    """Return `original`, which sets the default severity, as a function that also stores it."""

    @functools.wraps(original)
    def set_default_logger_severity(severity: int) -> None:
        try:
            original(severity)
        except BaseException as error:
            hide_frames(error)
            raise
        sessions.default_severity = severity

    return set_default_logger_severity


def _config_entry_setter(original: Callable[..., None], names: set[str]) -> Callable[..., None]:
    """Return `original`, which sets a config entry, as a method that adds its name to `names`."""

    @functools.wraps(original)
    def add_session_config_entry(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            original(self, *arguments, **keywords)
        except BaseException as error:
            hide_frames(error)
            raise
        names.update(CONFIG_NAMES.intersection([*arguments, *keywords.values()]))

    return add_session_config_entry

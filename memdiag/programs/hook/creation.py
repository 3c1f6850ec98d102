"""The creation of a session: its description, its memory and its log."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import weakref

from .runs import SessionRuns
from .tracebacks import hide_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .sessions import HookSessions

SEVERITY_INFO = 1
MAX_CALLER_FRAMES = 12
SAMPLED_BLOCKS = 64
SAMPLED_BLOCK_BYTES = 16 << 10
_BYTES_HEADER = bytes.__basicsize__ - 1
"""The bytes before the content of a bytes object (CPython)."""

_HOOK_FOLDER = os.path.dirname(__file__) + os.sep
"""The folder of the hook, whose files do not count as callers."""

CONFIG_NAMES = frozenset(
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
"""The config entries that change memory; onnxruntime does not list which entries are set."""


def recorded_init(original: Callable[..., None], sessions: HookSessions) -> Callable[..., None]:
    """Return `original`, the constructor of sessions, which records the session."""

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
        creation = description_error = None
        try:
            creation = _SessionCreation(sessions, arguments, keywords)
        except Exception as error:
            description_error = error.with_traceback(None)  # which would keep the arguments alive
        try:
            if creation is None:
                original(self, *arguments, **keywords)  # it raises what it does not accept
            else:
                creation.run(functools.partial(original, self), self)
        except BaseException as error:
            hide_frames(error)
            raise
        if description_error is not None:
            sessions.channel.report(description_error)

    return __init__


class _SessionCreation:
    """The creation of one session.

    Args:
        sessions: the sessions of this process.
        arguments, keywords: the arguments of InferenceSession.
    """

    def __init__(
        self, sessions: HookSessions, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._sessions = sessions
        self._number = sessions.number()
        argument_by_name = dict(zip(("path_or_bytes", "sess_options", "providers"), arguments))
        argument_by_name.update(keywords)
        self._own_options = argument_by_name.get("sess_options") is None
        self._options = (
            argument_by_name.get("sess_options") or sessions.onnxruntime.SessionOptions()
        )
        if len(arguments) > 1:
            arguments = (arguments[0], self._options, *arguments[2:])
        else:
            keywords = {**keywords, "sess_options": self._options}
        self._arguments, self._keywords = arguments, keywords
        self._severity = self._options.log_severity_level
        if self._severity < 0:
            self._severity = sessions.default_severity
        self._logid = self._options.logid
        self._description = {
            "model": session_model_source(argument_by_name.get("path_or_bytes", b"")),
            # onnxruntime's own tools, such as its calibrators, are callers as libraries are.
            "callers": outside_callers(os.path.join(sessions.package, "capi")),
            "options": changed_options(self._options),
            "config": named_config(self._options, sessions.config_names),
            "providers": [
                provider if isinstance(provider, str) else str(provider[0])
                for provider in argument_by_name.get("providers") or ()
            ],
            "threads": [self._options.intra_op_num_threads, self._options.inter_op_num_threads],
            "severity": self._severity,
            "logid": self._logid,
        }

    def run(self, create: Callable[..., None], session: Any) -> None:
        """Create the session; its errors are raised to the program."""
        sessions = self._sessions
        options = self._options
        self._runs_before = {
            session_runs.number: session_runs.runs for session_runs in sessions.recorded
        }
        error: BaseException | None = None
        with sessions.sole_user(options):
            original_logging = options.log_severity_level, options.logid
            if sessions.stderr.filter("create", session=self._number, **self._description):
                # Not verbose: in runs, sessions write verbose lines whatever their RunOptions say.
                options.log_severity_level = min(self._severity, SEVERITY_INFO)
                options.logid = f"memdiag-{self._number}"
            began = time.perf_counter()
            try:
                create(*self._arguments, **self._keywords)
            except BaseException as creation_error:
                error = creation_error
                raise
            finally:
                latency_s = time.perf_counter() - began
                options.log_severity_level, options.logid = original_logging
                fields: dict[str, Any] = {"session": self._number, "latency_s": latency_s}
                if error is not None:
                    fields["error"] = str(error)[:1000]
                else:
                    try:
                        fields.update(self._finish_creation(session, original_logging))
                    except Exception as defect:
                        sessions.channel.report(defect)
                answer = sessions.stderr.restore("created", **fields)
                if answer:
                    sessions.max_rss = max(sessions.max_rss, answer["peak_rss_bytes"] >> 10)

    def _finish_creation(self, session: Any, original_logging: tuple[int, str]) -> dict[str, Any]:
        """Return the facts of the created session, and count its runs from now on."""
        sessions = self._sessions
        session_options = session._sess_options
        if session_options is not None:
            session_options.log_severity_level, session_options.logid = original_logging
        if self._own_options and hasattr(session, "_sess_options_initial"):
            session._sess_options_initial = None
        ran_meanwhile = [
            other_runs.number
            for other_runs in sessions.recorded
            if other_runs.runs != self._runs_before.get(other_runs.number, 0)
        ]
        session_runs = SessionRuns(sessions, self._number, self._severity, weakref.ref(session))
        session._memdiag_recorded = session_runs
        sessions.recorded.add(session_runs)
        with contextlib.suppress(Exception):
            sessions.expect_exit_of_worker()
        weakref.finalize(session, _send_release, sessions, session_runs).atexit = False
        return {
            "providers": session.get_providers(),
            "address": _native_session_address(session._sess),
            "ran_meanwhile": ran_meanwhile,
        }


def _native_session_address(session: Any) -> int:
    """Return the address of the C++ object of `session`, a session of the extension module.

    pybind11 stores it after the header that every object of CPython has.
    """
    import ctypes

    return ctypes.c_size_t.from_address(id(session) + object.__basicsize__).value


def _send_release(sessions: HookSessions, session_runs: SessionRuns) -> None:
    with contextlib.suppress(Exception):
        session_runs.send_runs()
        sessions.channel.send("released", session=session_runs.number)


def session_model_source(source: Any) -> dict[str, Any]:
    """Return the facts that identify the model from which a session is created."""
    if isinstance(source, bytes):
        return {
            "path": None,
            "bytes": len(source),
            "address": id(source) + _BYTES_HEADER,
            "digest": sampled_digest(len(source), memoryview(source).__getitem__),
        }
    path = os.path.abspath(os.fsdecode(source))
    return {"path": path.replace("\0", "\\0"), "bytes": None}  # no file has a null byte


def sampled_digest(length: int, read: Callable[[slice], Any]) -> str:
    """Return a hash of evenly spaced blocks and of the length: a whole model would take too long.

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


@functools.lru_cache
def _default_options(options_class: Callable[[], Any]) -> dict[str, Any]:
    """Return the settings of new options by name."""
    defaults = {}
    options = options_class()
    for name in dir(options):
        if name.startswith("_") or name in ("logid", "log_severity_level"):
            continue
        with contextlib.suppress(Exception):
            value = getattr(options, name)
            if not callable(value):
                defaults[name] = value
    return defaults


def changed_options(options: Any) -> dict[str, str]:
    """Return the settings of `options` that differ from the defaults of this onnxruntime."""
    changed_settings = {}
    for name, default in _default_options(options.__class__).items():
        with contextlib.suppress(Exception):
            value = getattr(options, name)
            if value != default:
                changed_settings[name] = str(value)
    return changed_settings


def outside_callers(package: str) -> list[list[Any]]:
    """Return file, line and function of the callers outside of `package`, the nearest first."""
    callers: list[list[Any]] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(callers) < MAX_CALLER_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(package) and not code.co_filename.startswith(
            _HOOK_FOLDER
        ):
            callers.append([_file_or_cell(code.co_filename), frame.f_lineno, code.co_name])
        frame = frame.f_back
    return callers


def _file_or_cell(file: str) -> str:
    """Return `file`, or ``cell [2]`` for the temporary name of a cell in a notebook."""
    if "ipykernel_" not in file:
        return file
    try:
        shell = sys.modules["IPython"].get_ipython()
        return f"cell [{int(shell.compile._filename_map[file])}]"
    except Exception:  # not in a notebook, or another release of IPython
        return file


def named_config(options: Any, names: Any) -> dict[str, str]:
    """Return the config entries of `options` among `names`."""
    entries = {}
    for name in sorted(names):
        with contextlib.suppress(Exception):  # the entry is not set: this takes 30 microseconds
            entries[name] = str(options.get_session_config_entry(name))
    return entries

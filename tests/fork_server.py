"""Children of measurements, forked from a process that has imported onnxruntime already.

Python takes half a second of CPU time to import numpy and onnxruntime, a fork takes milliseconds,
and hundreds of tests measure a child. A forked child is the same program in the same environment:
what it imported was imported before it began. Where that matters, `memdiag.runner.child` starts
Python as usual: for tests that are marked ``slow`` or ``measures`` or are in a folder of tests that
assert figures of memory, for other interpreters, and where the environment, the limits or the CPUs
of the process differ from those of the server.
"""

import atexit
import ctypes
import json
import os
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from memdiag.runner import scripts
from memdiag.runner.child import TELEMETRY_OFF

_SCRIPTS = Path(scripts.__file__).parent
_AT_START = ("MALLOC_", "LD_", "GLIBC_", "OPENBLAS_", "OMP_", "PYTHON", "ORT_")
"""Beginnings of the names of variables that are read when Python or a library starts."""

_MAX_MESSAGE_BYTES = 1 << 20
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}


class _Server:
    """The process that has imported onnxruntime, and forks children of this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **TELEMETRY_OFF}
        self._start = _at_start(environment)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=environment,
            )
        atexit.register(self.end)

    def can_start(self, environment: dict[str, str]) -> bool:
        """Return whether a child with `environment` would be as if it were started here."""
        return bool(self._start == _at_start(environment))

    def start(self, script: str, environment: dict[str, str], files: Sequence[int]) -> int:
        """Fork a child that runs `script` with `files` as its standard streams; return its pid."""
        request = {"script": script, "cwd": os.getcwd(), "environment": environment}
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        return int(self._socket.recv(100))

    def end(self) -> None:
        """End the server."""
        self._socket.close()
        self._process.wait()


def _at_start(environment: dict[str, str]) -> Any:
    """Return what a process has from its start: variables, limits and CPUs."""
    kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return (
        {name: text for name, text in environment.items() if name.startswith(_AT_START)},
        [resource.getrlimit(kind) for kind in kinds],
        os.sched_getaffinity(0),
    )


class _ForkedProcess(subprocess.Popen[bytes]):
    """A child that the server forks; in every other way as if it had been started here."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        environment, (to_read, _, _, to_write, _, errors) = others[5], others[9:15]
        self.pid = _server().start(args[1], environment, (to_read, to_write, errors))
        self._child_created = True
        for number in {to_read, to_write, errors}:
            os.close(number)
        self._closed_child_pipe_fds = True


_servers: list[_Server] = []


def _server() -> _Server:
    if not _servers:
        _servers.append(_Server())
    return _servers[0]


def _popen(words: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Fork a script of `memdiag.runner.scripts` if it can be; start anything else."""
    is_ours = words[0] == sys.executable and Path(words[-1]).parent == _SCRIPTS
    if is_ours and len(words) == 2 and _server().can_start(settings["env"]):
        return _ForkedProcess(words, **settings)
    return subprocess.Popen(words, **settings)


def forking_subprocess() -> SimpleNamespace:
    """Return what stands for the module `subprocess` in `memdiag.runner.child`."""
    return SimpleNamespace(**{**vars(subprocess), "Popen": _popen})


def _serve(connection: socket.socket) -> str:
    """Fork a child for each request, and return in each with the path of its script."""
    import numpy  # noqa: F401
    import onnxruntime  # noqa: F401

    libc = ctypes.PyDLL(None)
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MAX_MESSAGE_BYTES, 3)
        if not message:
            raise SystemExit
        ctypes.pythonapi.PyOS_BeforeFork()
        flags = _CLONE_PARENT | signal.SIGCHLD  # a child of the process that asked
        pid = libc.syscall(_SYS_CLONE[platform.machine()], flags, 0, 0, 0, 0)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            break
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        for number in files:
            os.close(number)
        assert pid > 0
    os.setsid()
    # Not before: whoever asked may kill the process group at once.
    connection.send(str(os.getpid()).encode())
    for target, number in enumerate(files):
        os.dup2(number, target)
        os.close(number)
    connection.close()
    request = json.loads(message)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    script: str = request["script"]
    return script


if __name__ == "__main__":
    path = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")

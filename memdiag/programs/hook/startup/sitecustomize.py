"""Start-up hook of ``memdiag run``: waits for the import of onnxruntime, and does nothing before.

Python imports the first ``sitecustomize`` on its path when it starts; ``memdiag run`` puts this
folder at the front of PYTHONPATH. The hook removes the folder from `sys.path`, so that the program
sees the path that it would have without memdiag, and then runs the ``sitecustomize`` that it hides.

Only the standard library is imported, and only modules that are loaded at this point: the start-up
of every Python process of the program waits for this file. It also runs in old releases of Python,
which a program may start: 3.6 has no ``annotations`` in ``__future__``.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ADDRESS_VARIABLE = "MEMDIAG_RUN_ADDRESS"
HOOK_STARTUP_FOLDER = os.path.dirname(os.path.abspath(__file__))
HOOK_FOLDER = os.path.dirname(HOOK_STARTUP_FOLDER)
HOOK_PACKAGE = "_memdiag_hook"
HOOK_MODULES = (
    "tracebacks",
    "channel",
    "stderr_filter",
    "sessions",
    "runs",
    "creation",
    "record_sessions",
)
"""Each module imports only modules before it."""

uninstall_functions: "list[Any]" = []
"""Functions that end the recording of an imported onnxruntime in this process."""


class OnnxruntimeFinder:
    """Finds onnxruntime with the other finders, and wraps its sessions once it is imported."""

    @classmethod
    def find_spec(cls, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec of onnxruntime; None for other modules."""
        if name != "onnxruntime":
            return None
        for finder in list(sys.meta_path):
            if finder is cls:
                continue
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _wrap_after_import(spec.loader)
                return spec
        return None


def _wrap_after_import(loader: "Any") -> None:
    """Have `loader` wrap the sessions of the module that it executes."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: "Any") -> None:
        loader.__dict__.pop("exec_module", None)
        _send_startup_event("importing")
        try:
            execute(module)
        except BaseException as error:  # without this frame, as in `tracebacks`
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            raise
        if OnnxruntimeFinder in sys.meta_path:
            sys.meta_path.remove(OnnxruntimeFinder)
        try:
            install = _load_hook().install
            uninstall_functions.append(
                install(module, os.environ[ADDRESS_VARIABLE], at_import=True)
            )
        except Exception as error:  # the program must go on without memdiag
            _report_hook_failure(error)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without attributes of its own
        pass


def _load_hook() -> "Any":
    """Load the modules of the folder above, and return the last of them, record_sessions.

    The folder is not on sys.path: the program must not find modules of memdiag there. It is the
    package `HOOK_PACKAGE` instead. Python's finders would need twice the time to find its modules.
    """
    from importlib.machinery import ModuleSpec, SourceFileLoader
    from importlib.util import module_from_spec

    package: Any = type(sys)(HOOK_PACKAGE)
    package.__path__ = [HOOK_FOLDER]
    sys.modules[HOOK_PACKAGE] = package
    module: Any = None
    for name in HOOK_MODULES:
        path = os.path.join(HOOK_FOLDER, f"{name}.py")
        loader = SourceFileLoader(f"{HOOK_PACKAGE}.{name}", path)
        spec = ModuleSpec(loader.name, loader, origin=path)
        spec.has_location = True
        module = sys.modules[spec.name] = module_from_spec(spec)
        loader.exec_module(module)
    return module


def _report_hook_failure(error: Exception) -> None:
    """Report `error` to ``memdiag run``. The program does not see it."""
    _send_startup_event("hook_failed", message=f"{type(error).__name__}: {error}"[:500])


def _send_startup_event(event: str, **fields: "Any") -> None:
    """Send one event to ``memdiag run``; a failure has no consequence."""
    try:
        import json
        import socket

        address, _, secret = os.environ[ADDRESS_VARIABLE].partition("#")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(address.replace("@", "\0", 1))
            fields.update(event=event, secret=secret, pid=os.getpid())
            connection.sendall(json.dumps(fields).encode() + b"\n")
    except Exception:
        pass


def _run_hidden_sitecustomize() -> None:
    """Run the ``sitecustomize`` that Python would have found. Its errors are raised."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # not if a recording in Python imports it
    sys.path[:] = [path for path in sys.path if path != HOOK_STARTUP_FOLDER]
    if ADDRESS_VARIABLE in os.environ:
        sys.meta_path.insert(0, OnnxruntimeFinder)
    _run_hidden_sitecustomize()

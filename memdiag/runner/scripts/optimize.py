"""Run one optimizer on one model, and report its duration and memory.

Run by path next to `child.py`, whose protocol it uses: one job in, and one event out, ``optimized``
or ``error``. The job names a file with a table `OPTIMIZERS`, and an optimizer in that table.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memdiag.runner.scripts import child
else:
    import child


def load(path: str) -> Any:
    """Return the module at `path`, which is not part of a package."""
    spec = importlib.util.spec_from_file_location("optimizers", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def high_water_bytes() -> int:
    """Return the largest resident set of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0
    return int(fields["VmHWM"].split()[0]) * 1024


def version_of(package: str) -> str:
    """Return the version of a package; empty if it has none."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def main() -> None:
    """Import the packages of an optimizer, run it, and report its memory and duration."""
    channel = child.ParentChannel()
    job = channel.start()
    try:
        optimizer = load(job["optimizers"]).OPTIMIZERS[job["name"]]
        for package in optimizer.packages:
            importlib.import_module(package)
        # onnx refuses to save weights to a file whose name a file of the working directory has.
        os.chdir(os.path.dirname(job["target"]))
        started = time.perf_counter()
        remark = optimizer.optimize(job["source"], job["target"], job["large"])
        channel.send(
            "optimized",
            duration_s=time.perf_counter() - started,
            peak_rss_bytes=high_water_bytes(),
            version=version_of(optimizer.packages[0]),
            remark=remark,
        )
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        channel.send("error", message=message[: child.MAX_ERROR_MESSAGE])
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)
    main()

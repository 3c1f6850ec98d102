"""Have one or several processes with a session each, until the parent has read their memory.

Run by path beside `child.py`, whose protocol it uses. The job has, beside the fields of a session:

- `fork_after`: ``import`` or ``load`` to fork `processes` workers after onnxruntime was imported
  or after the session was created; null for none, so that this process is the only worker;
- `sessions`: the number of sessions in each worker;
- `callers`: the number of threads that run a session at once.

Each worker runs each of its sessions as often as the job says. Then `steady` names the workers, and
all of them wait. An exception is an `error` event.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memdiag.runner.scripts import child, contents, unlogged_session
else:
    import child
    import contents
    import unlogged_session


class Worker:
    """The sessions of one worker, and its inputs.

    Args:
        onnxruntime: the module.
        numpy: the module.
        job: the job of the parent.
    """

    def __init__(self, onnxruntime: Any, numpy: Any, job: dict[str, Any]) -> None:
        self._onnxruntime, self._numpy, self._job = onnxruntime, numpy, job
        self._sessions: list[Any] = []

    def create(self) -> None:
        """Create the sessions."""
        for _ in range(self._job["sessions"]):
            session = unlogged_session.create_session(self._onnxruntime, self._numpy, self._job)
            self._sessions.append(session)

    def run(self) -> list[float]:
        """Run each session, by all callers at once; return the latencies of the first one."""
        runs = self._job["runs"]
        if runs is None:
            return []
        latencies: list[float] = []
        for session in self._sessions:
            with ThreadPoolExecutor(self._job["callers"]) as pool:
                calls = [
                    pool.submit(self._call, session, runs + 1) for _ in range(self._job["callers"])
                ]
                found = [seconds for call in calls for seconds in call.result()]
            latencies = latencies or found
        return latencies

    def _call(self, session: Any, times: int) -> list[float]:
        """Run `session` so often with inputs of this caller's own; return the latencies."""
        feeds = child.load_inputs(self._onnxruntime, self._numpy, self._job["feeds"])
        changing = contents.Contents(self._numpy, feeds, self._job["feeds"])
        run = child.runner(self._onnxruntime, session)
        options = child.run_options(self._onnxruntime, self._job)
        latencies = []
        for _ in range(times):
            changing.change()
            started = time.perf_counter()
            run(None, feeds, options)
            latencies.append(time.perf_counter() - started)
        return latencies


def fork(worker: Worker, job: dict[str, Any]) -> list[int]:
    """Fork the workers and wait until all of them have run; return their ids."""
    pids, pipes = [], []
    for _ in range(job["processes"]):
        reading, writing = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(reading)
            serve(worker, job, parent, writing)
        os.close(writing)
        pids.append(pid)
        pipes.append(reading)
    for reading in pipes:
        with os.fdopen(reading, "rb") as file:
            message = file.read(child.MAX_ERROR_MESSAGE)
        if message != b"ran":
            raise RuntimeError(message.decode(errors="replace") or "a worker ended by itself")
    return pids


def serve(worker: Worker, job: dict[str, Any], parent: int, writing: int) -> None:
    """Do the work of a forked worker, and wait for the end of its parent."""
    message = b"ran"
    try:
        child.die_with_parent(parent)
        if job["fork_after"] == "import":
            worker.create()
        worker.run()
    except BaseException as error:
        message = f"{type(error).__name__}: {error}".encode()[: child.MAX_ERROR_MESSAGE]
    os.write(writing, message)
    os.close(writing)
    while True:
        time.sleep(3600)


def main() -> None:
    """Create the workers, and wait until the parent has read their memory."""
    channel = child.ParentChannel()
    job = channel.start()
    try:
        import numpy
        import onnxruntime

        worker = Worker(onnxruntime, numpy, job)
        latencies: list[float] = []
        if job["fork_after"] != "import":
            worker.create()
        if job["fork_after"] is None:
            latencies = worker.run()
            pids = [os.getpid()]
        else:
            pids = fork(worker, job)
        middle = sorted(latencies)[len(latencies) // 2] if latencies else None
        parent = None if job["fork_after"] is None else os.getpid()
        channel.step("steady", pids=pids, parent=parent, latency_s=middle)
    except Exception as error:
        channel.send("error", message=str(error)[: child.MAX_ERROR_MESSAGE])
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)
    main()

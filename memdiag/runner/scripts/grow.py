"""Run a model many times, with other inputs in each run, while the parent reads the memory.

Run by path next to `child.py`, whose protocol it uses: one job in, then one request per line. The
answer to each is an event. Requests:

- ``run``: run `times` times and write the resident and the shared pages after each run to a file;
  if the job has `reload`, create the session before each run and release it afterwards;
- ``value_prefixes``: run once more with the same inputs, and write the first bytes of each input
  and output to a file;
- ``trim``: return freed heap to the system.

Between requests the process does nothing, so that its memory can be read.
"""

from __future__ import annotations

import gc
import json
import os
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memdiag.runner.scripts import child, contents, unlogged_session
else:
    import child
    import contents
    import unlogged_session


PREFIX_BYTES = 256


class Runner:
    """A session, the sets of inputs, and the counters of this process.

    Args:
        onnxruntime: the module.
        numpy: the module.
        job: the job of the parent, with `feed_sets`, `input_order` (the index of
            the set of inputs of each run, in turn), `reload` and `max_batch` (the most runs of a
            request).
    """

    def __init__(self, onnxruntime: Any, numpy: Any, job: dict[str, Any]) -> None:
        self._onnxruntime = onnxruntime
        self._job = job
        self._options = child.run_options(onnxruntime, job)
        self._session: Any = None
        self._run: Any = None
        self._sets = [
            child.load_inputs(onnxruntime, numpy, entries) for entries in job["feed_sets"]
        ]
        self._contents = [
            contents.Contents(numpy, feeds, entries)
            for feeds, entries in zip(self._sets, job["feed_sets"])  # noqa: B905 # Python 3.9
        ]
        self._run_count = self._last_set = 0
        self._figures = memoryview(bytearray(24 * job["max_batch"]))
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    def create(self) -> None:
        """Create the session."""
        self._session = unlogged_session.create_session(self._onnxruntime, self._job)
        self._run = child.runner(self._onnxruntime, self._session)

    def release(self) -> None:
        """Release the session and everything that only it uses."""
        self._session = self._run = None
        gc.collect()

    def run(self, times: int, reload: bool, path: str) -> None:
        """Run, and write resident pages, shared pages and microseconds of each run to `path`.

        If a run fails, the runs before it are written. A batch allocates nothing that it frees:
        freed small blocks look like blocks in use, because malloc caches them for each thread.
        """
        run_count = 0
        try:
            for run_count in range(times):
                self._measure_run(run_count, reload)
            run_count = times
        finally:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(file, self._figures[: 24 * run_count])
            os.close(file)

    def value_prefixes(self) -> list[tuple[str, str]]:
        """Return (description, first bytes in hexadecimal) of the last inputs and their outputs."""
        feeds = self._sets[self._last_set]
        prefixes = [(f"input {name!r}", prefix_of(value)) for name, value in feeds.items()]
        names = [output.name for output in self._session.get_outputs()]
        outputs = self._run(None, feeds, self._options)
        prefixes += [(f"output {name!r}", prefix_of(value)) for name, value in zip(names, outputs)]  # noqa: B905 # Python 3.9
        return [(name, prefix.hex()) for name, prefix in prefixes]

    def _measure_run(self, index: int, reload: bool) -> None:
        order = self._job["input_order"]
        set_index = self._last_set = order[self._run_count % len(order)]
        self._contents[set_index].change()
        started = time.perf_counter()
        if reload:
            self.create()
        self._run(None, self._sets[set_index], self._options)
        if reload:
            self.release()
        duration_s = time.perf_counter() - started
        fields = os.pread(self._statm, 128, 0).split()
        struct.pack_into(
            "<3q", self._figures, 24 * index, int(fields[1]), int(fields[2]), int(duration_s * 1e6)
        )
        self._run_count += 1


def prefix_of(value: Any) -> bytes:
    """Return the first bytes of an array, or of its first text; empty for other values."""
    while isinstance(value, list) and value:
        value = value[0]
    if hasattr(value, "dtype") and value.size:
        first = value.reshape(-1)[: PREFIX_BYTES // max(1, value.itemsize) + 1]
        if value.dtype.kind in "OUS":
            return str(first[0]).encode()[:PREFIX_BYTES]
        return bytes(first.tobytes()[:PREFIX_BYTES])
    return b""


def main() -> None:
    """Create the session, then answer requests until the parent ends."""
    channel = child.ParentChannel()
    job = channel.start()
    stage = "import"
    try:
        import numpy
        import onnxruntime

        stage = "inputs"
        runner = Runner(onnxruntime, numpy, job)
        stage = "create"
        if not job["reload"]:
            runner.create()
        channel.send("waiting", onnxruntime=onnxruntime.__version__)
        while True:
            request = channel.receive()
            stage = request["do"]
            if stage == "run":
                runner.run(request["times"], job["reload"], request["figures"])
                channel.send("ran")
            elif stage == "value_prefixes":
                with open(request["path"], "w", encoding="utf-8") as file:
                    json.dump(runner.value_prefixes(), file)
                channel.send("written")
            else:
                channel.send("trimmed", possible=child.trim())
    except Exception as error:
        channel.send(
            "error",
            stage=stage,
            kind=type(error).__name__,
            message=str(error)[: child.MAX_ERROR_MESSAGE],
        )
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)
    main()

"""Run a model once while onnxruntime's profiler writes the memory of each node.

Run by path next to `child.py`, whose protocol it speaks: one job in, and one `profiled` event out
with the file that the profiler wrote.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memdiag.runner.scripts import child, unlogged_session
else:
    import child
    import unlogged_session


def main() -> None:
    """Create the session, run it once, and end the profile."""
    channel = child.ParentChannel()
    job = channel.start()
    try:
        import numpy
        import onnxruntime

        session = unlogged_session.create_session(onnxruntime, job)
        run = child.runner(onnxruntime, session)
        feeds = child.load_inputs(onnxruntime, numpy, job["feeds"])
        run(None, feeds, child.run_options(onnxruntime, job))
        channel.step("profiled", file=session.end_profiling())
    except Exception as error:
        channel.step("error", message=str(error)[: child.MAX_ERROR_MESSAGE])
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)
    main()

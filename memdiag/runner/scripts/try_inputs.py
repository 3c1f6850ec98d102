"""Try sets of inputs with a model, in one plain session.

Run by path next to `child.py`, whose protocol it speaks: one job in, and one `tried` event out for
each set of inputs, after which the parent continues or ends this process.
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
    """Create the session once, then try each set of inputs in turn."""
    channel = child.ParentChannel()
    job = channel.start()
    try:
        import numpy
        import onnxruntime

        session = unlogged_session.create_session(onnxruntime, job)
        run = child.runner(onnxruntime, session)
        options = child.run_options(onnxruntime, job)
        for index, entries in enumerate(job["candidates"]):
            try:
                run(None, child.load_inputs(onnxruntime, numpy, entries), options)
            except Exception as error:
                channel.step("tried", index=index, message=str(error)[: child.MAX_ERROR_MESSAGE])
            else:
                channel.step("tried", index=index, message=None)
    except Exception as error:
        channel.step("error", message=str(error)[: child.MAX_ERROR_MESSAGE])
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)
    main()

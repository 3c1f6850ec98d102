"""Create one session and run it on request, so that two models can run in turn.

Run by path next to `child.py`, whose protocol it uses: one job in, then one request per line. The
answer to each is an event, or ``error``. Requests:

- ``run``: run `times` times, each with other contents, and answer ``ran`` with the latencies, or
  with the seconds of CPU time if the job states ``cpu_time``;
- ``restart``: go back to the first contents, so that two processes run with equal ones; answer
  ``restarted``;
- ``save``: run once with the inputs as they were saved, and answer ``saved``.
"""

from __future__ import annotations

import ctypes
import json
import os
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


REFUSED = "onnxruntime refused it"


class ChangingInputs:
    """A set of inputs whose contents change before each run.

    Args:
        onnxruntime: the module.
        numpy: the module.
        entries: the entries of the job for its feeds.
    """

    def __init__(self, onnxruntime: Any, numpy: Any, entries: list[dict[str, Any]]) -> None:
        self._onnxruntime, self._numpy, self._entries = onnxruntime, numpy, entries
        self.restart()

    def saved(self) -> dict[str, Any]:
        """Return the feeds as they were saved."""
        return child.load_inputs(self._onnxruntime, self._numpy, self._entries)

    def restart(self) -> None:
        """Go back to the saved contents."""
        self._feeds = self.saved()
        self._contents = contents.Contents(self._numpy, self._feeds, self._entries)

    def changed(self) -> dict[str, Any]:
        """Change the contents, and return the feeds."""
        self._contents.change()
        return self._feeds


def save_outputs(numpy: Any, values: list[Any], folder: str) -> list[list[str]]:
    """Write each output to `folder` and return its files: several for sequences and maps."""
    file_names = []
    for index, value in enumerate(values):
        files = []
        for part, array in enumerate(arrays_of(numpy, value)):
            path = os.path.join(folder, f"{index}_{part}.npy")
            if array.dtype == object:
                array = array.astype(str)
            numpy.save(path, array, allow_pickle=False)
            files.append(path)
        file_names.append(files)
    return file_names


def arrays_of(numpy: Any, value: Any) -> list[Any]:
    """Return the arrays of an output, whatever type it has: keys and values of a map."""
    if value is None:
        return []
    if hasattr(value, "data_ptr"):
        return [tensor_of(numpy, value)]
    if isinstance(value, (list, tuple)):
        return [array for part in value for array in arrays_of(numpy, part)]
    if isinstance(value, dict):
        return [numpy.array(list(value.keys())), numpy.array(list(value.values()))]
    return [numpy.asarray(value)]


def tensor_of(numpy: Any, value: Any) -> Any:
    """Return the array of an OrtValue: bfloat16 as fp32, other types that numpy lacks as bytes."""
    match = child.NOT_IN_NUMPY.fullmatch(value.data_type())
    if match is None:
        return value.numpy()
    name, shape = match.group(1), value.shape()
    element_count = 1
    for size in shape:
        element_count *= size
    bits = 16 if name == "bfloat16" else 8 if name.startswith("float8") else 4
    bits = 2 if name.endswith("int2") else bits
    content = (
        ctypes.string_at(value.data_ptr(), (element_count * bits + 7) // 8)
        if element_count
        else b""
    )
    if bits != 16:
        return numpy.frombuffer(content, "u1")
    float_bits = numpy.frombuffer(content, "<u2").astype("<u4") << 16
    return float_bits.view("<f4").reshape(shape)


def signature(session: Any) -> dict[str, Any]:
    """Return the interface of the model: inputs, outputs and metadata."""
    model_metadata = session.get_modelmeta()
    return {
        "inputs": [[value.name, value.type, value.shape] for value in session.get_inputs()],
        "outputs": [[value.name, value.type, value.shape] for value in session.get_outputs()],
        "metadata": dict(model_metadata.custom_metadata_map),
    }


def main() -> None:
    """Create the session, then answer requests until the parent ends."""
    channel = child.ParentChannel()
    job = channel.start()
    problem = REFUSED
    try:
        import numpy
        import onnxruntime

        session = unlogged_session.create_session(onnxruntime, job)
        run = child.runner(onnxruntime, session)
        options = child.run_options(onnxruntime, job)
        input_sets = [ChangingInputs(onnxruntime, numpy, entries) for entries in job["feed_sets"]]
        # Not in the event itself, which must fit into one atomic write to a pipe.
        with open(job["signature"], "w", encoding="utf-8") as file:
            json.dump(signature(session), file)
        clock = time.process_time if job["cpu_time"] else time.perf_counter
        channel.send("serving", onnxruntime=onnxruntime.__version__)
        while True:
            request = channel.receive()
            if request["do"] == "restart":
                for inputs in input_sets:
                    inputs.restart()
                channel.send("restarted")
            elif request["do"] == "run":
                latencies = []
                for _ in range(request["times"]):
                    feeds = input_sets[request["feeds"]].changed()
                    started = clock()
                    run(None, feeds, options)
                    latencies.append(clock() - started)
                channel.send("ran", latencies=latencies)
            else:
                values = run(None, input_sets[request["feeds"]].saved(), options)
                problem = "its outputs cannot be saved"
                files = save_outputs(numpy, values, request["folder"])
                paths = {output.name: parts for output, parts in zip(session.get_outputs(), files)}  # noqa: B905 # other interpreters may lack strict=
                # Not in the event itself: there may be many outputs, with long names.
                with open(request["index"], "w", encoding="utf-8") as file:
                    json.dump(paths, file)
                channel.send("saved")
                problem = REFUSED
    except Exception as error:
        channel.send("error", problem=problem, message=str(error)[: child.MAX_ERROR_MESSAGE])
    os._exit(0)


if __name__ == "__main__":
    sys.path.pop(0)
    main()

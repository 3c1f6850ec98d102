"""Sample models run in this process, on random inputs."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]


def session(path: Path, options: ort.SessionOptions | None = None) -> ort.InferenceSession:
    options = options or ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs(of: ort.InferenceSession, *, flag: bool = True) -> Arrays:
    """Return inputs of five tokens in one example, indices below 20, and `flag` for a bool."""
    random = np.random.default_rng(0)
    made: Arrays = {}
    for value in of.get_inputs():
        shape = [
            size if isinstance(size, int) else 1 if size == "batch" else 5 for size in value.shape
        ]
        if value.type == "tensor(bool)":
            made[value.name] = np.full(shape, flag)
        elif value.type == "tensor(int64)":
            made[value.name] = random.integers(0, 20, shape)
        else:
            made[value.name] = random.standard_normal(shape, np.float32)
    return made


def run(path: Path, values: Arrays | None = None) -> NDArray[np.float32]:
    """Return the output of the model at `path`, for random inputs unless others are given."""
    loaded = session(path)
    result: NDArray[np.float32] = loaded.run(None, values or inputs(loaded))[0]
    return result

"""The arrays that a model is run with: planned from its graph, made, and saved for the child."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from memdiag.errors import UsageError
from memdiag.graph.element_types import ELEMENT_TYPES
from memdiag.graph.inputs import InputPlan, make, plan_inputs
from memdiag.graph.reader import ModelFile
from memdiag.measurement.job import Feed, Job
from memdiag.measurement.rehearsal import rehearse
from memdiag.records.profile import Input

SEED = 0
FREE_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""What a free dimension is tried with, in turn, where a model does not run with 1."""

Given = Mapping[str, "np.ndarray | str | Path"]


def read_given(inputs: Given) -> dict[str, np.ndarray]:
    """Return the user's arrays, those that are paths of ``.npy`` files read.

    Raises:
        UsageError: a file cannot be read as an array.
    """
    return {
        name: value if isinstance(value, np.ndarray) else _read_array(Path(value))
        for name, value in inputs.items()
    }


def read_archive(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file by name.

    Raises:
        UsageError: the file cannot be read as one.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.ndarray):
                raise UsageError(f"{path}: holds one array; give it as --input NAME={path}.")
            return dict(archive)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as an .npz archive ({error}).") from error


def save(plans: Sequence[InputPlan], given: Mapping[str, np.ndarray], folder: Path) -> list[Feed]:
    """Write the arrays of `plans` to `folder` and return where they lie."""
    folder.mkdir()
    feeds = []
    for index, plan in enumerate(plans):
        path = folder / f"{index}.npy"
        array = given[plan.name] if plan.name in given else make(plan, SEED)
        if plan.bits_type is not None:
            array = np.asarray(array, order="C").view(ELEMENT_TYPES[plan.element_type].dtype)
        np.save(path, array)
        feeds.append(
            Feed(
                name=plan.name,
                files=(path,),
                sequence=plan.kind == "sequence",
                onnx_type=plan.bits_type,
            )
        )
    return feeds


def describe(plans: Sequence[InputPlan]) -> tuple[Input, ...]:
    """Return what a profile says of the inputs: shapes and dtypes, and why they were chosen."""
    return tuple(
        Input(
            name=plan.name,
            dtype=plan.dtype,
            shape=plan.shape,
            source=plan.source,
            note=plan.note,
        )
        for plan in plans
    )


def find_sizes(
    model: ModelFile,
    job: Job,
    folder: Path,
    *,
    dims: Mapping[str, int],
    given: Mapping[str, np.ndarray],
) -> tuple[tuple[InputPlan, ...], list[Feed], int] | None:
    """Return plans, feeds and the size of the free dimensions that `model` runs with.

    None where it has no free dimension, or runs with none of `FREE_SIZES`.
    """
    ones = plan_inputs(model, dims=dims, given=given)
    candidates = [plan_inputs(model, dims=dims, given=given, free_dim=size) for size in FREE_SIZES]
    if candidates[0] == ones:
        return None
    feeds = [
        save(plans, given, folder / f"free-{size}")
        for size, plans in zip(FREE_SIZES, candidates, strict=True)
    ]
    found = rehearse(job, feeds)
    return None if found is None else (candidates[found], feeds[found], FREE_SIZES[found])


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as an .npy array ({error}).") from error
    if not isinstance(array, np.ndarray):
        raise UsageError(f"{path}: is an archive of arrays; give it as --inputs {path}.")
    return array

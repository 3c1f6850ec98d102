"""Models that some options need: optimized by the runtime.

Such models are large, so only one is kept at a time.
"""

import shutil
import tempfile
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import onnx

from memdiag.errors import MeasurementError
from memdiag.model.graph_index import OVERRIDABLE_SINCE_IR
from memdiag.model.model_file import ModelFile, open_model
from memdiag.runner.job import Job
from memdiag.runner.optimized_model import save_optimized_model
from memdiag.tuning.tuning_options import TuningOption
from memdiag.units import format_size

_ROOM_FACTOR = 2
"""The room for a model that is written, as a multiple of the original's files."""


def room_bytes(model: Path) -> int:
    """Return the bytes that another version of `model` needs on disk, at most."""
    with open_model(model) as model_file:
        return _ROOM_FACTOR * sum(path.stat().st_size for path in model_file.files)


class PreparedModels:
    """Writes the model files that session options need, such as a saved optimized model.

    Args:
        scratch: the folder for these files.

    Attributes:
        saved_count: the number of models that the runtime saved.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch / "written"
        self._key: Hashable = None
        self.saved_count = 0

    def prepare(self, job: Job, chosen: tuple[TuningOption, ...]) -> Job:
        """Return `job` with the model that the options `chosen` need.

        Raises:
            MeasurementError: the runtime could not save its optimized model, or there is no room
                for one.
        """
        save_options = {
            name: text for option in chosen for name, text in option.save_options.items()
        }
        if save_options:
            session = replace(job.session, options={**job.session.options, **save_options})
            return replace(job, model=self._optimized_model_path(replace(job, session=session)))
        return job

    def _optimized_model_path(self, job: Job) -> Path:
        key = (job.model, *sorted(job.session.options.items()), *job.session.disabled_optimizers)
        return self._cached_model_path(key, job.model, lambda path: self._save_optimized(job, path))

    def _save_optimized(self, job: Job, path: Path) -> None:
        self.saved_count += 1
        problem = save_optimized_model(job, path)
        if problem is not None:
            raise MeasurementError(
                f"{job.model}: the runtime cannot save its optimized model ({problem}). Use other"
                " options."
            )
        with open_model(job.model) as model_file:
            remove_initializers_from_inputs(model_file, path)

    def _cached_model_path(
        self, key: Hashable, model: Path, write: Callable[[Path], object]
    ) -> Path:
        """Return the path of a version of `model` with `key`; `write` writes it if it is missing.

        What a failed `write` left is removed.
        """
        path = self._scratch / "model.onnx"
        if key == self._key:
            return path
        self._key = None
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        needed_bytes = room_bytes(model)
        if shutil.disk_usage(self._scratch).free < needed_bytes:
            raise MeasurementError(
                f"{tempfile.gettempdir()}: {format_size(needed_bytes)} of free space are needed for"
                " a version of the model. Set TMPDIR to a folder with more."
            )
        try:
            write(path)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        self._key = key
        return path


def lists_initializers(model_file: ModelFile) -> bool:
    """Return whether initializers are among the inputs because the IR version requires it."""
    has_initializers = bool(model_file.graph.initializers or model_file.graph.sparse_initializers)
    return model_file.proto.ir_version < OVERRIDABLE_SINCE_IR and has_initializers


def remove_initializers_from_inputs(original: ModelFile, path: Path) -> None:
    """Remove the inputs that `original` does not require from the model saved to `path`.

    This is done only if `original` lists its initializers among its inputs: the runtime keeps
    former initializers as inputs, and requires those that it folded.
    """
    if not lists_initializers(original):
        return
    prepared = onnx.load(path, load_external_data=False)
    required_names = {value.name for value in original.graph.required_inputs}
    required_inputs = [value for value in prepared.graph.input if value.name in required_names]
    del prepared.graph.input[:]
    prepared.graph.input.extend(required_inputs)
    prepared.ir_version = max(prepared.ir_version, OVERRIDABLE_SINCE_IR)
    onnx.save(prepared, path)

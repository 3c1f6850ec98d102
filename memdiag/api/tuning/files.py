"""The files that some options need: an optimized model saved once, weights in a file of their own.

Saved models are large, so one is kept at a time.
"""

import shutil
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import onnx

from memdiag.api.tuning.snippet import saving
from memdiag.errors import MeasurementError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.tensor_types import ELEMENT_TYPES_BY_NAME
from memdiag.ort.session_memory import OVERRIDABLE_SINCE_IR
from memdiag.remedies.draft import Draft
from memdiag.remedies.option import Option
from memdiag.remedies.saving import save
from memdiag.runner.job import Job, SharedWeight
from memdiag.runner.try_inputs import try_inputs


class TuneFiles:
    """Writes below `scratch` what options need; `saved_count` models were saved by the runtime."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch / "written"
        self._key: Hashable = None
        self.saved_count = 0

    def ready(self, job: Job, chosen: tuple[Option, ...]) -> Job:
        """Return `job`, with what `chosen` need beside their settings.

        Raises:
            MeasurementError: the runtime could not save its optimized model.
            MemdiagError: the weights could not be written.
        """
        entries = {name: text for one in chosen for name, text in one.saved.items()}
        if entries:
            options = {**job.options, **entries}
            return replace(job, model=self._optimized(replace(job, options=options, runs=None)))
        if any(one.shares_weights for one in chosen):
            job = replace(job, model=self._external(job.model))
            return replace(job, shared_weights=_shared(job.model))
        return job

    def _optimized(self, job: Job) -> Path:
        key = (job.model, *sorted(job.options.items()), *job.disabled_optimizers)
        return self._kept(key, lambda path: self._have_saved(job, path))

    def _have_saved(self, job: Job, path: Path) -> None:
        self.saved_count += 1
        try_inputs(replace(job, options={**job.options, **saving(str(path))}), ())
        if not path.exists():
            raise MeasurementError(f"{job.model}: the runtime cannot save its optimized model.")
        with open_model(job.model) as file:
            if lists_initializers(file):
                _unlist(file, path)

    def _external(self, model: Path) -> Path:
        """Return a model like `model` whose weights lie outside of it."""
        with open_model(model) as file:
            if file.external_bytes:
                return model
            return self._kept(model, lambda path: save(Draft(file), path, "external"))

    def _kept(self, key: Hashable, write: Callable[[Path], object]) -> Path:
        """Return the path to which `write` wrote what goes by `key`, now or the last time."""
        path = self._scratch / "model.onnx"
        if key != self._key:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir()
            self._key = None
            write(path)
            self._key = key
        return path


def lists_initializers(file: ModelFile) -> bool:
    """Return whether initializers are among the inputs because the model's IR has them there."""
    has_some = bool(file.graph.initializers or file.graph.sparse_initializers)
    return file.proto.ir_version < OVERRIDABLE_SINCE_IR and has_some


def _unlist(original: ModelFile, path: Path) -> None:
    """Leave the inputs of `original` that are to be fed in the model that was saved to `path`.

    The runtime leaves there what was an initializer, and asks for those that it folded away.
    """
    saved = onnx.load(path, load_external_data=False)
    fed = {each.name for each in original.graph.required_inputs}
    kept = [each for each in saved.graph.input if each.name in fed]
    del saved.graph.input[:]
    saved.graph.input.extend(kept)
    saved.ir_version = OVERRIDABLE_SINCE_IR
    onnx.save(saved, path)


def _shared(model: Path) -> tuple[SharedWeight, ...]:
    """Return the main graph's external initializers whose type numpy has."""
    with open_model(model) as file:
        return tuple(
            SharedWeight(
                name=one.name,
                path=model.parent / one.file,
                offset=one.offset,
                dtype=ELEMENT_TYPES_BY_NAME[one.dtype].dtype.name,
                shape=one.shape,
            )
            for one in file.weights
            if one.place == "initializer" and not one.graph and one.storage == "external"
            if one.file is not None and one.offset is not None and one.nbytes
            if ELEMENT_TYPES_BY_NAME[one.dtype].native
        )

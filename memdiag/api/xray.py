"""Identify the owner of every resident byte of a process: any process, or a profile's child."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from memdiag.attribution.address_space import Region, read_address_space
from memdiag.attribution.attribute import attribute
from memdiag.attribution.intervals import normal
from memdiag.attribution.owners import BaselinePages
from memdiag.attribution.process_memory import CHUNK_BYTES, ProcessMemory
from memdiag.attribution.provenance import with_provenance
from memdiag.attribution.search_target import (
    SearchTarget,
    fused_search_target,
    missing_bytes,
    search_target,
)
from memdiag.errors import MemdiagError, ModelError, UsageError, XrayError
from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.attribution import Attribution
from memdiag.records.profile import PhaseName
from memdiag.runner.job import Job
from memdiag.runner.log import AddressRanges, LogEvidence
from memdiag.runner.run import AtBaseline, AtPhaseEnd, AtSteady, XrayMoment
from memdiag.runner.try_inputs import try_inputs

MAX_MISSING_SHARE = 0.02
"""Share of the weights that may be missing before computed tensors are searched for."""

MAX_GUESSES = 20
"""Models that are searched for if none is given."""

MAX_PATH_SEARCH_BYTES = 1 << 30
"""Bytes of heap and anonymous memory that are searched for the paths of models."""

MAX_PATH_BYTES = 4096
"""The largest path on Linux (PATH_MAX)."""

MAX_MODELS_IN_FOLDER = 50
"""Models in the folder of a mapped file that are checked for external data in that file."""

_MODEL_ENDING = b".onnx\0"
_UNPRINTABLE = re.compile(rb"[\x00-\x1f\x7f]")


def xray(
    pid: int,
    models: str | Path | Sequence[str | Path] | None = None,
    *,
    sampled: bool = False,
    pause: bool = False,
) -> Attribution:
    """Return the owners of the resident memory of process `pid`.

    The process is only read. It keeps running, unless `pause` stops it; memory that moves meanwhile
    is reported in the notes.

    Args:
        pid: a process of this user, in any language.
        models: the ONNX file or files whose weights are searched for; by default those that the
            process maps, has open, was started with or opened (see `guess_models`).
        sampled: compare a sample of blocks of each copy instead of every byte.
        pause: stop the process while it is read (SIGSTOP), and continue it afterwards.

    Raises:
        ModelError: a model cannot be read.
        XrayError: there is no such process, or it cannot be read.
        UsageError: `models` is empty.
    """
    given = [models] if isinstance(models, str | Path) else models
    if given is not None and not given:
        raise UsageError("no model was given. Name the ONNX file that the process runs.")
    guessed = guess_models(pid) if given is None else ()
    # A file that is given twice is one model.
    paths = {Path(path).resolve(): Path(path) for path in guessed or given or ()}
    with ExitStack() as stack:
        files: list[ModelFile] = []
        for path in paths.values():
            try:
                files.append(stack.enter_context(open_model(path)))
            except ModelError:
                if given is not None:
                    raise
        targets = [search_target(file) for file in files]
        if pause:
            stack.enter_context(_paused(pid))
        found = attribute(pid, targets, sampled=sampled)
    if given is not None:
        return found
    note = "no model was given, and none was found; name it with --model to identify its weights"
    if files:
        names = ", ".join(model.name for model in found.models)
        note = f"no model was given; found by the files of the process: {names}"
    return msgspec.structs.replace(found, notes=(note, *found.notes))


def guess_models(pid: int) -> tuple[Path, ...]:
    """Return the ONNX files that process `pid` maps, has open, was started with, or opened.

    If it maps external data, models in the same folder that refer to it are included. A file that
    the process has read and closed is found if its path is in the memory of the process, where a
    session keeps it. Relative paths are resolved against the working directory of the process.

    Raises:
        XrayError: the process cannot be read.
    """
    regions = read_address_space(pid).regions
    folder = _working_directory(pid)
    code = {region.path for region in regions if "x" in region.permissions}
    mapped = {region.path for region in regions if region.path.startswith("/")} - code
    files = [Path(path) for path in sorted(mapped)] + [*_open_files(pid), *_arguments(pid, folder)]
    models = [path for path in files if path.suffix.lower() == ".onnx" and os.path.isfile(path)]
    if not models:
        models = [path for path in _paths_in_memory(pid, regions, folder) if os.path.isfile(path)]
    for path in files:
        if path.suffix.lower() in (".onnx", ".so", ".py", ".pyc") or not os.path.isfile(path):
            continue
        in_folder = sorted(path.parent.glob("*.onnx"))[:MAX_MODELS_IN_FOLDER]
        models += [model for model in in_folder if _refers_to(model, path)]
    return tuple({path.resolve(): path for path in models}.values())[:MAX_GUESSES]


def _refers_to(model: Path, data: Path) -> bool:
    try:
        with open_model(model) as file:
            return data.resolve() in file.files
    except ModelError:
        return False


def _open_files(pid: int) -> list[Path]:
    """Return the files that the process has open; none if they cannot be read."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    found = []
    for link in links:
        with suppress(OSError):  # closed meanwhile
            found.append(link.readlink())
    return sorted(path for path in found if path.is_absolute())


def _working_directory(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return Path("/")


def _arguments(pid: int, folder: Path) -> list[Path]:
    """Return the arguments that name models, also as ``--option=PATH``, relative to `folder`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    names = [os.fsdecode(word) for word in words if word.lower().endswith(b".onnx")]
    return [folder / path for name in names for path in (name, name.partition("=")[2]) if path]


def _paths_in_memory(pid: int, regions: Sequence[Region], folder: Path) -> list[Path]:
    """Return the paths of models among the strings in writable memory, relative to `folder`."""
    found: dict[Path, None] = {}
    left = MAX_PATH_SEARCH_BYTES
    buffer = np.empty(CHUNK_BYTES, np.uint8)
    with ProcessMemory(pid) as memory:
        for region in sorted(regions, key=lambda region: region.path != "[heap]"):
            if not region.permissions.startswith("rw") or region.path.startswith("/"):
                continue
            if region.end - region.start > left:
                continue
            left -= region.end - region.start
            ranges = np.array([[region.start, region.end]], np.int64)
            for _, length in memory.iter_chunks(ranges, buffer, overlap=MAX_PATH_BYTES):
                text = buffer[:length].tobytes()
                found |= dict.fromkeys(folder / name for name in _model_names(text))
    return sorted(found)


def _model_names(memory: bytes) -> Iterator[str]:
    """Yield the strings in `memory` that end with ``.onnx`` and a zero byte."""
    end = memory.find(_MODEL_ENDING)
    while end >= 0:
        before = memory[max(0, end - MAX_PATH_BYTES) : end]
        # What precedes a string of C, C++ or Python in memory is a zero byte or another number.
        name = _UNPRINTABLE.split(before)[-1] + _MODEL_ENDING[:-1]
        yield os.fsdecode(name)
        end = memory.find(_MODEL_ENDING, end + 1)


class ChildXray:
    """X-rays of a profile's child: at steady state, and at the ends of phases.

    An error of an X-ray does not end the measurement.

    Args:
        model: the model whose weights are searched for.
        job: the job of the child.
        scratch: a folder for temporary files.
        sampled: compare a sample of blocks of each copy instead of every byte.

    Attributes:
        attribution: the X-ray at steady state; None before it, or if it failed.
        by_phase: the X-rays at the ends of phases, in the order in which the phases ended.
        failure: the reason of a failed X-ray; None if none failed.
    """

    def __init__(self, model: ModelFile, job: Job, scratch: Path, *, sampled: bool) -> None:
        self.attribution: Attribution | None = None
        self.by_phase: dict[PhaseName, Attribution] = {}
        self.failure: str | None = None
        self._model = model
        self._job = job
        self._scratch = scratch
        self._sampled = sampled
        self._baseline: BaselinePages | None = None

    def examine(self, moment: XrayMoment) -> None:
        """Read the memory of the child at `moment`, and store the error if that fails."""
        try:
            match moment:
                case AtBaseline(pid):
                    self._baseline = BaselinePages.of(read_address_space(pid))
                case AtPhaseEnd(pid, phase, arena):
                    # Removed first, so that the phases are in the order in which they ended.
                    self.by_phase.pop(phase, None)
                    self.by_phase[phase] = self._attribute(pid, [self._target], arena)
                case AtSteady(pid, arena, log):
                    self._examine_steady(pid, arena, log)
        except MemdiagError as error:
            self.failure = str(error)

    def _examine_steady(self, pid: int, arena: AddressRanges, log: LogEvidence) -> None:
        found = self._attribute(pid, [self._target], arena)
        self.attribution = with_provenance(found, [self._target], log)
        missing = missing_bytes(self._target, found)
        if missing <= MAX_MISSING_SHARE * sum(weight.nbytes for weight in self._model.weights):
            return
        # Weights are missing: also search for the tensors that onnxruntime computed from them.
        saved = _save_optimized(self._job, self._scratch)
        if saved is None:
            return
        with open_model(saved) as optimized:
            targets = [self._target, fused_search_target(optimized, self._target)]
            found = self._attribute(pid, targets, arena)
            self.attribution = with_provenance(found, targets, log)

    @cached_property
    def _target(self) -> SearchTarget:
        return search_target(self._model)

    def _attribute(
        self, pid: int, targets: list[SearchTarget], arena: AddressRanges
    ) -> Attribution:
        return attribute(
            pid,
            targets,
            baseline=self._baseline,
            logged_arena=normal(arena) if arena else None,
            sampled=self._sampled,
        )


def _save_optimized(job: Job, scratch: Path) -> Path | None:
    """Return the model as onnxruntime optimized it, saved by another child; None if that fails."""
    folder = scratch / "optimized"
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    options = {
        **job.session.options,
        "optimized_model_filepath": str(path),
        "session.optimized_model_external_initializers_file_name": "model.onnx.data",
    }
    session = replace(job.session, options=options)
    try_inputs(replace(job, session=session, runs=None), ())
    return path if path.exists() else None


@contextmanager
def _paused(pid: int) -> Iterator[None]:
    try:
        os.kill(pid, signal.SIGSTOP)
    except OSError as error:
        raise XrayError(
            f"process {pid}: it cannot be stopped ({error.strerror}); leave --pause out."
        ) from error
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

"""The models of a process, by its files and its memory."""

import os
import re
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from memdiag.attribution.address_space import Region, read_address_space
from memdiag.attribution.process_memory import READ_CHUNK_BYTES, ProcessMemory
from memdiag.errors import ModelError
from memdiag.model.model_file import open_model
from memdiag.paths import MODEL_SUFFIXES
from memdiag.records.attribution import Attribution

MAX_GUESSES = 20
"""The most models that are searched for if none is given."""

MAX_PATH_SEARCH_BYTES = 1 << 30
"""The most bytes of heap and anonymous memory that are searched for the paths of models."""

MAX_PATH_BYTES = 4096
"""The largest path on Linux (PATH_MAX)."""

MAX_MODELS_IN_FOLDER = 50
"""The most models in the folder of a mapped file that are checked for external data in that file.
"""

_MODEL_ENDINGS = tuple(suffix.encode() for suffix in MODEL_SUFFIXES)
_UNPRINTABLE_BYTES = re.compile(rb"[\x00-\x1f\x7f]")
_OPEN_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)


class GuessedModel(NamedTuple):
    """A model that a process uses or may use.

    Attributes:
        is_used: False if only the path of the model was found in the memory of the process, which
            may have listed a folder, or if other models refer to the same external data.
    """

    path: Path
    is_used: bool


def guess_models(pid: int, *, searches_memory: bool = True) -> tuple[GuessedModel, ...]:
    """Return the models that process `pid` maps, has open for reading, was started with, or opened.

    If it maps external data, models in the same folder that refer to it are included. A file that
    the process has read and closed is found if its path is in the memory of the process, where a
    session keeps it. Files that it never opened are then found, too, if their path is there.
    Relative paths are resolved against the working directory of the process.

    Args:
        pid: the process.
        searches_memory: whether to search the memory of the process for paths if no model is found
            by its files, which takes half a second for 300 MiB.

    Raises:
        XrayError: the process cannot be read.
    """
    regions = read_address_space(pid).regions
    folder = _working_directory(pid)
    code_paths = {region.path for region in regions if "x" in region.permissions}
    mapped_paths = {region.path for region in regions if region.path.startswith("/")} - code_paths
    files = [Path(path) for path in sorted(mapped_paths)] + [
        *_open_files(pid),
        *_argument_paths(pid, folder),
    ]
    is_used = True
    models = [
        path for path in files if path.suffix.lower() in MODEL_SUFFIXES and os.path.isfile(path)
    ]
    if not models and searches_memory:
        is_used = False
        models = [path for path in _paths_in_memory(pid, regions, folder) if os.path.isfile(path)]
    model_by_path = {path.resolve(): GuessedModel(path, is_used) for path in models}
    for path in files:
        suffixes_without_data = (*MODEL_SUFFIXES, ".so", ".py", ".pyc")
        if path.suffix.lower() in suffixes_without_data or not os.path.isfile(path):
            continue
        folder_models = sorted(path.parent.glob("*.onnx"))[:MAX_MODELS_IN_FOLDER]
        referring_models = [model for model in folder_models if _refers_to(model, path)]
        for model in referring_models:
            guessed_model = model_by_path.get(model.resolve())
            is_used = len(referring_models) == 1 or (
                guessed_model is not None and guessed_model.is_used
            )
            model_by_path[model.resolve()] = GuessedModel(model, is_used)
    return tuple(model_by_path.values())[:MAX_GUESSES]


def with_guess_note(attribution: Attribution, are_used: Sequence[bool]) -> Attribution:
    """Return an X-ray with the models of `guess_models`, and a note on how they were found.

    Models that are only named in the memory of the process are left out (see `named_models`).

    Args:
        attribution: the X-ray.
        are_used: for each of its models, whether the files of the process show that it uses it.
    """
    note = "no model was given, and none was found; name it with --model to identify its weights"
    if attribution.models:
        proven_names = set(proven_models(attribution))
        named_indices = named_models(attribution, are_used)
        used_names: list[str] = []
        uncertain_names: list[str] = []
        for model, is_used in zip(attribution.models, are_used, strict=True):
            (used_names if is_used or model.name in proven_names else uncertain_names).append(
                model.name
            )
        named_only = {attribution.models[index].name for index in named_indices}
        uncertain_names = [name for name in uncertain_names if name not in named_only]
        texts = [f"the process uses {', '.join(used_names)}"] if used_names else []
        if uncertain_names:
            names = ", ".join(uncertain_names)
            texts.append(f"it may use {names}, by files or paths in its memory, not by weights")
        note = f"models were searched for, as none was named: {'; '.join(texts)}"
        attribution = _without_models(attribution, named_indices)
    return msgspec.structs.replace(attribution, notes=(note, *attribution.notes))


def named_models(attribution: Attribution, are_used: Sequence[bool]) -> frozenset[int]:
    """Return the indices of the models that are only named in the memory of the process.

    No file shows that the process uses them, and all of their weights in its memory, if any, are
    weights of a model that it uses. For example, an optimized model in the folder of the original
    has such weights. If the process uses no model, no model is only named.

    Args:
        attribution: the X-ray.
        are_used: for each of its models, whether the files of the process show that it uses it.
    """
    proven_names = set(proven_models(attribution))
    models = enumerate(zip(attribution.models, are_used, strict=True))
    used_indices = {
        index for index, (model, is_used) in models if is_used or model.name in proven_names
    }
    if not used_indices:
        return frozenset()
    unexplained_indices = {
        index
        for copy in attribution.copies
        if not used_indices & {*copy.models}
        for index in copy.models
    }
    return frozenset(range(len(are_used))) - used_indices - unexplained_indices


def _without_models(attribution: Attribution, left_out_indices: Set[int]) -> Attribution:
    remaining_indices = [
        index for index in range(len(attribution.models)) if index not in left_out_indices
    ]
    number_by_index = (
        {index: number for number, index in enumerate(remaining_indices)}
        if len(remaining_indices) > 1
        else {}
    )
    return msgspec.structs.replace(
        attribution,
        models=tuple(attribution.models[index] for index in remaining_indices),
        copies=tuple(
            msgspec.structs.replace(
                copy,
                models=tuple(
                    number_by_index[index] for index in copy.models if index in number_by_index
                ),
            )
            for copy in attribution.copies
        ),
    )


def proven_models(attribution: Attribution) -> Iterator[str]:
    """Yield the names of the models with a weight in memory that no other searched model has."""
    for index, model in enumerate(attribution.models):
        only_model = (index,) if len(attribution.models) > 1 else ()
        if any(copy.models in (only_model, (index,)) for copy in attribution.copies):
            yield model.name


def _refers_to(model: Path, data: Path) -> bool:
    try:
        with open_model(model) as model_file:
            return data.resolve() in model_file.files
    except ModelError:
        return False


def _open_files(pid: int) -> list[Path]:
    """Return the files that the process has open for reading; empty if they cannot be listed.

    Files that it writes, such as logs, are left out: they are neither models nor their data.
    """
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    paths = []
    for link in links:
        with suppress(OSError):  # the file was closed since it was listed
            flags = _OPEN_FLAGS.search(Path(f"/proc/{pid}/fdinfo/{link.name}").read_bytes())
            if flags and int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY:
                paths.append(link.readlink())
    return sorted(path for path in paths if path.is_absolute())


def _working_directory(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return Path("/")


def _argument_paths(pid: int, folder: Path) -> list[Path]:
    """Return the arguments that name models, also as ``--option=PATH``, relative to `folder`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    names = [os.fsdecode(word) for word in words if word.lower().endswith(_MODEL_ENDINGS)]
    return [folder / path for name in names for path in (name, name.partition("=")[2]) if path]


def _paths_in_memory(pid: int, regions: Sequence[Region], folder: Path) -> list[Path]:
    """Return the paths of models among the strings in writable memory, relative to `folder`."""
    paths: dict[Path, None] = {}
    remaining_bytes = MAX_PATH_SEARCH_BYTES
    buffer = np.empty(READ_CHUNK_BYTES, np.uint8)
    with ProcessMemory(pid) as memory:
        for region in sorted(regions, key=lambda region: region.path != "[heap]"):
            if not region.permissions.startswith("rw") or region.path.startswith("/"):
                continue
            if region.end - region.start > remaining_bytes:
                continue
            remaining_bytes -= region.end - region.start
            ranges = np.array([[region.start, region.end]], np.int64)
            for _, length in memory.iter_chunks(ranges, buffer, overlap=MAX_PATH_BYTES):
                text = buffer[:length].tobytes()
                paths |= dict.fromkeys(folder / name for name in _model_names(text))
    return sorted(paths)


def _model_names(memory: bytes) -> Iterator[str]:
    """Yield the strings in `memory` that end like names of models, followed by a zero byte."""
    for ending in _MODEL_ENDINGS:
        end = memory.find(ending + b"\0")
        while end >= 0:
            preceding_bytes = memory[max(0, end - MAX_PATH_BYTES) : end]
            # In memory, a zero byte or another number precedes a string of C, C++ or Python.
            yield os.fsdecode(_UNPRINTABLE_BYTES.split(preceding_bytes)[-1] + ending)
            end = memory.find(ending + b"\0", end + 1)

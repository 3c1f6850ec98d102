"""Processes that use onnxruntime without the hook, and what their files and memory show."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from memdiag.errors import XrayError
from memdiag.programs.recorded_process import RecordedProcess
from memdiag.system.loaded_runtime import loaded_runtime

if TYPE_CHECKING:
    from memdiag.records.attribution import Attribution

MAX_COMMAND_IN_NOTE = 200
"""Characters of a command line in a note."""

MIN_SEARCH_GROWTH = 1.1
MIN_SEARCH_GROWTH_BYTES = 8 << 20
"""onnxruntime is searched for again when the memory is 10 % and 8 MiB larger than at the last
search: loading it takes 20 MiB or more."""


def find_runtime(process: RecordedProcess, *, with_models: bool) -> None:
    """Store which onnxruntime `process` has loaded, if it has no hook."""
    if not process.has_hook and process.runtime is None:
        process.runtime = loaded_runtime(process.pid)
        if with_models and process.runtime is not None:
            # Samples would be missing while memory is searched.
            find_used_models(process)


def find_runtime_if_grown(process: RecordedProcess) -> None:
    """Search for onnxruntime in `process` if its memory has grown since the last search.

    A program may end before the next regular search. The event of its hook may be on its way, so
    the result only counts at the end of the process.
    """
    if process.has_hook or process.runtime or process.early_runtime:
        return
    before_bytes, rss_bytes = process.searched_rss_bytes, process.rss_bytes
    if rss_bytes >= max(MIN_SEARCH_GROWTH * before_bytes, before_bytes + MIN_SEARCH_GROWTH_BYTES):
        process.searched_rss_bytes = rss_bytes
        process.early_runtime = loaded_runtime(process.pid)


def find_used_models(process: RecordedProcess) -> None:
    """Store the names of the models that `process` uses according to its files."""
    from memdiag.programs.process_files import guess_models

    with suppress(XrayError):  # the process has ended
        for path, is_used in guess_models(process.pid, searches_memory=False):
            if is_used:
                process.models[path.name] = True


def add_xrayed_models(process: RecordedProcess, attribution: Attribution) -> None:
    """Store the models whose weights are in `process`.

    It is not certain that the process uses a model whose weights another model has, too.
    """
    from memdiag.programs.process_files import proven_models

    indices = {index for copy in attribution.copies for index in copy.models or (0,)}
    names = {PurePath(attribution.models[index].name).name for index in indices}
    process.models = dict.fromkeys(names, False) | process.models
    process.models |= {PurePath(name).name: True for name in proven_models(attribution)}


def runtime_note(process: RecordedProcess) -> str:
    """Return which onnxruntime and which models were found in `process` from outside."""
    assert process.runtime is not None
    version, build = process.runtime
    words = [f"process {process.pid} ({' '.join(process.info.command)[:MAX_COMMAND_IN_NOTE]}) uses"]
    words += filter(None, ["onnxruntime", version, build and f"({build})"])
    words += ["with", ", ".join(process.used_models)] if process.used_models else []
    names = ", ".join(process.uncertain_models)
    words += ["and may use", names] if names else []
    return " ".join(words)

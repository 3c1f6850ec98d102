"""Find the session options with which a model fits a memory budget at the least latency."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from memdiag.api.arguments import OnProgress, ignore_progress, model_path
from memdiag.api.inputs import GivenInputs
from memdiag.api.option_tuning import (
    TuneConfig,
    default_job,
    runnable_original,
    search_and_publish,
)
from memdiag.api.search_arguments import check_slowdown, deadline_after
from memdiag.defaults import DEFAULT_MAX_SLOWDOWN
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import require_runtime
from memdiag.records.tuning import Tuning


def tune(
    model: str | Path,
    *,
    budget: Mapping[str, int] | None = None,
    only: Sequence[str] = (),
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    unsafe: bool = False,
    sessions: int = 1,
    processes: int = 1,
    load_from: Literal["path", "bytes"] = "path",
    telemetry: bool = False,
    dims: Mapping[str, int] | None = None,
    inputs: GivenInputs | None = None,
    same_inputs: bool = False,
    sizes: Sequence[int] | None = None,
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> Tuning:
    """Return the options that make `model` fit `budget` with the least latency.

    The memory of every option is measured alone. Options that usually cost no time are combined by
    memory, and the combination is compared with the defaults: its outputs and, quickly, its
    latency. Each other option is then added, and compared if it saves more. The chosen point is
    measured again in several processes, and its latency is compared precisely. Ctrl-C, or a time
    limit, ends the search with the best result so far. `memdiag.optimize` rewrites the model as
    well.

    Args:
        model: the ONNX file.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; None to search
            for the least memory.
        only: names of the options to try; all where empty.
        max_slowdown: the largest ratio of latencies that options may cost.
        unsafe: try options that change values as well.
        sessions: the number of sessions of the model in each measured process.
        processes: the number of processes that load the model; the search looks for the least
            memory of all together. It is computed from one process: what is mapped from files
            counts once, everything else for each.
        load_from: whether a session is given the path or the file's bytes, where no option of the
            search says otherwise.
        telemetry: measure with onnxruntime's telemetry on, as it is by default since 1.29, and try
            to turn it off.
        dims: sizes of free dimensions by name; realistic ones where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; others are generated.
        same_inputs: run with the same contents each time; by default the contents of generated
            inputs differ in each run that is measured.
        sizes: further sizes of free dimensions with which the model runs: outputs and latency are
            compared with each, and memory is that after all of them. By default 1 and 4, but no
            further ones if `dims` are given.
        time_limit_s: seconds for everything, including the last measurements.
        on_progress: called with a few words about the current step.

    Raises:
        ModelError: the file is missing, is no ONNX model, lacks its external data, or changed
            meanwhile.
        UsageError: an argument is invalid.
        MeasurementError: the model does not run here, or the time limit passed before it was
            measured.
    """
    started = time.perf_counter()
    deadline = deadline_after(time_limit_s)
    check_slowdown(max_slowdown)
    config = TuneConfig(
        budget=dict(budget or {}),
        only=only,
        max_slowdown=max_slowdown,
        unsafe=unsafe,
        sessions=sessions,
        processes=processes,
        load_from=load_from,
        telemetry=telemetry,
        dims=dict(dims or {}),
        inputs=inputs or {},
        same_inputs=same_inputs,
        sizes=sizes,
    )
    config.check()
    require_runtime("run memdiag in an environment that has it")
    path = model_path(model)
    report_progress = on_progress or ignore_progress
    job = default_job(path, config, deadline)
    config.check_usable(job)
    with open_model(path) as file, FileStates(path, file.files), ExitStack() as exits:
        base = runnable_original(exits, file, job, config, report_progress)
        return search_and_publish(base, config, started=started, report_progress=report_progress)

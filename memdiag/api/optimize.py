"""Everything that makes a model take less memory: rewrites, optimizers, and session options."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from memdiag.api.arguments import OnProgress, ignore_progress, model_path
from memdiag.api.fix import FixConfig, fix_file, model_writer
from memdiag.api.inputs import GivenInputs
from memdiag.api.new_models import NewModels
from memdiag.api.optimizer_outputs import OptimizerOutputs, check_optimizers, optimizer_names
from memdiag.api.option_tuning import (
    TuneConfig,
    default_job,
    runnable_original,
    search_and_publish,
)
from memdiag.api.search_arguments import check_slowdown, deadline_after
from memdiag.defaults import DEFAULT_MAX_SLOWDOWN
from memdiag.errors import ModelError
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import require_runtime
from memdiag.records.tuning import REWRITE, Tuning

_SHARE_OF_REWRITING = 0.5
"""The share of the time after the first measurements that the fix may take."""


def optimize(
    model: str | Path,
    output: str | Path | None = None,
    *,
    budget: Mapping[str, int] | None = None,
    only: Sequence[str] = (),
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    unsafe: bool = False,
    max_difference: float | None = None,
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
    """Rewrite `model`, find its best session options, and return both as one record.

    First comes `memdiag.fix`, with few measurements, as the result is verified at the end. Then
    every optimizer that is installed (onnxsim, onnxslim, onnxoptimizer, onnxscript, and
    onnxruntime's own) writes a model from the original. The fixed model and these are options like
    those of `memdiag.tune`: measured, verified, and combined with settings in the same way. If the
    model of an optimizer is a part of the chosen point, it takes the place of the fixed model.

    Args:
        model: the ONNX file.
        output: path of the new model; ``NAME.optimized.onnx`` beside the original where None.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; None to search
            for the least memory.
        only: names of the options and optimizers to try; all where empty. The rewrites of the fix
            are tried in any case.
        max_slowdown: the largest ratio of latencies that the changes may cost together.
        unsafe: try rewrites and options that change values as well.
        max_difference: the difference of an output that is accepted, as a share of its largest
            value. Weights of 8 and 4 bits (``quantize-int8`` and ``quantize-int4``) are tried as
            well then. None to accept only sums in another order.
        sessions: the number of sessions of the model in each measured process.
        processes: the number of processes that load the model; the search looks for the least
            memory of all together. It is computed from one process: what is mapped from files
            counts once, everything else for each.
        load_from: whether a session is given the path or the file's bytes, where no option of the
            search says otherwise.
        telemetry: measure with onnxruntime's telemetry on, and try to turn it off.
        dims: sizes of free dimensions by name; realistic ones where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; others are generated.
        same_inputs: run with the same contents each time.
        sizes: further sizes of free dimensions with which the model runs: outputs and latency are
            compared with each, and memory is that after all of them. By default 1 and 4, but no
            further ones if `dims` are given.
        time_limit_s: seconds for everything; the fix gets at most half of what the first
            measurements leave, and the optimizers at most a quarter of the rest.
        on_progress: called with a few words about the current step.

    Raises:
        ModelError: the file is missing, is no ONNX model, lacks its external data, or changed
            meanwhile.
        UsageError: an argument is invalid, or the output would overwrite the original.
        MeasurementError: the model does not run here, or the time limit passed before it was
            measured.
        ReportError: the folder of the new model cannot be written. If that is noticed at the end,
            it is the `write_problem` of the record instead.
    """
    started = time.perf_counter()
    deadline = deadline_after(time_limit_s)
    report_progress = on_progress or ignore_progress
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
        max_difference=max_difference,
    )
    config.check([*optimizer_names(), REWRITE])
    check_optimizers(only, changes_values=max_difference is not None)
    require_runtime("run memdiag in an environment that has it")
    path = model_path(model)
    target = Path(output) if output is not None else path.with_name(f"{path.stem}.optimized.onnx")
    job = default_job(path, config, deadline)
    config.check_usable(job)
    with open_model(path) as file, FileStates(path, file.files), ExitStack() as exits:
        writer = model_writer(file, target)
        writer.check_writable()
        exits.callback(writer.discard_staged)
        base = runnable_original(exits, file, job, config, report_progress)
        with deadline.at_most(_SHARE_OF_REWRITING):
            fixed = fix_file(
                writer,
                job,
                lambda: base,  # measured already, since options are tried in any case
                FixConfig(
                    unsafe=unsafe,
                    max_slowdown=max_slowdown,
                    dims=dims,
                    max_difference=max_difference,
                    for_optimize=True,
                ),
                report_progress=report_progress,
                started=started,
            )
        optimizers = OptimizerOutputs(only, changes_values=max_difference is not None)
        new_models = NewModels(writer, fixed, optimizers)
        try:
            return search_and_publish(
                base,
                config,
                started=started,
                report_progress=report_progress,
                new_models=new_models,
                ended_by="interrupt" if fixed.record.ended_by == "interrupt" else "completion",
            )
        except ModelError:  # the original changed
            raise
        except BaseException as error:
            if writer.has_published:
                error.add_note(f"The new model is at {target}.")
            elif writer.staged_targets and not new_models.publish_rewritten().problem:
                error.add_note(f"The rewritten model is at {target}.")
            raise

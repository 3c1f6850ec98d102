"""Find the session options with which a model fits a memory budget at the least latency."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from memdiag.api.arguments import OnProgress, check_dims, ignore_progress, model_path
from memdiag.api.comparison_inputs import find_comparison_inputs
from memdiag.api.fix import fix
from memdiag.api.inputs import GivenInputs, read_given
from memdiag.api.search_arguments import (
    check_search_arguments,
    deadline_after,
)
from memdiag.defaults import DEFAULT_MAX_SLOWDOWN, DEFAULT_SIZES
from memdiag.errors import MeasurementError, UsageError
from memdiag.model.file_state import FileStates
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.ort.reductions import largest_reduction
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.records.fix import Fix
from memdiag.records.tuning import Tuning
from memdiag.runner.job import Job, Limits, SessionConfig, TimeLimitReached
from memdiag.runner.temporary import temporary_folder
from memdiag.tuning.options import tuning_options
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import BUDGETS
from memdiag.tuning.record import rewrite_option, tuning_record, unmeasured_tuning
from memdiag.tuning.search import OptionSearch
from memdiag.verify.model_evaluator import ModelEvaluator
from memdiag.verify.outputs import Bound

_SHARE_OF_REWRITING = 0.5


def tune(
    model: str | Path,
    *,
    budget: Mapping[str, int] | None = None,
    only: Sequence[str] = (),
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    rewrite: bool = False,
    output: str | Path | None = None,
    unsafe: bool = False,
    sessions: int = 1,
    load_from: Literal["path", "bytes"] = "path",
    telemetry: bool = False,
    dims: Mapping[str, int] | None = None,
    inputs: GivenInputs | None = None,
    same_inputs: bool = False,
    sizes: Sequence[int] = DEFAULT_SIZES,
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> Tuning:
    """Return the options that make `model` fit `budget` with the least latency.

    The memory of every option is measured alone. Where an option saves memory, outputs are checked
    and the latency is compared quickly with the defaults, the largest saving first. The other
    options are then added to the option that saves the most, and kept if they save more. The
    chosen point is measured again in several processes, and its latency is compared precisely.
    Ctrl-C, or a time limit, ends the search with the best result so far. If a fix comes first and
    is interrupted, the tuning has no points.

    Args:
        model: the ONNX file.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; None to search
            for the least memory.
        only: names of the options to try; all where empty.
        max_slowdown: the largest ratio of latencies that options may cost.
        rewrite: fix the model first (see `memdiag.fix`), and tune the result.
        output: where the fixed model goes, as in `memdiag.fix`.
        unsafe: try options, and remedies, that change values as well.
        sessions: of the model, all in one process, whose memory is measured.
        load_from: whether a session is given the path or the file's bytes, unless an option says.
        telemetry: measure with onnxruntime's telemetry on, as it is by default since 1.29, and try
            to turn it off.
        dims: sizes of free dimensions by name; realistic ones where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; others are generated.
        same_inputs: run with the same contents each time; by default the contents of generated
            inputs differ in each run that is measured.
        sizes: further sizes of free dimensions at which outputs and latency are compared.
        time_limit_s: seconds for everything, including the rewriting, which gets half of them, and
            the last measurements.
        on_progress: called with a few words about the current step.

    Raises:
        ModelError: the file is missing, is no ONNX model, lacks its external data, or changed
            meanwhile.
        UsageError: an argument is invalid.
        MeasurementError: the model does not run here, or the time limit passed before it was
            measured.
        ReportError: the fixed model cannot be written.
    """
    started = time.perf_counter()
    deadline = deadline_after(time_limit_s)
    report_progress = on_progress or ignore_progress
    wanted = dict(budget or {})
    check_search_arguments(max_slowdown, time_limit_s)
    _check(wanted, only, sessions, output if not rewrite else None)
    require_runtime("run memdiag in an environment that has it")
    path = model_path(model)
    check_dims(dims)
    fixed: Fix | None = None
    if rewrite:
        fixed = fix(
            path,
            output,
            unsafe=unsafe,
            max_slowdown=max_slowdown,
            dims=dims,
            inputs=inputs,
            same_inputs=same_inputs,
            sizes=sizes,
            time_limit_s=None if time_limit_s is None else _SHARE_OF_REWRITING * time_limit_s,
            on_progress=report_progress,
        )
        if fixed.ended_by == "interrupt":
            duration_s = round(time.perf_counter() - started, 6)
            return unmeasured_tuning(fixed, "interrupt", sessions, duration_s)
    given = read_given(inputs or {})
    with open_model(path) as file, FileStates(path, file.files), ExitStack() as exits:
        scratch = exits.enter_context(temporary_folder())
        report_progress("finding inputs that the model runs with")
        end = deadline.at
        job = Job(
            model=path,
            runs=None,
            session=SessionConfig(sessions=sessions, load_from=load_from, telemetry=telemetry),
            limits=Limits(deadline=deadline),
        )
        folder = scratch / "inputs"
        try:
            found = find_comparison_inputs(
                file,
                job,
                folder,
                dims=dims or {},
                given=given,
                sizes=sizes,
                same_inputs=same_inputs,
            )
            if not found.sets:
                raise MeasurementError(
                    f"{path}: the model does not run here with generated inputs. Use --input."
                )
            report_progress("measuring the defaults")
            disk_bytes = sum(each.stat().st_size for each in file.files)
            evaluator = exits.enter_context(ModelEvaluator(job, found.sets, scratch, disk_bytes))
        except TimeLimitReached as limit:
            if fixed is not None and fixed.output is not None:
                duration_s = round(time.perf_counter() - started, 6)
                return unmeasured_tuning(fixed, "time_limit", sessions, duration_s)
            raise MeasurementError(
                f"{path}: the time limit passed before the defaults were measured. Increase"
                " --time-limit."
            ) from limit
        points = PointEvaluator(
            model_evaluator=evaluator,
            bound=Bound.reordered(largest_reduction(file, GraphIndex(file))),
            scratch=scratch,
            disk_bytes=disk_bytes,
            limit=max_slowdown,
            budget=wanted,
        )
        runtime = Runtime.parse(evaluator.onnxruntime)
        search = OptionSearch(
            point_evaluator=points,
            usable=[
                option
                for option in tuning_options()
                if option.is_available(runtime)
                and option.is_relevant(job)
                and (unsafe or not option.changes_values)
                and (not only or option.name in only)
            ],
            always=(rewrite_option(fixed.output),) if fixed and fixed.output else (),
            budget=wanted,
            limit=max_slowdown,
            report_progress=report_progress,
            end=end,
        )
        search.run()
        return tuning_record(
            file,
            search,
            fixed,
            notes=found.notes,
            dimensions=found.dimensions,
            duration_s=round(time.perf_counter() - started, 6),
        )


def _check(
    budget: Mapping[str, int],
    only: Sequence[str],
    sessions: int,
    unused_output: str | Path | None,
) -> None:
    unknown = sorted(budget.keys() - {*BUDGETS})
    if unknown:
        raise UsageError(f"unknown budget {unknown[0]!r}. Use one of {', '.join(BUDGETS)}.")
    names = sorted(option.name for option in tuning_options())
    if unknown := sorted({*only} - {*names}):
        raise UsageError(f"unknown option {unknown[0]!r}. Use one of {', '.join(names)}.")
    if sessions < 1:
        raise UsageError("sessions must be at least 1.")
    if unused_output is not None:
        raise UsageError(
            f"{unused_output}: --output has no effect without --rewrite. Add --rewrite."
        )

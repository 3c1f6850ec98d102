"""Find the options with which a model fits a budget and loses the least time."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Literal

import msgspec

from memdiag.api.arguments import check_dims, model_path
from memdiag.api.fix import fix
from memdiag.api.fixing.search import INTERRUPTED
from memdiag.api.inputs import Given, read_given
from memdiag.api.trials import SIZES, trials
from memdiag.api.tuning.attempts import Attempts
from memdiag.api.tuning.points import BUDGETS
from memdiag.api.tuning.record import record_of, rewrite_option
from memdiag.api.tuning.search import Search
from memdiag.errors import MeasurementError, UsageError
from memdiag.model.graph_index import GraphIndex
from memdiag.model.model_file import open_model
from memdiag.ort.reductions import largest_reduction
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.records.fix import Fix
from memdiag.remedies.option import Option
from memdiag.remedies.options import options
from memdiag.runner.job import Deadline, Job, TimeLimitReached
from memdiag.runner.temporary import temporary_folder
from memdiag.verify.bench import Bench
from memdiag.verify.outputs import Bound

DEFAULT_MAX_SLOWDOWN = 1.05

_SHARE_OF_REWRITING = 0.5

_PROMISING = (
    "load-by-path",
    "share-weights",
    "save-prepacked",
    "mmap-threshold",
    "folding-size-limit",
    "jemalloc",
    "mimalloc",
    "disable-constant-folding",
    "disable-nchwc",
    "disable-prepacking",
    "patterns-off",
)
"""Options that saved the most memory on real models come first; the rest follow by name."""

OnProgress = Callable[[str], None]


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
    inputs: Given | None = None,
    sizes: Sequence[int] = SIZES,
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> Fix:
    """Return the options that make `model` fit `budget` with the least latency.

    The memory of every option is measured alone. Of those that save memory, the outputs are
    checked, and the latency is compared quickly with that of the defaults, the largest saving
    first. To the option that saves the most, the others are added in turn, and those that save
    more are kept. The chosen point is measured again, in several processes, and its latency is
    compared exactly. Ctrl-C, or a time limit, ends the search with the best so far. Where the model
    is fixed first and that is ended, the record is the fix's alone.

    Args:
        model: the ONNX file.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; where it is None
            the least memory is looked for.
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
        inputs: arrays, or paths of ``.npy`` files, by input name; the rest is made up.
        sizes: further sizes of free dimensions at which outputs and latency are compared.
        time_limit_s: seconds after which all is over, rewriting and the last measurements included.
            Rewriting gets half of them.
        on_progress: called with a few words about what is being done.

    Raises:
        ModelError: the file is missing, is no ONNX model, or lacks its external data.
        UsageError: an argument does not fit.
        MeasurementError: the model does not run here, or the time is over before it was measured.
        ReportError: the fixed model cannot be written.
    """
    started, began = time.perf_counter(), time.monotonic()
    say = on_progress or _silent
    wanted = dict(budget or {})
    _check(wanted, only, max_slowdown, sessions, time_limit_s, output if not rewrite else None)
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
            sizes=sizes,
            time_limit_s=None if time_limit_s is None else _SHARE_OF_REWRITING * time_limit_s,
            on_progress=say,
        )
        if INTERRUPTED in fixed.notes:
            return fixed
    given = read_given(inputs or {})
    with open_model(path) as file, ExitStack() as exits:
        scratch = exits.enter_context(temporary_folder())
        say("finding inputs that the model runs with")
        end = inf if time_limit_s is None else began + time_limit_s
        job = Job(
            model=path,
            runs=None,
            sessions=sessions,
            load_from=load_from,
            telemetry=telemetry,
            deadline=Deadline(end),
        )
        folder = scratch / "inputs"
        try:
            tried = trials(file, job, folder, dims=dims or {}, given=given, sizes=sizes)
            sets = tried.sets
            if not sets:
                raise MeasurementError(
                    f"{path}: it does not run here with any inputs; give --input."
                )
            say("measuring the defaults")
            disk_bytes = sum(each.stat().st_size for each in file.files)
            bench = exits.enter_context(Bench(job, sets, scratch, disk_bytes))
        except TimeLimitReached as limit:
            if fixed is not None and fixed.output is not None:
                note = "the time limit passed before any option was tried"
                return msgspec.structs.replace(fixed, notes=(*fixed.notes, note))
            raise MeasurementError(
                f"{path}: the time limit passed before the defaults were measured; give a longer"
                " --time-limit."
            ) from limit
        attempts = Attempts(
            bench=bench,
            bound=Bound.reordered(largest_reduction(file, GraphIndex(file))),
            scratch=scratch,
            disk_bytes=disk_bytes,
            limit=max_slowdown,
            budget=wanted,
        )
        runtime = Runtime.parse(bench.onnxruntime)
        search = Search(
            attempts=attempts,
            usable=[
                one
                for one in sorted(options(), key=_rank)
                if one.applies(runtime)
                and one.suits(job)
                and (unsafe or not one.changes_values)
                and (not only or one.name in only)
            ],
            always=(rewrite_option(fixed.output),) if fixed and fixed.output else (),
            budget=wanted,
            limit=max_slowdown,
            say=say,
            end=end,
        )
        search.run()
        record = record_of(file, search, fixed, round(time.perf_counter() - started, 6))
        notes = (*tried.notes, *record.notes)
        return msgspec.structs.replace(record, dimensions=tried.dimensions, notes=notes)


def _check(
    budget: Mapping[str, int],
    only: Sequence[str],
    max_slowdown: float,
    sessions: int,
    time_limit_s: float | None,
    unused_output: str | Path | None,
) -> None:
    unknown = sorted(budget.keys() - {*BUDGETS})
    if unknown:
        raise UsageError(f"unknown budget {unknown[0]!r}. Use one of {', '.join(BUDGETS)}.")
    if max_slowdown <= 0:
        raise UsageError("--max-slowdown must be greater than 0.")
    names = [one.name for one in options()]
    if unknown := sorted({*only} - {*names}):
        raise UsageError(f"unknown option {unknown[0]!r}. Use one of {', '.join(names)}.")
    if sessions < 1:
        raise UsageError("--sessions must be at least 1.")
    if time_limit_s is not None and time_limit_s <= 0:
        raise UsageError("--time-limit must be greater than 0.")
    if unused_output is not None:
        raise UsageError(
            f"{unused_output}: --output has no effect without --rewrite. Add --rewrite."
        )


def _rank(option: Option) -> int:
    return _PROMISING.index(option.name) if option.name in _PROMISING else len(_PROMISING)


def _silent(words: str) -> None:
    """Say nothing."""

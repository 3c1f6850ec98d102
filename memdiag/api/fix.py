"""End a model's waste: build each remedy, verify and measure it, and keep the best combination."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path

import msgspec

from memdiag.api.arguments import check_dims, model_path
from memdiag.api.check import Selection, examine
from memdiag.api.fixing.attempt import Attempt
from memdiag.api.fixing.candidates import Proof
from memdiag.api.fixing.changes import changes_by_rule
from memdiag.api.fixing.files import FixFiles, Output
from memdiag.api.fixing.record import record_of
from memdiag.api.fixing.search import Search
from memdiag.api.inputs import Given, read_given
from memdiag.api.trials import SIZES, trials
from memdiag.errors import UsageError
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.records.dimension import Dimension
from memdiag.records.fix import Fix
from memdiag.runner.job import Deadline, Job, TimeLimitReached
from memdiag.runner.temporary import temporary_folder
from memdiag.verify.bench import Bench
from memdiag.verify.other_runtimes import OtherRuntimes

DEFAULT_MAX_SLOWDOWN = 1.05

OnProgress = Callable[[str], None]


def fix(
    model: str | Path,
    output: str | Path | None = None,
    *,
    only: Sequence[str] = (),
    unsafe: bool = False,
    unverified: bool = False,
    dry_run: bool = False,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    dims: Mapping[str, int] | None = None,
    inputs: Given | None = None,
    sizes: Sequence[int] = SIZES,
    check_with: Sequence[str | Path] = (),
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
) -> Fix:
    """Rewrite `model` so that it wastes less, verified, and return what was done.

    Every remedy of every finding is built, its outputs are compared with the original's, its
    memory and latency are measured in isolated processes; what saves nothing that can be measured,
    or slows the model down, is left out. The original is never changed, and nothing is at `output`
    before it is verified. The result may refer to weights in the original's files.

    Args:
        model: the ONNX file.
        output: where the fixed model goes; ``NAME.fixed.onnx`` beside the original where None.
        only: rules (names, codes, beginnings of codes) whose remedies are tried; all where empty.
        unsafe: try remedies that change values as well.
        unverified: write remedies also where the model cannot be run here, unverified.
        dry_run: say which remedies would be tried, and do nothing.
        max_slowdown: the largest ratio of latencies that a remedy may cost.
        dims: sizes of free dimensions by name; realistic ones where not given.
        inputs: arrays, or paths of ``.npy`` files, by input name; the rest is made up.
        sizes: further sizes of free dimensions at which outputs and latency are compared.
        check_with: interpreters of environments with other releases of onnxruntime; the result has
            to load there too, and to give what the original gives there.
        time_limit_s: seconds after which the search ends, as it does at Ctrl-C; the best result so
            far is written.
        on_progress: called with a few words about what is being done.

    Raises:
        ModelError: the file is missing, is no ONNX model, or lacks its external data.
        UsageError: an argument does not fit, or the output cannot be where it should be.
        ReportError: the output cannot be written.
        MeasurementError: the model runs, but not where it is measured.
    """
    started = time.perf_counter()
    path = model_path(model)
    check_dims(dims)
    target = Path(output) if output is not None else path.with_name(f"{path.stem}.fixed.onnx")
    if max_slowdown <= 0:
        raise UsageError("--max-slowdown must be greater than 0.")
    require_runtime("run memdiag in an environment that has it")
    if time_limit_s is not None and time_limit_s <= 0:
        raise UsageError("--time-limit must be greater than 0.")
    deadline = Deadline(inf if time_limit_s is None else time.monotonic() + time_limit_s)
    given = read_given(inputs or {})
    say = on_progress or _silent
    with open_model(path) as file, ExitStack() as exits:
        files = FixFiles(file, target)
        runtime = Runtime.installed()
        findings, notes = examine(file, runtime, Selection(select=only, min_bytes=0), dims=dims)
        attempt = Attempt(files=files, unsafe=unsafe, notes=[*notes], deadline=deadline)
        rules = tuple(changes_by_rule(findings))
        result: Proof | Output | None = None
        dimensions: tuple[Dimension, ...] = ()
        if dry_run or not rules:
            attempt.foresee(rules)
        elif attempt.any_possible(rules):
            files.check_writable()
            scratch = exits.enter_context(temporary_folder())
            say("finding inputs that the model runs with")
            job = Job(model=path, runs=None, deadline=deadline)
            bench: Bench | None = None
            try:
                folder = scratch / "inputs"
                tried = trials(file, job, folder, dims=dims or {}, given=given, sizes=sizes)
                attempt.notes += tried.notes
                sets, dimensions = tried.sets, tried.dimensions
                if sets:
                    say("measuring the original")
                    others = OtherRuntimes([Path(one) for one in check_with], job, sets, scratch)
                    disk_bytes = sum(each.stat().st_size for each in file.files)
                    bench = exits.enter_context(Bench(job, sets, scratch, disk_bytes))
            except TimeLimitReached:
                attempt.leave(rules, "the time limit ended the search before")
                attempt.notes.append(
                    "no remedy was tried: the time limit passed before the original was measured"
                )
            else:
                if bench is not None:
                    end = deadline.at
                    result = Search(attempt, bench, others, max_slowdown, say, end).run(rules)
                elif unverified:
                    result = attempt.trust(rules)
                else:
                    attempt.give_up(rules)
        duration_s = round(time.perf_counter() - started, 6)
        record = record_of(attempt, runtime, result, duration_s)
        return msgspec.structs.replace(record, dimensions=dimensions)


def _silent(words: str) -> None:
    """Say nothing."""

"""Is it a leak? Run a model many times, with other inputs in each run, and judge its growth."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from memdiag.api.arguments import model_path
from memdiag.api.check import Selection
from memdiag.api.inputs import ArrayOrFile, ChosenInputs, choose_inputs, find_inputs, save_inputs
from memdiag.api.profile_config import profile_config
from memdiag.api.run import run as run_program
from memdiag.api.watch import watch
from memdiag.defaults import DEFAULT_TIMEOUT_S
from memdiag.errors import MeasurementError, UsageError, XrayError
from memdiag.growth.growing_blocks import growing_blocks, growing_sizes, lasting_bytes
from memdiag.growth.model_runs import ModelRuns, RunPlan
from memdiag.growth.moment import MemoryMoment
from memdiag.growth.process_history import ProcessHistory
from memdiag.growth.verdict import MIN_JUDGED, Observation, grown_bytes, judge
from memdiag.growth.wording import remedy, sentence
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import ModelFile, open_model
from memdiag.programs.recorded import RecordedProcess
from memdiag.programs.recorder import BetweenRuns, Recorder
from memdiag.records.growth import (
    BAD_VERDICTS,
    GrowingBlocks,
    Growth,
    Moment,
    RunSample,
    Unit,
    Varied,
)
from memdiag.records.run import ProgramRun
from memdiag.runner.job import Feed, InputConfig, Job, Limits, SessionConfig
from memdiag.runner.temporary import temporary_folder
from memdiag.runner.try_inputs import inputs_that_run, try_once
from memdiag.units import counted

EVERY_S = 2.0
WARM_UP_SHARE = 0.1
"""Share of the moments of a running program that count as its warm-up."""

MIN_KEPT_SHARE = 0.5
"""Share of the values of earlier runs that must be alive for the program to keep them."""

SHORT = "too short for a verdict. Observe it longer, or read it more often with --every."
MAX_OTHERS = 5

DEFAULT_RUNS = 1000
DEFAULT_DURATION_S = 60.0
MIN_RUNS = 40
"""Fewer runs leave too few between the moments."""

MOMENTS = 12
"""Moments from the end of the warm-up to the end."""

CALLING_THREADS = 8
"""Threads of a program that may each have a cache of freed blocks."""

MAX_SHAPES = 24
"""Combinations of sizes with which a model is run, if sizes vary."""

MAX_SAMPLES = 5000

BATCH_S = 1.0
"""Seconds between two reports of progress. What was run in a batch is lost at Ctrl-C."""

_PACE_RUNS = 9

DimRange = int | tuple[int, int]
OnGrowth = Callable[[int, int, int], None]
"""A function that is called with the runs done, the runs planned, and the resident bytes."""


@dataclass(frozen=True, kw_only=True)
class LeakConfig:
    """What is run, and how often.

    Attributes:
        session: how the session is created and run.
        inputs: sizes and arrays of the inputs.
        limits: when the child is ended.
        ranges: ranges of free dimensions, by name; the sizes differ from run to run.
        vary_contents: change the contents of generated inputs before each run.
        vary_shapes: change the sizes of free dimensions without a range, too.
        runs: the number of runs; None for as many as fit into `duration_s`, or without that for up
            to `DEFAULT_RUNS` within `DEFAULT_DURATION_S`.
        duration_s: the seconds for all runs, estimated from the first ones; of more `runs` as many
            as fit, `MIN_RUNS` at least. None for no limit on `runs`.
        callers: the number of threads that run the session at once.
        reload: create the session before each run and release it afterwards.
    """

    session: SessionConfig = field(default_factory=SessionConfig)
    inputs: InputConfig = field(default_factory=InputConfig)
    limits: Limits = field(default_factory=Limits)
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    vary_contents: bool = True
    vary_shapes: bool = False
    runs: int | None = None
    duration_s: float | None = None
    callers: int = 1
    reload: bool = False


def leak(
    model: str | Path,
    *,
    runs: int | None = None,
    duration_s: float | None = None,
    vary: Sequence[Varied] = ("content",),
    callers: int = 1,
    reload: bool = False,
    dims: Mapping[str, DimRange] | None = None,
    inputs: Mapping[str, ArrayOrFile] | None = None,
    session_options: Mapping[str, str] | None = None,
    optimization_level: str | None = None,
    disabled_optimizers: Sequence[str] = (),
    threads: int | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    environment: Mapping[str, str] | None = None,
    load_from: Literal["path", "bytes"] = "path",
    telemetry: bool = False,
    python: str | Path | None = None,
    timeout_s: float | None = None,
    on_progress: OnGrowth | None = None,
) -> Growth:
    """Run `model` many times in a child process and return whether its memory grows, and why.

    A run that fails is not an error: the growth until then is returned, with a `message`. Ctrl-C
    after the first run ends the runs in the same way.

    Args:
        model: the ONNX file.
        runs: number of runs, 40 or more; by default up to 1,000 within a minute.
        duration_s: seconds for all runs, by default a minute if `runs` is None. The number of runs
            is estimated from the first ones: it is `runs` at most, and 40 at least.
        vary: what differs from run to run: ``content``, ``shape`` (sizes of free dimensions), or
            ``none``.
        callers: number of threads that run the session at once.
        reload: create the session before each run and release it afterwards.
        dims: sizes, or ranges (low, high) of sizes, of free dimensions by name.
        inputs: arrays, or paths of ``.npy`` files, by input name, whose contents stay the same; the
            others are generated.
        session_options: SessionOptions attributes and config entries by name.
        optimization_level: ``disable_all``, ``basic``, ``extended``, ``layout`` or ``all``.
        disabled_optimizers: names of graph transformers to leave out.
        threads: number of intra-op threads; chosen by onnxruntime if None.
        providers: execution providers, the preferred one first.
        environment: environment variables of the child.
        load_from: create the session from the path, or from the bytes of the file.
        telemetry: leave onnxruntime's telemetry on, as it is by default.
        python: another interpreter that has onnxruntime; it does not need memdiag.
        timeout_s: seconds after which the child is ended; by default 1,800 beyond `duration_s`.
        on_progress: called after each batch of runs.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: an argument does not fit the model or the runtime.
        MeasurementError: the interpreter cannot be started, the session cannot be created, or not
            even the first run completed.
        XrayError: this system does not let memdiag read the child.
    """
    ranges, sizes = _split(dims or {})
    base = profile_config(
        session_options=session_options,
        optimization_level=optimization_level,
        disabled_optimizers=disabled_optimizers,
        threads=threads,
        providers=providers,
        environment=environment,
        load_from=load_from,
        telemetry=telemetry,
        python=python,
        dims=sizes,
        inputs=inputs,
        timeout_s=DEFAULT_TIMEOUT_S + (duration_s or 0.0) if timeout_s is None else timeout_s,
        xray="none",
        verify="full",
        rules=Selection(),
    )
    config = LeakConfig(
        session=base.session,
        inputs=base.inputs,
        limits=base.limits,
        ranges=ranges,
        vary_contents="content" in vary,
        vary_shapes="shape" in vary,
        runs=runs,
        duration_s=duration_s,
        callers=callers,
        reload=reload,
    )
    _check(config, vary)
    return observe_model(model_path(model), config, on_progress=on_progress)


def observe_model(
    model: Path, config: LeakConfig, *, on_progress: OnGrowth | None = None
) -> Growth:
    """Return the growth of `model`, as `leak` does.

    Raises:
        ModelError, UsageError, MeasurementError, XrayError: as in `leak`.
    """
    with open_model(model) as file, temporary_folder() as scratch:
        job = Job(model=model, session=config.session, limits=config.limits)
        shapes = _shapes(file, job, config, scratch)
        plan = RunPlan(
            feed_sets=tuple(shape.feeds for shape in shapes),
            choice=_choice(len(shapes)),
            vary_contents=config.vary_contents,
            callers=config.callers,
            reload=config.reload,
        )
        with ModelRuns(job, plan, scratch) as runs:
            observed = _observe(runs, config, on_progress)
            return _record(model, config, runs, observed, shapes, plan)


class _Shape(NamedTuple):
    """One set of inputs: the sizes of the dimensions that vary, and the feeds."""

    sizes: Mapping[str, int]
    feeds: tuple[Feed, ...]


@dataclass(kw_only=True)
class _Observed:
    """What was seen of the runs: the moments, and why they ended early."""

    moments: list[MemoryMoment] = field(default_factory=list)
    warm_up_runs: int = 0
    blocks: tuple[GrowingBlocks, ...] = ()
    lasting_bytes: int | None = None
    trim_returned_bytes: int | None = None
    message: str = ""


def _split(
    dims: Mapping[str, DimRange],
) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Return the ranges and the sizes in `dims`; the size of a range is its highest."""
    ranges: dict[str, tuple[int, int]] = {}
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        if isinstance(size, tuple):
            low, high = size
            if not 1 <= low <= high:
                raise UsageError(
                    f"dimension {name!r}: {low}..{high} is not a range of sizes. Give the lowest size"
                    " first, and sizes from 1 on."
                )
            ranges[name] = (low, high)
            sizes[name] = high
        else:
            sizes[name] = size
    return ranges, sizes


def _check(config: LeakConfig, vary: Sequence[Varied]) -> None:
    unknown = set(vary) - {"content", "shape", "none"}
    if unknown:
        raise UsageError(
            f"unknown kind of variation {min(unknown)!r}. Choose from content, shape, none."
        )
    if "none" in vary and len(vary) > 1:
        raise UsageError("--vary none cannot be combined with other kinds. Remove none.")
    if config.runs is not None and config.runs < MIN_RUNS:
        raise UsageError(f"--runs must be at least {MIN_RUNS}, to tell growth from warm-up.")
    if config.duration_s is not None and config.duration_s <= 0:
        raise UsageError("--for must be greater than 0.")
    if config.callers < 1:
        raise UsageError("--callers must be at least 1.")


def _shapes(file: ModelFile, job: Job, config: LeakConfig, scratch: Path) -> list[_Shape]:
    """Return the sets of inputs of the runs, the largest first; those that do not run are left out.

    Raises:
        UsageError: the model runs with none of them.
        MeasurementError: the session cannot be created.
    """
    dims, given = config.inputs.dims, config.inputs.arrays
    chosen = choose_inputs(file, dims=dims, given=given)
    first = tuple(save_inputs(chosen.plans, given, scratch / "inputs"))
    trial = try_once(job, first)
    if not trial.has_session:
        raise MeasurementError(f"{file.path}: the session cannot be created ({trial.problem}).")
    if not trial.runs:
        found = find_inputs(file, job, scratch, dims=dims, given=given, first=chosen)
        if found is None:
            raise UsageError(
                f"{file.path}: it does not run with these inputs ({trial.problem}). Give --dim or"
                " --input."
            )
        chosen = found
        first = tuple(save_inputs(chosen.plans, given, scratch / "found"))
    ranges = dict(config.ranges)
    if config.vary_shapes:
        for dimension in chosen.dimensions:
            if dimension.source == "chosen" and dimension.role != "sum" and dimension.size > 1:
                ranges.setdefault(dimension.name, (1, dimension.size))
        if not ranges:
            raise UsageError(
                f"{file.path}: no dimension can vary. Give a range: --dim NAME=LOW..HIGH."
            )
    shapes = [_Shape(_sizes(chosen, ranges), first)]
    if not ranges:
        return shapes
    candidates = []
    for number, sizes in enumerate(_combinations(ranges)):
        plans = plan_inputs(file, dims={**dims, **sizes}, given=given)
        feeds = tuple(save_inputs(plans, given, scratch / f"shape-{number}"))
        candidates.append(_Shape(sizes, feeds))
    usable = inputs_that_run(job, [shape.feeds for shape in candidates])
    return shapes + [candidates[index] for index in usable]


def _sizes(chosen: ChosenInputs, ranges: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    return {each.name: each.size for each in chosen.dimensions if each.name in ranges}


def _combinations(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Return at most `MAX_SHAPES` combinations of sizes in `ranges`, evenly chosen."""
    names = list(ranges)
    count = 1
    for low, high in ranges.values():
        count *= high - low + 1
    if count <= MAX_SHAPES:
        every = product(*(range(low, high + 1) for low, high in ranges.values()))
        return [dict(zip(names, sizes, strict=True)) for sizes in every]
    chosen = random.Random(0)
    return [
        {name: chosen.randint(low, high) for name, (low, high) in ranges.items()}
        for _ in range(MAX_SHAPES)
    ]


def _choice(shapes: int) -> tuple[int, ...]:
    """Return the index of the set of inputs of each run, in turn."""
    if shapes == 1:
        return (0,)
    chosen = random.Random(0)
    return tuple(chosen.randrange(shapes) for _ in range(4 * shapes))


def _observe(runs: ModelRuns, config: LeakConfig, on_progress: OnGrowth | None) -> _Observed:
    """Run, read the memory at moments, and return what was seen.

    Raises:
        MeasurementError: the first run failed.
    """
    observed = _Observed()
    runs.run(1)
    observed.moments.append(runs.moment())
    try:
        total = _planned_runs(runs, config)
        observed.warm_up_runs = max(_PACE_RUNS + 1, total // 10)
        for number in range(MOMENTS):
            until = observed.warm_up_runs + (total - observed.warm_up_runs) * number // (
                MOMENTS - 1
            )
            _advance(runs, until, total, on_progress)
            observed.moments.append(runs.moment())
        before, after = observed.moments[1], observed.moments[-1]
        observed.lasting_bytes = lasting_bytes(before, after, config.callers + 1)
        if not config.reload:
            observed.blocks = growing_blocks(runs.pid, before, runs.moment(), runs.heads())
        observed.trim_returned_bytes = _trim(runs)
    except (MeasurementError, XrayError) as error:
        observed.message = str(error)
    except KeyboardInterrupt:
        observed.message = f"interrupted after {counted(len(runs.samples), 'run')}"
    return observed


def _advance(runs: ModelRuns, until: int, total: int, on_progress: OnGrowth | None) -> None:
    """Run until `until` runs are done, in batches of about `BATCH_S`."""
    while (done := len(runs.samples)) < until:
        batch = max(1, int(BATCH_S / max(runs.samples[-1].duration_s, 1e-6)))
        runs.run(min(batch, until - done))
        if on_progress is not None:
            on_progress(len(runs.samples), total, runs.samples[-1].resident_bytes)


def _planned_runs(runs: ModelRuns, config: LeakConfig) -> int:
    """Run a few times, and return the number of runs that the duration allows."""
    if config.runs is not None and config.duration_s is None:
        return config.runs
    started = time.monotonic()
    runs.run(_PACE_RUNS)
    pace_s = (time.monotonic() - started) / _PACE_RUNS
    duration_s = config.duration_s or DEFAULT_DURATION_S
    fitting = int(duration_s / max(pace_s, 1e-6))
    wanted = config.runs or (DEFAULT_RUNS if config.duration_s is None else fitting)
    return max(MIN_RUNS, min(wanted, fitting))


def _trim(runs: ModelRuns) -> int | None:
    """Return the resident bytes that malloc returned to the system; None if it cannot."""
    before = runs.moment().moment.resident_bytes
    if not runs.trim():
        return None
    return max(0, before - runs.moment().moment.resident_bytes)


def _record(
    model: Path,
    config: LeakConfig,
    runs: ModelRuns,
    observed: _Observed,
    shapes: Sequence[_Shape],
    plan: RunPlan,
) -> Growth:
    moments = tuple(each.moment for each in observed.moments)
    unit: Unit = "reload" if config.reload else "run"
    observation = Observation(
        moments=moments,
        unit=unit,
        warm_up=1,
        samples=tuple(runs.samples),
        new_largest=_new_largest(shapes, plan.choice, len(runs.samples)),
        blocks=observed.blocks,
        lasting_bytes=observed.lasting_bytes,
        caller_keeps_nothing=True,
    )
    judgement = judge(observation)
    varied: list[Varied] = []
    if config.vary_contents and any(
        feed.vary is not None for feeds in plan.feed_sets for feed in feeds
    ):
        varied.append("content")
    if len(shapes) > 1:
        varied.append("shape")
    ranges = {
        name: (min(shape.sizes[name] for shape in shapes), max(s.sizes[name] for s in shapes))
        for name in shapes[0].sizes
    }
    return Growth(
        subject=str(model),
        kind="model",
        verdict=judgement.verdict,
        sentence=sentence(judgement, moments, observed.blocks, unit),
        remedy=remedy(judgement, observed.trim_returned_bytes),
        owner=judgement.owner,
        slope=judgement.slope,
        grown_bytes=grown_bytes(moments),
        trim_returned_bytes=observed.trim_returned_bytes,
        runs=len(runs.samples),
        warm_up_runs=observed.warm_up_runs,
        warm_up_s=moments[1].time_s if len(moments) > 1 else 0.0,
        unit=unit,
        varied=tuple(varied or ["none"]),
        threads=config.callers,
        dimensions=ranges,
        blocks=observed.blocks,
        moments=moments,
        samples=_thinned(runs.samples),
        notes=_notes(moments),
        onnxruntime=runs.onnxruntime,
        message=observed.message,
    )


class ProgramGrowth(NamedTuple):
    """The growth of a program, and how it ended.

    Attributes:
        growth: the growth.
        exit_code: the exit code of the program; negative for the signal that ended it.
    """

    growth: Growth
    exit_code: int


def leak_process(
    pid: int,
    *,
    duration_s: float | None = None,
    every_s: float = EVERY_S,
    pause: bool = False,
    on_progress: OnGrowth | None = None,
) -> Growth:
    """Observe process `pid` and its descendants while they work, and return whether one grows.

    Of several processes with onnxruntime, that with the most growth is judged. The observation ends
    after `duration_s`, with the process, or at Ctrl-C.

    Args:
        pid: a process of this user, in any language.
        duration_s: the length of the observation in seconds; None for no limit.
        every_s: the seconds between two readings of the memory, at the start.
        pause: stop the process for some tenths of a second while it is read (SIGSTOP). The heap of
            a busy process can only be read so.
        on_progress: called after each reading.

    Raises:
        UsageError: `pid` is this process or process 1, or a time is out of bounds.
        XrayError: there is no such process, or it cannot be read.
    """
    histories = _Histories(every_s, on_progress, pauses=pause)
    run = watch(pid, duration_s=duration_s, on_progress=histories.update)
    return histories.growth(run, f"process {pid}", "process")


def leak_program(
    command: Sequence[str],
    *,
    every_s: float = EVERY_S,
    on_progress: OnGrowth | None = None,
) -> ProgramGrowth:
    """Run the program `command` with its own traffic, and return whether a process of it grows.

    The memory of a process is read between two runs: the thread that called the last one waits for
    some tenths of a second.

    Args:
        command: the program and its arguments.
        every_s: the seconds between two readings of the memory, at the start.
        on_progress: called after each reading.

    Raises:
        UsageError: `command` is empty, or the program cannot be started.
        XrayError: no process of the program used onnxruntime.
    """
    histories = _Histories(every_s, on_progress)
    run = run_program(command, xray=False, between_runs=BetweenRuns(every_s, histories.read))
    growth = histories.growth(run, " ".join(command), "program")
    return ProgramGrowth(growth, run.exit_code or 0)


class _Histories:
    """The histories of the processes of a recording that use onnxruntime."""

    def __init__(
        self, every_s: float, on_progress: OnGrowth | None, *, pauses: bool = False
    ) -> None:
        if not every_s > 0:
            raise UsageError(f"--every must be greater than 0, not {every_s:g}.")
        self._every_s = every_s
        self._on_progress = on_progress
        self._pauses = pauses
        self._histories: dict[int, ProcessHistory] = {}
        self._processes: dict[int, RecordedProcess] = {}

    def update(self, recorder: Recorder) -> None:
        """Read the processes of a recording that use onnxruntime, if their next moment is due."""
        for process in recorder.processes:
            if process.ended_s is None and process.runtime_version is not None:
                self.read(process, recorder.now_s(), 0)

    def read(self, process: RecordedProcess, now_s: float, runs: int) -> None:
        """Read `process` if its next moment is due."""
        history = self._histories.setdefault(
            process.pid, ProcessHistory(process.pid, self._every_s, pauses=self._pauses)
        )
        self._processes[process.pid] = process
        sessions = None if process.unrecorded else len(process.live_sessions)
        count = len(history.moments)
        history.update(now_s, runs=runs, sessions=sessions)
        if self._on_progress is not None and len(history.moments) != count:
            self._on_progress(runs, 0, history.moments[-1].moment.resident_bytes)

    def growth(self, run: ProgramRun, subject: str, kind: Literal["program", "process"]) -> Growth:
        """Return the growth of the process that grew most.

        Raises:
            XrayError: no process with onnxruntime could be read.
        """
        judged = [
            _judged(history, self._processes[pid], subject, kind)
            for pid, history in self._histories.items()
            if history.moments
        ]
        if not judged:
            reasons = [each.failure for each in self._histories.values() if each.failure]
            reason = reasons[0] if reasons else "no process with onnxruntime was seen."
            raise XrayError(f"{subject}: {reason}")
        judged.sort(key=lambda growth: (growth.verdict in BAD_VERDICTS, growth.grown_bytes))
        *others, growth = judged
        notes = [*growth.notes, *run.notes]
        notes += [f"{other.subject}: {other.sentence}" for other in others[:MAX_OTHERS]]
        return msgspec.structs.replace(growth, subject=subject, notes=tuple(notes))


def _kept(values: Mapping[str, tuple[int, int]]) -> str:
    """Return which values of earlier runs the program keeps; empty if it keeps hardly any."""
    for kind in ("output", "input"):
        alive, watched = values.get(kind, (0, 0))
        if watched >= MIN_RUNS and alive >= MIN_KEPT_SHARE * watched:
            return f"{kind}s that the program keeps"
    return ""


def _judged(
    history: ProcessHistory,
    process: RecordedProcess,
    subject: str,
    kind: Literal["program", "process"],
) -> Growth:
    """Return the growth of one process."""
    memory = history.moments
    moments = tuple(each.moment for each in memory)
    warm_up = max(1, round(WARM_UP_SHARE * len(moments)))
    unit: Unit = "run" if moments[-1].run - moments[0].run >= MIN_RUNS else "second"
    blocks: tuple[GrowingBlocks, ...] = ()
    lasting: int | None = None
    if len(memory) > warm_up:
        before, after = memory[warm_up], memory[-1]
        blocks = growing_sizes(before, after)
        lasting = lasting_bytes(before, after, CALLING_THREADS)
    kept = _kept(process.kept_values)
    observation = Observation(
        moments=moments,
        unit=unit,
        warm_up=warm_up,
        blocks=blocks,
        lasting_bytes=lasting,
        caller_keeps_nothing=False,
        caller_keeps=kept != "",
    )
    judgement = judge(observation)
    if kept and blocks and judgement.verdict == "kept":
        blocks = (msgspec.structs.replace(blocks[0], content=kept), *blocks[1:])
    return Growth(
        subject=f"process {process.pid}",
        kind=kind,
        verdict=judgement.verdict,
        sentence=sentence(judgement, moments, blocks, unit),
        remedy=remedy(judgement, None),
        owner=judgement.owner,
        slope=judgement.slope,
        grown_bytes=grown_bytes(moments),
        trim_returned_bytes=None,
        runs=moments[-1].run,
        warm_up_runs=moments[warm_up].run if len(moments) > warm_up else 0,
        warm_up_s=moments[warm_up].time_s if len(moments) > warm_up else 0.0,
        unit=unit,
        varied=(),
        threads=1,
        dimensions={},
        blocks=blocks,
        moments=moments,
        samples=(),
        notes=_notes(moments),
        onnxruntime=process.runtime_version,
        message="" if len(observation.judged) >= MIN_JUDGED else SHORT,
    )


def _new_largest(shapes: Sequence[_Shape], choice: Sequence[int], runs: int) -> frozenset[int]:
    """Return the numbers of the runs in which a dimension was larger than in all runs before."""
    largest: dict[str, int] = {}
    found = set()
    for run in range(1, runs + 1):
        sizes = shapes[choice[(run - 1) % len(choice)]].sizes
        if any(size > largest.get(name, 0) for name, size in sizes.items()):
            found.add(run)
        for name, size in sizes.items():
            largest[name] = max(size, largest.get(name, 0))
    return frozenset(found)


def _thinned(samples: Sequence[RunSample]) -> tuple[RunSample, ...]:
    """Return at most `MAX_SAMPLES` of the samples, the last one included."""
    step = -(-len(samples) // MAX_SAMPLES) or 1
    return tuple(samples[len(samples) - 1 :: -step][::-1])


def _notes(moments: Sequence[Moment]) -> tuple[str, ...]:
    unread = sum(moment.heap_bytes is None for moment in moments)
    if not unread:
        return ()
    return (
        f"blocks in use could not be counted at {unread} of {len(moments)} moments: the process was"
        " busy (see --pause), or its allocator is not glibc's",
    )

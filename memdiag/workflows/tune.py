"""Find the options with which a model fits a budget and loses the least time."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import msgspec

from memdiag.errors import MeasurementError, UsageError
from memdiag.graph.graphs import Graphs
from memdiag.graph.reader import ModelFile, open_model
from memdiag.measurement.job import Job
from memdiag.measurement.rehearsal import rehearse
from memdiag.prediction.reductions import largest_reduction
from memdiag.prediction.runtime import Runtime
from memdiag.records.fix import FIX_SCHEMA, Figures, Fix, Point
from memdiag.remedies.option import Option
from memdiag.remedies.options import options
from memdiag.units import MIB
from memdiag.verification.bench import Bench, Verdict
from memdiag.verification.outputs import Bound
from memdiag.workflows.fix import fix
from memdiag.workflows.inputs import Given, read_given
from memdiag.workflows.snippet import saving, snippet
from memdiag.workflows.trials import SIZES, trials

DEFAULT_MAX_SLOWDOWN = 1.05
BUDGETS = ("peak", "steady", "anonymous")
_LEAST_SAVING = 1 << 20
_LEAST_SHARE = 0.02
_PAIRS = 15
_SESSIONS_A_POINT = 2
"""One to run in turn with the defaults, one whose memory is measured."""

OnProgress = Callable[[str], None]


def tune(
    model: str | Path,
    *,
    budget: Mapping[str, int] | None = None,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    rewrite: bool = False,
    output: str | Path | None = None,
    dims: Mapping[str, int] | None = None,
    inputs: Given | None = None,
    sizes: Sequence[int] = SIZES,
    on_progress: OnProgress | None = None,
) -> Fix:
    """Return the options that make `model` fit `budget` with the least latency.

    Every option is tried alone; those that save memory are then combined, the most saving first;
    to the best combination each other option is added in turn, for some help only together.
    Each point is verified like a fix: outputs, latency in turn with the defaults, memory in fresh
    processes. Ctrl-C ends the search with the best so far.

    Args:
        model: the ONNX file.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``; where it is None
            the least memory is looked for.
        max_slowdown: the largest ratio of latencies that options may cost.
        rewrite: fix the model first (see `memdiag.fix`), and tune the result.
        output: where the fixed model goes, as in `memdiag.fix`.
        dims: sizes of free dimensions by name.
        inputs: arrays, or paths of ``.npy`` files, by input name; the rest is made up.
        sizes: of free dimensions, with which latency is compared.
        on_progress: called with a few words about what is being done.

    Raises:
        ModelError: the file is missing, is no ONNX model, or lacks its external data.
        UsageError: an argument does not fit.
        MeasurementError: the model does not run here.
    """
    started = time.perf_counter()
    say = on_progress or _silent
    wanted = dict(budget or {})
    unknown = sorted(wanted.keys() - {*BUDGETS})
    if unknown:
        raise UsageError(f"there is no budget {unknown[0]!r}; give one of {', '.join(BUDGETS)}.")
    fixed: Fix | None = None
    path = Path(model)
    if rewrite:
        fixed = fix(
            path,
            output,
            max_slowdown=max_slowdown,
            dims=dims,
            inputs=inputs,
            sizes=sizes,
            on_progress=say,
        )
        path = Path(fixed.output) if fixed.output is not None else path
    given = read_given(inputs or {})
    with open_model(path) as file, ExitStack() as exits:
        scratch = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="memdiag-")))
        say("finding inputs that the model runs with")
        job = Job(model=path, runs=None)
        sets = trials(file, job, scratch / "inputs", dims=dims or {}, given=given, sizes=sizes)
        if not sets:
            raise MeasurementError(f"{path}: it does not run here with any inputs; give --input.")
        say("measuring the defaults")
        disk_bytes = sum(each.stat().st_size for each in file.files)
        bench = exits.enter_context(Bench(job, sets, scratch, disk_bytes))
        search = _Search(file, bench, scratch, disk_bytes, wanted, max_slowdown, say)
        search.run()
        return search.result(fixed, round(time.perf_counter() - started, 6))


@dataclass
class _Search:
    """The points that were measured so far, and which of them is to be chosen."""

    file: ModelFile
    bench: Bench
    scratch: Path
    disk_bytes: int
    budget: Mapping[str, int]
    max_slowdown: float
    say: OnProgress
    points: list[Point] = field(default_factory=list)
    interrupted: bool = False
    sessions: int = 4  # the defaults: one that runs in turn, three whose memory is measured

    def run(self) -> None:
        """Measure the defaults, each option alone, then combinations of those that helped."""
        runtime = Runtime.parse(self.bench.onnxruntime)
        self.points.append(self._point((), self.bench.job, None))
        usable = [one for one in options() if one.applies(runtime) and not one.changes_values]
        try:
            alone = {one.name: self._measure((one,)) for one in usable}
            for combined in self._combinations(usable, alone):
                self._measure(combined)
            self._grow(usable)
        except KeyboardInterrupt:
            self.interrupted = True

    def result(self, fixed: Fix | None, duration_s: float) -> Fix:
        """Return the record, the chosen point's settings in it."""
        points = tuple(_fronted(self.points))
        chosen = self._choice(points)
        notes = list(fixed.notes) if fixed else []
        if self.interrupted:
            notes.append("the search was interrupted: the best so far")
        if self.budget and not chosen.fits:
            notes.append("no point fits the budget; this is the one that comes nearest")
        if chosen.run_options:
            notes.append("the run options are part of it: pass them to every run")
        before = fixed.before if fixed and fixed.before else self.points[0].figures
        return Fix(
            schema=FIX_SCHEMA,
            model=fixed.model if fixed else _text(self.file.path),
            onnxruntime=self.bench.onnxruntime,
            output=fixed.output if fixed else None,
            output_files=fixed.output_files if fixed else (),
            session_options=chosen.session_options,
            environment=chosen.environment,
            remedies=fixed.remedies if fixed else (),
            before=before,
            after=chosen.figures,
            latencies=fixed.latencies if fixed else (),
            largest_difference=fixed.largest_difference if fixed else None,
            bound=self._bound().relative,
            bound_reason=self._bound().why,
            verified=True,
            notes=tuple(notes),
            duration_s=duration_s,
            points=points,
            chosen=chosen.options,
            snippet=snippet(_text(self.file.path), chosen),
            session_count=self.sessions,
        )

    def _measure(self, chosen: Sequence[Option]) -> Point:
        names = tuple(one.name for one in chosen)
        known = next((one for one in self.points if {*one.options} == {*names}), None)
        if known is not None:
            return known
        self.say(f"trying {' + '.join(names)} ({len(self.points)} points so far)")
        job = self.bench.job
        for one in chosen:
            job = one.added_to(job)
        saved = {name: text for one in chosen for name, text in one.saved.items()}
        model = job.model
        if saved:
            self.sessions += 1
            model = self._saved(job, saved)
        self.sessions += _SESSIONS_A_POINT
        verdict = self.bench.judge(
            replace(job, model=model),
            self._bound(),
            disk_bytes=self.disk_bytes,
            pairs=_PAIRS,
            limit=self.max_slowdown,
        )
        self.points.append(self._point(names, job, verdict, saved))
        return self.points[-1]

    def _saved(self, job: Job, entries: Mapping[str, str]) -> Path:
        """Have the runtime write its optimized model with these config entries."""
        folder = self.scratch / f"saved-{len(self.points)}"
        folder.mkdir()
        path = folder / "model.onnx"
        options = {**job.options, **entries, **saving(str(path))}
        rehearse(replace(job, options=options, runs=None), ())
        return path

    def _point(
        self,
        names: tuple[str, ...],
        job: Job,
        verdict: Verdict | None,
        saved: Mapping[str, str] | None = None,
    ) -> Point:
        figures = self.bench.before if verdict is None else verdict.figures
        slowest = max(
            (race.ratio for _, race in verdict.races) if verdict else (),
            key=lambda ratio: ratio.median,
            default=None,
        )
        problem = verdict.problem if verdict else None
        within = slowest is None or slowest.median <= self.max_slowdown
        return Point(
            options=names,
            session_options=dict(job.options),
            environment=dict(job.environment),
            run_options=dict(job.run_options),
            disabled_optimizers=tuple(job.disabled_optimizers),
            shared_arena=job.shared_arena,
            saved_options=dict(saved or {}),
            figures=figures,
            ratio=slowest.median if slowest else 1.0 if verdict is None else None,
            low=slowest.low if slowest else None,
            high=slowest.high if slowest else None,
            on_front=False,
            fits=problem is None and figures is not None and within and self._fits(figures),
            problem=problem or "",
        )

    def _combinations(
        self, usable: Sequence[Option], alone: Mapping[str, Point]
    ) -> Iterator[tuple[Option, ...]]:
        """Yield the helpful options together: growing from the most saving, then without each."""
        helpful = [one for one in usable if self._helps(alone[one.name])]
        helpful.sort(key=lambda one: _cost(alone[one.name]))
        for limit in (self.max_slowdown, float("inf")):
            chosen: list[Option] = []
            for one in helpful:
                ratio = alone[one.name].ratio or 1.0
                if ratio > limit or any(one.name in each.excludes for each in chosen):
                    continue
                if any(each.name in one.excludes for each in chosen):
                    continue
                chosen.append(one)
                if len(chosen) > 1:
                    yield tuple(chosen)
            if len(chosen) > 2:
                for left in chosen:
                    yield tuple(one for one in chosen if one is not left)

    def _grow(self, usable: Sequence[Option]) -> None:
        """Add to the point with the least memory each option that it lacks, and keep what helps."""
        by_name = {one.name: one for one in usable}
        known = [one for one in self.points if one.figures is not None and not one.problem]
        within = [one for one in known if (one.ratio or 1.0) <= self.max_slowdown]
        best = min(within, key=lambda one: (_cost(one), len(one.options)))
        for one in usable:
            chosen = [by_name[name] for name in best.options]
            barred = {name for each in chosen for name in each.excludes}
            if one in chosen or one.name in barred or {*one.excludes} & {*best.options}:
                continue
            point = self._measure((*chosen, one))
            if point.problem or point.figures is None or (point.ratio or 1.0) > self.max_slowdown:
                continue
            if _cost(best) - _cost(point) > max(_LEAST_SAVING, _LEAST_SHARE * _cost(best)):
                best = point

    def _helps(self, point: Point) -> bool:
        base = self.points[0].figures
        if point.figures is None or base is None or point.problem:
            return False
        least = max(_LEAST_SAVING, round(_LEAST_SHARE * base.peak_bytes))
        return (
            base.peak_bytes - point.figures.peak_bytes > least
            or base.steady_bytes - point.figures.steady_bytes > least
        )

    def _fits(self, figures: Figures) -> bool:
        sizes = {
            "peak": figures.peak_bytes,
            "steady": figures.steady_bytes,
            "anonymous": figures.anonymous_bytes,
        }
        return all(sizes[name] <= limit for name, limit in self.budget.items())

    def _choice(self, points: Sequence[Point]) -> Point:
        """Return the point to take: of those that fit, the fastest or, without a budget, least."""
        usable = [one for one in points if one.figures is not None and not one.problem]
        fitting = [one for one in usable if one.fits]
        if self.budget:
            if fitting:
                return min(fitting, key=lambda one: (_merits(one)[2], len(one.options)))
            return min(usable, key=self._excess)
        # Sizes in whole MiB: an option that saves less is not worth having.
        return min(fitting, key=lambda one: (sum(_merits(one)[:2]), len(one.options)))

    def _excess(self, point: Point) -> int:
        assert point.figures is not None
        sizes = {
            "peak": point.figures.peak_bytes,
            "steady": point.figures.steady_bytes,
            "anonymous": point.figures.anonymous_bytes,
        }
        return sum(max(0, sizes[name] - limit) for name, limit in self.budget.items())

    def _bound(self) -> Bound:
        return Bound.reordered(largest_reduction(self.file, Graphs(self.file)))


def _fronted(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the points, those marked that no other one is at least as good as in everything."""
    usable = [one for one in points if one.figures is not None and not one.problem]
    for point in points:
        beaten = any(_dominates(other, point) for other in usable if other is not point)
        yield msgspec.structs.replace(point, on_front=point in usable and not beaten)


def _dominates(one: Point, other: Point) -> bool:
    """Return whether `one` is as good in everything and better in something, beyond doubt."""
    pairs = list(zip(_merits(one), _merits(other), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _merits(point: Point) -> tuple[float, float, float]:
    """Return peak and steady memory in whole MiB, and the ratio: 1 where it may as well be 1."""
    if point.figures is None:
        return inf, inf, inf
    sizes = (point.figures.peak_bytes / MIB, point.figures.steady_bytes / MIB)
    undecided = point.low is None or point.high is None or point.low <= 1 <= point.high
    return round(sizes[0]), round(sizes[1]), 1.0 if undecided else point.ratio or 1.0


def _cost(point: Point) -> int:
    """Return what a point takes, peak and steady state alike."""
    assert point.figures is not None
    return point.figures.peak_bytes + point.figures.steady_bytes


def _text(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()


def _silent(words: str) -> None:
    """Say nothing."""

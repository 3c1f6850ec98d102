"""End a model's waste: build each remedy, verify and measure it, and keep the best combination."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from memdiag.errors import MemdiagError, UsageError
from memdiag.graph.graphs import Graphs
from memdiag.graph.reader import ModelFile, open_model
from memdiag.measurement.job import Job
from memdiag.prediction.reductions import largest_reduction
from memdiag.prediction.runtime import Runtime
from memdiag.records.finding import Finding
from memdiag.records.fix import FIX_SCHEMA, Figures, Fix, LatencyAt, Remedy, RemedyStatus
from memdiag.remedies.draft import Draft, Storage
from memdiag.remedies.rewrite import Rewriter
from memdiag.remedies.rewrites import rewriters_for
from memdiag.remedies.saving import (
    IN_PLACE_ALIGNMENT,
    LARGEST_EMBEDDED,
    can_stay,
    save,
    weight_bytes,
)
from memdiag.verification.bench import Bench, Verdict
from memdiag.verification.judgement import in_words, is_better, is_faster, saves
from memdiag.verification.outputs import Bound
from memdiag.workflows.check import Selection, examine
from memdiag.workflows.inputs import Given, read_given
from memdiag.workflows.trials import SIZES, trials

DEFAULT_MAX_SLOWDOWN = 1.05
_FINAL_TIMES = 3
_FINAL_PAIRS = 25

Change = tuple[Rewriter, tuple[Finding, ...]]
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
    on_progress: OnProgress | None = None,
) -> Fix:
    """Rewrite `model` so that it wastes less, verified, and return what was done.

    Every remedy of every finding is built, its outputs are compared with the original's, its
    memory and latency are measured in isolated processes; what saves nothing that can be measured,
    or slows the model down, is left out. The original is never changed.

    Args:
        model: the ONNX file.
        output: where the fixed model goes; ``NAME.fixed.onnx`` beside the original where None.
        only: rules (names, codes, beginnings of codes) whose remedies are tried; all where empty.
        unsafe: try remedies that change values as well.
        unverified: write remedies also where the model cannot be run here, unverified.
        dry_run: say which remedies would be tried, and do nothing.
        max_slowdown: the largest ratio of latencies that a remedy may cost.
        dims: sizes of free dimensions by name.
        inputs: arrays, or paths of ``.npy`` files, by input name; the rest is made up.
        sizes: of free dimensions, with which latency is compared.
        on_progress: called with a few words about what is being done.

    Raises:
        ModelError: the file is missing, is no ONNX model, or lacks its external data.
        UsageError: an argument does not fit, or the output cannot be where it should be.
        ReportError: the output cannot be written.
    """
    started = time.perf_counter()
    path = Path(model)
    target = Path(output) if output is not None else path.with_name(f"{path.stem}.fixed.onnx")
    if max_slowdown <= 0:
        raise UsageError("a largest slowdown of 0 and less leaves nothing; give 1 or more.")
    given = read_given(inputs or {})
    with open_model(path) as file, ExitStack() as exits:
        if target.resolve() in file.files:
            raise UsageError(f"{target}: that is the original's own file; choose another output.")
        runtime = Runtime.installed()
        findings, notes = examine(file, runtime, Selection(select=only, min_bytes=0), dims=dims)
        scratch = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="memdiag-")))
        attempt = _Attempt(
            file=file,
            target=target,
            scratch=scratch,
            unsafe=unsafe,
            max_slowdown=max_slowdown,
            say=on_progress or _silent,
        )
        groups = tuple(_groups(findings))
        if dry_run or not groups:
            attempt.foresee(groups)
        else:
            attempt.say("finding inputs that the model runs with")
            job = Job(model=path, runs=None)
            sets = trials(file, job, scratch / "inputs", dims=dims or {}, given=given, sizes=sizes)
            if sets:
                attempt.say("measuring the original")
                bench = exits.enter_context(Bench(job, sets, scratch, _disk_bytes(file.files)))
                attempt.verify(groups, bench)
            elif unverified:
                attempt.trust(groups)
            else:
                attempt.give_up(groups)
        return attempt.result(
            runtime, (*notes, *attempt.notes), round(time.perf_counter() - started, 6)
        )


@dataclass(kw_only=True)
class _Attempt:
    """One fix under way: what was accepted so far, and what became of each remedy."""

    file: ModelFile
    target: Path
    scratch: Path
    unsafe: bool
    max_slowdown: float
    say: OnProgress
    accepted: list[Change] = field(default_factory=list)
    remedies: list[Remedy] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    written: tuple[Path, ...] = ()
    before: Figures | None = None
    after: Figures | None = None
    verdict: Verdict | None = None
    bound: Bound | None = None
    count: int = 0

    def foresee(self, groups: Sequence[Change]) -> None:
        """Say of each remedy whether it would be tried."""
        for change in groups:
            applicable, reason = self._applicable(change)
            if applicable:
                self._note(change, "possible", "it would be built, verified and measured")
            else:
                self._note(change, "refused", reason)

    def give_up(self, groups: Sequence[Change]) -> None:
        """Refuse everything: the model cannot be run."""
        for change in groups:
            self._note(change, "refused", "the model does not run here (see --unverified)")

    def trust(self, groups: Sequence[Change]) -> None:
        """Apply the first remedy of each rule without measuring, and write the result."""
        done: set[str] = set()
        for rewriter, findings in groups:
            if findings[0].name in done:
                continue
            applicable, reason = self._applicable((rewriter, findings))
            if applicable:
                self.accepted.append((rewriter, applicable))
                done.add(findings[0].name)
                self._note((rewriter, applicable), "unverified", "the model could not be run")
            else:
                self._note((rewriter, findings), "refused", reason)
        if self.accepted:
            draft = self._draft(self.accepted)
            self.written = save(draft, self.target, self._storage(draft, self.target))

    def verify(self, groups: Sequence[Change], bench: Bench) -> None:
        """Try all remedies, keep the best of each rule, and write and measure the result."""
        if bench.unstable:
            names = ", ".join(sorted(bench.unstable))
            self.notes.append(f"outputs that are random are not compared: {names}")
        current = self.before = bench.before
        for rule in dict.fromkeys(findings[0].name for _, findings in groups):
            best: tuple[Change, Figures] | None = None
            for change in groups:
                if change[1][0].name == rule:
                    found = self._try(change, bench, current)
                    if found is None:
                        continue
                    if best is not None and not is_better(found[1], best[1]):
                        self._note(found[0], "rejected", _worse(found[1], best[1], best[0]))
                        continue
                    if best is not None:
                        self._note(best[0], "rejected", _worse(best[1], found[1], found[0]))
                    best = found
            if best is not None:
                self.accepted.append(best[0])
                self._note(best[0], "applied", in_words(current, best[1]))
                current = best[1]
        if self.accepted:
            self._finish(bench)

    def result(self, runtime: Runtime, notes: Sequence[str], duration_s: float) -> Fix:
        """Return the record of what was done."""
        difference = self.verdict.difference if self.verdict else None
        latencies = tuple(
            LatencyAt(
                inputs=name,
                before_s=race.before_s,
                after_s=race.after_s,
                ratio=race.ratio.median,
                low=race.ratio.low,
                high=race.ratio.high,
                pairs=race.ratio.pairs,
            )
            for name, race in (self.verdict.races if self.verdict else ())
        )
        return Fix(
            schema=FIX_SCHEMA,
            model=_text(self.file.path),
            onnxruntime=str(runtime),
            output=_text(self.written[0]) if self.written else None,
            output_files=tuple(map(_text, self.written)),
            session_options={},
            environment={},
            remedies=tuple(self.remedies),
            before=self.before,
            after=self.after,
            latencies=latencies,
            largest_difference=difference.relative if difference else None,
            bound=self.bound.relative if self.bound else None,
            bound_reason=self.bound.why if self.bound else "",
            verified=bool(self.written) and self.after is not None,
            notes=tuple(notes),
            duration_s=duration_s,
        )

    def _try(self, change: Change, bench: Bench, current: Figures) -> tuple[Change, Figures] | None:
        """Build and judge one remedy; note it and return None unless it is worth keeping."""
        applicable, reason = self._applicable(change)
        if not applicable:
            self._note(change, "refused", reason)
            return None
        change = (change[0], applicable)
        self.say(f"trying {change[0].rewrite.name}")
        self.count += 1
        candidate = self.scratch / f"candidate-{self.count}" / "model.onnx"
        changes = [*self.accepted, change]
        try:
            draft = self._draft(changes)
            files = save(draft, candidate, self._storage(draft, candidate))
            verdict = bench.judge(
                replace(bench.job, model=candidate),
                self._bound(changes),
                disk_bytes=_disk_bytes(files),
            )
        except MemdiagError as error:
            self._note(change, "rejected", f"it could not be built: {error}")
            return None
        finally:
            for left in candidate.parent.glob("*"):
                left.unlink()
        problem = verdict.problem or self._too_slow(verdict)
        figures = verdict.figures
        worthwhile = figures is not None and (saves(current, figures) or is_faster(verdict))
        if problem is None and figures is not None and not worthwhile:
            problem = f"it saves nothing that can be measured ({in_words(current, figures)})"
        if problem is not None or figures is None:
            self._note(change, "rejected", problem or "it could not be measured")
            return None
        return change, figures

    def _finish(self, bench: Bench) -> None:
        """Write the result, and measure it once more beside the original, thoroughly."""
        self.say("verifying the result")
        draft = self._draft(self.accepted)
        bound = self._bound(self.accepted)
        files = save(draft, self.target, self._storage(draft, self.target))
        disk_bytes = _disk_bytes(files)
        job = replace(bench.job, model=self.target)
        verdict = bench.judge(job, bound, disk_bytes=disk_bytes, pairs=_FINAL_PAIRS)
        problem = verdict.problem or self._too_slow(verdict)
        if problem is None:
            self.before, self.after = bench.measure_both(
                job,
                _FINAL_TIMES,
                before_bytes=_disk_bytes(self.file.files),
                after_bytes=disk_bytes,
            )
            if not saves(self.before, self.after) and not is_faster(verdict):
                problem = f"together they save nothing ({in_words(self.before, self.after)})"
        if problem is not None:
            for path in files:
                path.unlink(missing_ok=True)
            self.after = None
            self.remedies = [
                msgspec.structs.replace(one, status="rejected", reason=problem)
                if one.status == "applied"
                else one
                for one in self.remedies
            ]
            return
        self.written, self.verdict, self.bound = files, verdict, bound

    def _applicable(self, change: Change) -> tuple[tuple[Finding, ...], str]:
        """Return the findings that the rewrite can answer, or why it can answer none."""
        rewriter, findings = change
        if not rewriter.rewrite.safe and not self.unsafe:
            return (), "it changes values (see --unsafe)"
        draft = self._draft(self.accepted)
        reasons = {finding: rewriter.check(draft, finding) for finding in findings}
        possible = tuple(finding for finding, reason in reasons.items() if reason is None)
        return possible, next(filter(None, reasons.values()), "")

    def _draft(self, changes: Sequence[Change]) -> Draft:
        draft = Draft(self.file)
        for rewriter, findings in changes:
            for finding in findings:
                rewriter.apply(draft, finding)
        return draft

    def _bound(self, changes: Sequence[Change]) -> Bound:
        if all(rewriter.rewrite.arithmetic == "same" for rewriter, _ in changes):
            return Bound.exact()
        return Bound.reordered(largest_reduction(self.file, Graphs(self.file)))

    def _storage(self, draft: Draft, path: Path) -> Storage:
        """Return how weights are stored: as a rewrite wants it, or else as the original does."""
        large = weight_bytes(draft) > LARGEST_EMBEDDED
        if draft.storage is None and not self.file.external_bytes and not large:
            return "embedded"
        stays = draft.storage != "external" and can_stay(draft, path, IN_PLACE_ALIGNMENT)
        return "in_place" if stays else "external"

    def _too_slow(self, verdict: Verdict) -> str | None:
        for name, race in verdict.races:
            if race.ratio.median > self.max_slowdown:
                low, high = race.ratio.low, race.ratio.high
                return f"slower: {race.ratio.median:.2f} × ({low:.2f}–{high:.2f}) with {name}"
        return None

    def _note(self, change: Change, status: RemedyStatus, reason: str) -> None:
        rewriter, findings = change
        self.remedies.append(
            Remedy(
                name=rewriter.rewrite.name,
                rule=findings[0].name,
                status=status,
                reason=reason,
                weights=tuple(dict.fromkeys(name for one in findings for name in one.weights)),
            )
        )


def _groups(findings: Sequence[Finding]) -> Iterator[Change]:
    """Yield each rule's rewriters, those that its findings name first, with those findings."""
    for rule in dict.fromkeys(finding.name for finding in findings):
        mine = tuple(finding for finding in findings if finding.name == rule)
        named = list(dict.fromkeys(name for finding in mine for name in finding.remedies))
        answering = rewriters_for(rule)
        for one in sorted(answering, key=lambda one: _place(one.rewrite.name, named)):
            yield one, mine


def _place(name: str, named: Sequence[str]) -> int:
    return named.index(name) if name in named else len(named)


def _worse(one: Figures, other: Figures, by: Change) -> str:
    return f"{by[0].rewrite.name} is better ({in_words(one, other)})"


def _disk_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _text(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()


def _silent(words: str) -> None:
    """Say nothing."""

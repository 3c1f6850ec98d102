"""The search of a fix: every change of every rule, tried on top of the accepted changes."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf

from memdiag.errors import MeasurementError, MemdiagError, ReportError
from memdiag.fixing.candidates import Candidate, UndecidedChange, VerifiedResult, preferred
from memdiag.fixing.changes import Change
from memdiag.fixing.effort import QUICK, THOROUGH, Effort
from memdiag.fixing.model_writer import BuiltModel, SavedModel
from memdiag.fixing.state import ChangesByRule, FixState
from memdiag.records.measured_change import Figures
from memdiag.runner.job import Job, TimeLimitReached
from memdiag.units import format_duration
from memdiag.verify.acceptance import (
    exchanged_memory,
    is_worth_it,
    memory_beside,
    memory_change,
    slowness,
    takes_less,
    undecided_slowness,
)
from memdiag.verify.latency import MIN_PAIRS
from memdiag.verify.memory import reason_of
from memdiag.verify.model_evaluator import Comparisons, ModelEvaluation, ModelEvaluator
from memdiag.verify.other_runtimes import OtherRuntimes
from memdiag.verify.outputs import Bound
from memdiag.verify.step_estimate import TIME_LIMIT_MARGIN, StepEstimate

_MAX_RESERVE = 0.5
"""Maximum share of the time that is reserved for measuring the result thoroughly."""


@dataclass
class RewriteSearch:
    """Finds the best change of each rule, the costliest rule first.

    A change is tried on top of the accepted changes, and has to save something compared with the
    model that has them. Latency is compared with the original. At `end`, or at Ctrl-C, the search
    ends with the best result so far.

    Attributes:
        state: accepted changes and outcomes.
        evaluator: compares models with the original.
        other_runtimes: further releases of onnxruntime that the result has to run on.
        max_slowdown: the largest ratio of latencies.
        report_progress: called with a few words about the current step.
        end: when the search has to end, by `time.monotonic()`.
        setup_s: duration of everything before the search: inputs and figures of the original.
        for_optimize: whether `memdiag.optimize` goes on with the result and verifies it again.
            Measurements are quick then, the result is staged, and a file that cannot be written is
            no error.
        effort: how thoroughly changes and the result are measured.
    """

    state: FixState
    evaluator: ModelEvaluator
    other_runtimes: OtherRuntimes
    max_slowdown: float
    report_progress: Callable[[str], None]
    end: float = inf
    setup_s: float = 0.0
    for_optimize: bool = False
    effort: Effort = field(init=False)
    # The candidates of the current rule, the best last.
    _ranked: list[Candidate] = field(init=False, default_factory=list)
    # The candidates of each rule whose best candidate was accepted.
    _accepted: list[list[Candidate]] = field(init=False, default_factory=list)
    _names_by_digest: dict[bytes, str] = field(init=False, default_factory=dict)
    _step_estimate: StepEstimate = field(init=False)
    _exploration_end: float = field(init=False, default=inf)
    _remaining: int = field(init=False, default=0)
    _write_error: ReportError | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.effort = QUICK if self.for_optimize else THOROUGH

    def run(self, rules: ChangesByRule) -> VerifiedResult | None:
        """Try all changes; return the result, None where nothing is worth changing.

        It is published, or staged if it is for `memdiag.optimize`.

        Raises:
            ReportError: a model, or the result, could not be written.
        """
        self.state.before = self.evaluator.before
        self.state.notes += self.other_runtimes.notes
        self.state.notes += self.evaluator.notes
        self._explore(rules)
        result = None
        try:
            result = self._finished()
        except ReportError as error:
            self._write_error = error
        except KeyboardInterrupt:  # a second one, while the model was written
            if not self.for_optimize:
                raise
        self.state.notes += self._end_notes(has_result=result is not None)
        if result is None and self._write_error is not None:
            if not self.for_optimize:
                raise self._write_error
            self.state.notes.append(f"no rewritten model was written: {self._write_error}")
        return result

    def _finished(self) -> VerifiedResult | None:
        """Publish the best result after a thorough verification, or as it is at an early end."""
        try:
            try:
                if self.state.ended_by != "interrupt":
                    return self._publish_verified()
            except TimeLimitReached:
                self.state.ended_by = "time_limit"
                return self._publish_last()
        except KeyboardInterrupt:
            self.state.ended_by = "interrupt"
        return self._publish_last()

    def _explore(self, rules: ChangesByRule) -> None:
        """Try each rule's changes, accept the best, and stop at the exploration deadline."""
        self._step_estimate = StepEstimate(first_s=self._trial_s(), end=self.end)
        self._remaining = sum(map(len, rules))
        deadline = self.evaluator.job.limits.deadline
        thorough_s = self._confirming_s() + self._verification_s()
        self._exploration_end = self.end - min(thorough_s, _MAX_RESERVE * deadline.remaining_s)
        try:
            for changes in rules:
                self._try_rule(changes)
        except TimeLimitReached:
            self.state.ended_by = "time_limit"
            self.state.record_untried(rules, "the time limit ended the search before it was tried")
        except KeyboardInterrupt:
            self.state.ended_by = "interrupt"
            self.state.record_untried(rules, "the search was interrupted before it was tried")
        deadline.at = self.end

    def _try_rule(self, changes: tuple[Change, ...]) -> None:
        """Accept the best change of one rule, if any saves enough to be kept."""
        for change in changes:
            self._remaining -= 1
            found = self._try(change)
            if found is not None:
                self._rank(found)
                # From now on there is a result to verify, for which time is reserved.
                self.evaluator.job.limits.deadline.at = self._exploration_end
        self._accept(self._ranked)

    def _try(self, change: Change) -> Candidate | None:
        """Build and evaluate a change; record the reason if it is not kept."""
        found = self.state.possible(change)
        if found is None:
            return None
        change, editor = found
        self.report_progress(f"trying {change.name} ({self._step_estimate.step(self._remaining)})")
        try:
            with self.state.writer.built(editor) as built:
                outcome = self._evaluate(change, built)
        except MemdiagError as error:
            outcome = self._failure(error)
        if isinstance(outcome, Candidate):
            return outcome
        self._dismiss(change, outcome)
        return None

    def _evaluate(self, change: Change, built: BuiltModel) -> Candidate | str | UndecidedChange:
        """Return the change as a candidate, or why it is not kept.

        The cheapest checks come first; memory is measured once.
        """
        if built.digest in self._names_by_digest:
            return f"it gives the same model as {self._names_by_digest[built.digest]} alone"
        self._names_by_digest[built.digest] = change.name
        problem = self.state.invalidity(built)
        if problem is not None:
            return problem
        bound = self.state.bound([*self.state.accepted, change])
        job = self._job(built)
        before = self.evaluator.before if self._last is None else self._last.after
        after = self.evaluator.measure(job, 1, disk_bytes=built.disk_bytes)
        evaluation = self._compared(job, bound, takes_less(before, after))
        if evaluation.problem is not None:
            return f"{evaluation.problem}; {memory_change(before, after)}"
        if not is_worth_it(before, after, evaluation.comparisons, self._comparisons()):
            return _saves_nothing(before, after)
        if slower := self._slowness(evaluation.comparisons):
            return slower
        if doubt := self._undecided_slowness(evaluation.comparisons):
            return UndecidedChange(f"{memory_change(before, after)}; {doubt}")
        return Candidate(
            change=change,
            before=before,
            after=after,
            evaluation=evaluation,
            is_valid=self.state.is_valid,
            digest=built.digest,
            kept_count=len(built.kept),
            file_count=len(built.written) + len(built.kept),
        )

    def _compared(self, job: Job, bound: Bound, is_saving: bool) -> ModelEvaluation:
        """Compare outputs and latency with the original, with few runs where no memory is saved."""
        return self.evaluator.evaluate(
            job,
            bound,
            pairs=self.effort.pairs if is_saving else min(MIN_PAIRS, self.effort.pairs),
            limit=self.max_slowdown if is_saving else None,
            is_quick=self.effort.is_quick,
        )

    def _slowness(self, comparisons: Comparisons) -> str | None:
        return slowness(comparisons, self.effort.doubt * self.max_slowdown)

    def _undecided_slowness(self, comparisons: Comparisons) -> str | None:
        if self.effort.is_quick:
            return None
        return undecided_slowness(comparisons, self.max_slowdown)

    def _rank(self, found: Candidate) -> None:
        """Insert a candidate into the current rule's, in the order of preference."""
        ranked = self._ranked
        position = len(ranked)
        while position and self._preferred(ranked[position - 1], found)[0] is not found:
            position -= 1
        ranked.insert(position, found)
        self._record_beaten(ranked)

    def _record_beaten(self, ranked: Sequence[Candidate]) -> None:
        """Record for each candidate except the last, the best one, why the best is preferred."""
        best = ranked[-1]
        for candidate in ranked[:-1]:
            better, why = self._preferred(best, candidate)
            if better is not best:  # the best beat another one that beat it
                why = "is kept instead"
            reason = f"{best.change.name} {why} ({memory_beside(best.after, candidate.after)})"
            self.state.record(candidate.change, "rejected", reason)

    def _preferred(self, first: Candidate, second: Candidate) -> tuple[Candidate, str]:
        return preferred(first, second, least_share=self.effort.least_share)

    def _accept(self, ranked: list[Candidate]) -> None:
        """Accept the best candidate that a thorough measurement confirms, and clear `ranked`."""
        while ranked:
            self._record_beaten(ranked)
            best = self._confirmed(ranked[-1])
            if isinstance(best, Candidate):
                self._accepted.append([*ranked[:-1], best])
                ranked.clear()
                self.state.accepted.append(best.change)
                self.state.record(best.change, "applied", memory_change(best.before, best.after))
                return
            self.state.record(ranked.pop().change, "rejected", best)

    def _confirmed(self, found: Candidate) -> Candidate | str:
        """Return a candidate with thorough figures, or the reason to reject it.

        Both the model and the model with only the accepted changes are measured, alternately.
        """
        if self.effort.is_quick:
            return replace(found, is_confirmed=True)
        about = format_duration(self._confirming_s())
        self.report_progress(f"measuring {found.change.name} again (about {about})")
        writer, accepted = self.state.writer, self.state.accepted
        changes = [*accepted, found.change]
        before, disk_bytes = self.evaluator.job, self.evaluator.before.disk_bytes
        known = self.evaluator.before if self._last is None else self._last.after
        try:
            with ExitStack() as exits:
                if accepted:
                    base = exits.enter_context(writer.built(writer.editor(accepted)))
                    before, disk_bytes = self._job(base), base.disk_bytes
                built = exits.enter_context(writer.built(writer.editor(changes)))
                figures, after = self.evaluator.measure_both(
                    self._job(built),
                    self.effort.processes,
                    before_bytes=disk_bytes,
                    after_bytes=built.disk_bytes,
                    before=before,
                    known=known,
                )
                if not is_worth_it(figures, after, found.comparisons, self._comparisons()):
                    return _saves_nothing(figures, after)
                problem = self.other_runtimes.problem(self._job(built), self.state.bound(changes))
        except MemdiagError as error:
            return self._failure(error)
        return problem or replace(found, before=figures, after=after, is_confirmed=True)

    def _publish_verified(self) -> VerifiedResult | None:
        """Publish the best result that a thorough verification confirms."""
        self._accept(self._ranked)
        while self._accepted:
            result = self._finish()
            if result is not None:
                return result
        return None

    def _finish(self) -> VerifiedResult | None:
        """Verify the result thoroughly, and publish it if it is confirmed.

        Otherwise the next best change of the last rule replaces the accepted change.
        """
        about = format_duration(self._verification_s())
        self.report_progress(f"verifying the result (about {about})")
        ranked = self._accepted[-1]
        writer = self.state.writer
        with writer.built(writer.editor(self.state.accepted)) as built:
            try:
                result = self._verify(built, ranked[-1])
            except MeasurementError as error:
                result = self._failure(error)
        if isinstance(result, VerifiedResult):
            return result
        del self._accepted[-1]
        self.state.accepted.pop()
        self._dismiss(ranked.pop().change, result)
        self._accept(ranked)
        return None

    def _verify(self, built: BuiltModel, last: Candidate) -> VerifiedResult | str | UndecidedChange:
        """Compare the result with the original and publish it; or return why it is rejected."""
        problem = self.state.invalidity(built)
        if problem is not None:
            return problem
        bound = self.state.bound(self.state.accepted)
        job = self._job(built)
        is_same = len(self.state.accepted) == 1 and built.digest == last.digest
        if self.effort.is_quick and is_same:
            evaluation = last.evaluation
        else:
            if not self.effort.is_quick:
                self.evaluator.renew_original()
            evaluation = self.evaluator.evaluate(
                job,
                bound,
                pairs=self.effort.final_pairs,
                limit=self.max_slowdown,
                is_quick=self.effort.is_quick,
            )
        problem = (
            evaluation.problem
            or self._slowness(evaluation.comparisons)
            or self.other_runtimes.problem(job, bound)
        )
        if problem is not None:
            return problem
        before, after = last.before, last.after
        # A single change was measured thoroughly already, if the model is the same.
        if not is_same:
            before, after = self.evaluator.measure_both(
                job,
                self.effort.processes,
                before_bytes=self.evaluator.before.disk_bytes,
                after_bytes=built.disk_bytes,
            )
        if not is_worth_it(before, after, evaluation.comparisons, ()):
            return f"together they save nothing ({memory_change(before, after)})"
        if doubt := self._undecided_slowness(evaluation.comparisons):
            return UndecidedChange(f"{memory_change(before, after)}; {doubt}")
        self.state.explain_invalidity()
        return VerifiedResult(
            output=self._published(built),
            evaluation=evaluation,
            bound=bound,
            before=before,
            after=after,
            verified_on=(self.evaluator.onnxruntime, *self.other_runtimes.versions),
        )

    def _publish_last(self) -> VerifiedResult | None:
        """Publish the best model so far; None where there is none.

        Its outputs, latency and (once) memory were compared with the original's when its last
        change was tried.
        """
        if self._ranked:
            best = self._ranked[-1]
            self._accepted.append(self._ranked)
            self.state.accepted.append(best.change)
            self.state.record(best.change, "applied", memory_change(best.before, best.after))
            self._ranked = []
        last = self._last
        if last is None:
            return None
        self.report_progress("writing the best model so far")
        writer = self.state.writer
        with writer.built(writer.editor(self.state.accepted)) as built:
            self.state.is_valid = last.is_valid
            return VerifiedResult(
                output=self._published(built),
                evaluation=last.evaluation,
                bound=self.state.bound(self.state.accepted),
                before=self.evaluator.before,
                after=last.after,
                verified_on=(
                    self.evaluator.onnxruntime,
                    *(self.other_runtimes.versions if last.is_confirmed else ()),
                ),
                measured_once=not last.is_confirmed,
            )

    def _published(self, built: BuiltModel) -> SavedModel:
        writer = self.state.writer
        return writer.stage(built) if self.for_optimize else writer.publish(built)

    def _dismiss(self, change: Change, why: str | UndecidedChange) -> None:
        if isinstance(why, UndecidedChange):
            self.state.record(change, "undecided", why.reason)
        else:
            self.state.record(change, "rejected", why)

    def _failure(self, error: MemdiagError) -> str:
        """Return the reason to reject a model that could not be built or run."""
        if isinstance(error, ReportError):
            self._write_error = self._write_error or error
        verb = "run" if isinstance(error, MeasurementError) else "be built"
        return f"it cannot {verb}: {reason_of(error)}"

    def _job(self, built: BuiltModel) -> Job:
        return replace(self.evaluator.job, model=built.path)

    @property
    def _last(self) -> Candidate | None:
        """The candidate that was accepted last: its model has all accepted changes."""
        return self._accepted[-1][-1] if self._accepted else None

    def _comparisons(self) -> Comparisons:
        """Return the latencies of the model with all accepted changes, relative to the original."""
        return self._last.comparisons if self._last is not None else ()

    def _end_notes(self, *, has_result: bool) -> list[str]:
        """Return notes about how the search ended."""
        what = "rewriting" if self.for_optimize else "the search"
        if self.state.ended_by == "interrupt":
            so_far = "; the result is the best so far" if has_result else ""
            return [f"{what} was interrupted{so_far}"]
        if self.state.ended_by == "completion":
            return []
        if not self.for_optimize:  # otherwise the limit is that of a longer search
            self.state.sufficient_time_limit_s = self._sufficient_time_limit_s()
        ended = f"the time limit ended {what}"
        if self.for_optimize:
            ended = "the time for rewriting was used up"
        if self._accepted:
            if any(outcome.status == "untried" for outcome in self.state.outcomes):
                return [f"{ended}; the result is the best so far"]
            return [
                "every remedy was tried; the time limit passed during the last comparison of the"
                " result"
            ]
        return [ended]

    def _sufficient_time_limit_s(self) -> float:
        """Return the expected duration of a whole fix, with a margin, from measured durations."""
        possible = [outcome for outcome in self.state.outcomes if outcome.status != "refused"]
        rules = {outcome.rule for outcome in possible}
        trials_s = len(possible) * max(self._trial_s(), self._step_estimate.step_s)
        confirming_s = len(rules) * self._confirming_s()
        whole_s = self.setup_s + trials_s + confirming_s + self._verification_s()
        return TIME_LIMIT_MARGIN * whole_s

    def _trial_s(self) -> float:
        """Return the expected duration of the trial of one change."""
        return self.evaluator.memory_s(1) + self.evaluator.comparison_s(self.effort.pairs)

    def _confirming_s(self) -> float:
        """Return the expected duration of `_confirmed`."""
        if self.effort.is_quick:
            return 0.0
        return self.evaluator.memory_s(2 * self.effort.processes)

    def _verification_s(self) -> float:
        """Return the expected duration of `_finish`."""
        renewal_s = 0.0 if self.effort.is_quick else self.evaluator.session_s
        return renewal_s + self.evaluator.comparison_s(self.effort.final_pairs)


def _saves_nothing(before: Figures, after: Figures) -> str:
    figures = memory_change(before, after)
    if exchanged := exchanged_memory(before, after):
        return f"the {exchanged[0]} falls, but the {exchanged[1]} grows ({figures})"
    return f"it saves nothing that can be measured ({figures})"

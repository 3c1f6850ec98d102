"""The search for rewrites: every change of every rule, tried on top of the accepted changes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf

from memdiag.errors import MeasurementError, MemdiagError, ReportError
from memdiag.fixing.candidates import Candidate, RewrittenModel, preferred_candidate
from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import BuiltModel
from memdiag.fixing.state import ChangesByRule, FixState
from memdiag.records.measured_change import Figures
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.runner.job import Job, TimeLimitReached
from memdiag.verify.acceptance import (
    exchanged_memory_text,
    is_worth_it,
    memory_beside,
    memory_change,
    saves_memory_or_disk,
    slowness_text,
)
from memdiag.verify.latency import CLEARLY_ABOVE, QUICK_PAIRS
from memdiag.verify.memory import job_error_reason
from memdiag.verify.model_evaluator import LatencyComparisons, ModelEvaluation, ModelEvaluator
from memdiag.verify.outputs import Bound
from memdiag.verify.step_estimate import StepEstimate

_LEAST_DECIDING_SHARE = 0.05
"""A difference of memory below this share of the peak decides nothing between two candidates: few
pairs of runs don't show which one is slower."""


@dataclass
class RewriteSearch:
    """Finds the best change of each rule, the costliest rule first.

    Changes that keep the kernels are tried together, in one model (`_try_together`): first, unless
    time is limited and another rule's change is expected to save more. After that each change is
    tried on top of the accepted changes, and has to save something compared with the model that has
    them. Latency is compared with the original, with few pairs of runs: the search for options
    continues with the result and verifies it again. At `end`, or at Ctrl-C, the search ends with
    the best result so far.

    Attributes:
        state: accepted changes and outcomes.
        evaluator: compares models with the original.
        max_slowdown: the largest ratio of latencies.
        report_progress: called with a few words about the current step.
        end: when the search has to end, by `time.monotonic()`.
    """

    state: FixState
    evaluator: ModelEvaluator
    max_slowdown: float
    report_progress: Callable[[str], None]
    end: float = inf
    # The candidates of the current rule, the best last.
    _ranked: list[Candidate] = field(init=False, default_factory=list)
    # The accepted candidates: the model of the last has all accepted changes.
    _accepted: list[Candidate] = field(init=False, default_factory=list)
    _names_by_digest: dict[bytes, str] = field(init=False, default_factory=dict)
    _step_estimate: StepEstimate = field(init=False)
    # The longest duration of building a model so far.
    _build_s: float = field(init=False, default=0.0)
    _remaining: int = field(init=False, default=0)
    _write_error: ReportError | None = field(init=False, default=None)

    def run(self, rules: ChangesByRule) -> RewrittenModel | None:
        """Try all changes; return the staged result, or None if nothing is worth changing."""
        self._try_all_changes(rules)
        result = None
        try:
            result = self._staged_result()
        except ReportError as error:
            self._write_error = error
        except KeyboardInterrupt:  # while the model was written
            self.state.ended_by = "interrupt"
        if self.state.ended_by == "interrupt":
            self.state.notes.append("rewriting was interrupted")
        elif self.state.ended_by == "time_limit":
            self.state.notes.append("the time for rewriting was used up")
        if result is None and self._write_error is not None:
            self.state.notes.append(f"no rewritten model was written: {self._write_error}")
        return result

    def _try_all_changes(self, rules: ChangesByRule) -> None:
        """Try the changes that keep the kernels together, then each rule's; accept the best."""
        trial_s = self.evaluator.memory_s(1) + self.evaluator.comparison_s(QUICK_PAIRS)
        self._step_estimate = StepEstimate(first_s=trial_s, end=self.end)
        self._remaining = sum(map(len, rules))
        remaining_rules = [*rules]
        try:
            if (
                self.end < inf
                and (most_promising := _most_promising_changes(remaining_rules)) is not None
            ):
                remaining_rules.remove(most_promising)
                self._try_rule(most_promising)
            self._try_together(remaining_rules)
            for changes in remaining_rules:
                self._try_rule(changes)
        except TimeLimitReached:
            self.state.ended_by = "time_limit"
        except KeyboardInterrupt:
            self.state.ended_by = "interrupt"
        self._accept_best()
        if self.state.ended_by == "time_limit":
            self.state.record_untried(rules, "the time limit ended the search before it was tried")
        elif self.state.ended_by == "interrupt":
            self.state.record_untried(rules, "the search was interrupted before it was tried")

    def _try_together(self, rules: ChangesByRule) -> None:
        """Accept all changes at once that keep the kernels and have no alternative.

        One measurement and one comparison then verify all of them, instead of one for each. If they
        are not worth it together, nothing is recorded, and each is tried alone.
        """
        changes = _kernel_keeping_changes(rules)
        accepted: list[Change] = []
        editor = None
        if len(changes) > 1:
            self._check_time()
        for change in changes:
            candidate = self.state.possible(change, on_top_of=accepted)
            if candidate is not None:
                change, editor = candidate
                accepted.append(change)
        if editor is None or len(accepted) < 2:
            return
        names = " + ".join(dict.fromkeys(change.name for change in accepted))
        self.report_progress(f"trying {names} ({self._step_estimate.step(self._remaining)})")
        try:
            with self._timed_build(editor) as built:
                outcome = self._evaluate_changes(tuple(accepted), built)
        except MemdiagError:
            return
        if isinstance(outcome, Candidate):
            self._ranked = [outcome]
            self._accept_best()

    def _try_rule(self, changes: tuple[Change, ...]) -> None:
        """Accept the best change of one rule, if any saves enough to be kept."""
        for change in changes:
            self._remaining -= 1
            candidate = self._try_change(change)
            if candidate is not None:
                self._rank_candidate(candidate)
        self._accept_best()

    def _try_change(self, change: Change) -> Candidate | None:
        """Build and evaluate a change; record the reason if it is not kept."""
        if self.state.is_accepted(change):
            return None
        self._check_time()
        candidate = self.state.possible(change)
        if candidate is None:
            return None
        change, editor = candidate
        self.report_progress(f"trying {change.name} ({self._step_estimate.step(self._remaining)})")
        try:
            with self._timed_build(editor) as built:
                outcome = self._evaluate_changes((change,), built)
        except MemdiagError as error:
            outcome = self._rejection_reason(error)
        if isinstance(outcome, Candidate):
            return outcome
        self.state.record(change, "rejected", outcome)
        return None

    def _check_time(self) -> None:
        """Check that the time left suffices for a trial: building a model cannot be interrupted.

        Raises:
            TimeLimitReached: it is too short.
        """
        trial_s = self._build_s + self.evaluator.memory_s(1)
        if self._accepted:  # otherwise there is nothing to lose, and measuring can be interrupted
            trial_s += self.evaluator.quickest_s
        if trial_s > self.state.deadline.remaining_s:
            raise TimeLimitReached

    @contextmanager
    def _timed_build(self, editor: ModelEditor) -> Iterator[BuiltModel]:
        """Build a model, and remember how long that takes."""
        started = time.monotonic()
        with self.state.writer.built(editor) as built:
            self._build_s = max(self._build_s, time.monotonic() - started)
            yield built

    def _evaluate_changes(self, changes: tuple[Change, ...], built: BuiltModel) -> Candidate | str:
        """Return the model with `changes` as a candidate, or the reason why it is not kept.

        The cheapest checks come first; memory is measured once.
        """
        if built.digest in self._names_by_digest:
            return f"it gives the same model as {self._names_by_digest[built.digest]} alone"
        if len(changes) == 1:
            self._names_by_digest[built.digest] = changes[0].name
        problem = self.state.invalidity(built)
        if problem is not None:
            return problem
        all_changes = [*self.state.accepted, *changes]
        job = replace(self.evaluator.job, model=built.path)
        before = self._accepted_figures()
        after = self.evaluator.measure(job, 1, disk_bytes=built.disk_bytes)
        is_saving = saves_memory_or_disk(before, after)
        try:
            evaluation = self._quick_evaluation(job, self.state.bound(all_changes), is_saving)
        except TimeLimitReached:
            reason = f"the time limit ended its comparison ({memory_change(before, after)})"
            for change in changes if len(changes) == 1 else ():
                self.state.record(change, "untried", reason)
            raise
        if evaluation.problem is not None:
            return f"{evaluation.problem}; {memory_change(before, after)}"
        if not is_worth_it(before, after, evaluation.comparisons, self._accepted_comparisons()):
            return _nothing_saved_reason(before, after)
        slowness = self._clear_slowness_text(evaluation)
        if slowness and all(change.is_exact for change in all_changes):
            # The kernels are those of the original: only another session can confirm that.
            self.evaluator.renew_original()
            second_evaluation = self._quick_evaluation(
                job, self.state.bound(all_changes), is_saving
            )
            if second_evaluation.problem is None and not self._clear_slowness_text(
                second_evaluation
            ):
                evaluation, slowness = second_evaluation, None
        if slowness:
            return slowness
        return Candidate(
            changes=changes,
            before=before,
            after=after,
            evaluation=evaluation,
            is_valid=self.state.is_valid,
            kept_count=len(built.kept),
            file_count=len(built.written) + len(built.kept),
        )

    def _quick_evaluation(self, job: Job, bound: Bound, is_saving: bool) -> ModelEvaluation:
        """Compare outputs and latency with the original, without a limit if nothing is saved."""
        return self.evaluator.evaluate(
            job,
            bound,
            pairs=QUICK_PAIRS,
            limit=self.max_slowdown if is_saving else None,
            is_quick=True,
        )

    def _clear_slowness_text(self, evaluation: ModelEvaluation) -> str | None:
        return slowness_text(evaluation.comparisons, CLEARLY_ABOVE * self.max_slowdown)

    def _rank_candidate(self, candidate: Candidate) -> None:
        """Insert a candidate into the current rule's, in the order of preference."""
        ranked = self._ranked
        position = len(ranked)
        while position and _better_candidate(ranked[position - 1], candidate)[0] is not candidate:
            position -= 1
        ranked.insert(position, candidate)
        self._record_beaten(ranked)

    def _record_beaten(self, ranked: Sequence[Candidate]) -> None:
        """Record for each candidate except the last, the best one, why the best is preferred."""
        best = ranked[-1]
        for candidate in ranked[:-1]:
            better, preference = _better_candidate(best, candidate)
            if better is not best:  # the best lost to a candidate that it had already beaten
                preference = "is kept instead"
            reason = f"{best.name} {preference} ({memory_beside(best.after, candidate.after)})"
            for change in candidate.changes:
                self.state.record(change, "rejected", reason)

    def _accept_best(self) -> None:
        """Accept the best candidate of the current rule, if there is one."""
        if not self._ranked:
            return
        best = self._ranked[-1]
        self._ranked = []
        self._accepted.append(best)
        self.state.accepted += best.changes
        # The accepted model is built once more at the end.
        self.state.deadline.at = min(self.state.deadline.at, self.end - self._build_s)
        reason = memory_change(best.before, best.after)
        if len(best.changes) > 1:
            reason += ", all of these together"
        for change in best.changes:
            self.state.record(change, "applied", reason)

    def _staged_result(self) -> RewrittenModel | None:
        """Stage the model with all accepted changes; return None where there are none."""
        if not self._accepted:
            return None
        last = self._accepted[-1]
        writer = self.state.writer
        with writer.built(writer.editor(self.state.accepted)) as built:
            if last.is_valid is False:
                self.state.explain_invalidity()
            return RewrittenModel(
                output=writer.stage(built),
                evaluation=last.evaluation,
                figures=last.after,
                is_valid=last.is_valid,
                same_kernels=all(change.is_exact for change in self.state.accepted),
            )

    def _rejection_reason(self, error: MemdiagError) -> str:
        """Return the reason to reject a model that could not be built or run."""
        if isinstance(error, ReportError):
            self._write_error = self._write_error or error
        verb = "run" if isinstance(error, MeasurementError) else "be built"
        return f"it cannot {verb}: {job_error_reason(error)}"

    def _accepted_figures(self) -> Figures:
        """Return the memory of the model with all accepted changes."""
        return self._accepted[-1].after if self._accepted else self.evaluator.before

    def _accepted_comparisons(self) -> LatencyComparisons:
        """Return the latencies of the model with all accepted changes, relative to the original."""
        return self._accepted[-1].comparisons if self._accepted else ()


def _kernel_keeping_changes(rules: ChangesByRule) -> list[Change]:
    """Return the changes that keep the kernels and have no alternative."""
    return [changes[0] for changes in rules if len(changes) == 1 and changes[0].is_exact]


def _most_promising_changes(rules: ChangesByRule) -> tuple[Change, ...] | None:
    """Return the rule whose change is expected to save more than all changes that keep the kernels.

    None if there is none.
    """
    together_bytes = sum(change.saved_bytes for change in _kernel_keeping_changes(rules))
    best_rule = max(rules, key=lambda changes: changes[0].saved_bytes, default=None)
    return best_rule if best_rule and best_rule[0].saved_bytes > together_bytes else None


def _better_candidate(first: Candidate, second: Candidate) -> tuple[Candidate, str]:
    return preferred_candidate(first, second, least_share=_LEAST_DECIDING_SHARE)


def _nothing_saved_reason(before: Figures, after: Figures) -> str:
    figures = memory_change(before, after)
    reason = exchanged_memory_text(before, after) or "it saves nothing that can be measured"
    return f"{reason} ({figures})"

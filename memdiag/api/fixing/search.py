"""The search of a fix: every remedy of every rule tried on top of what was accepted before."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf

from memdiag.api.fixing.attempt import Attempt, Rules
from memdiag.api.fixing.candidates import Candidate, Proof, Undecided, preferred
from memdiag.api.fixing.changes import Change
from memdiag.api.fixing.files import Built
from memdiag.api.pace import Pace
from memdiag.errors import MeasurementError, MemdiagError, ReportError
from memdiag.records.fix import Figures
from memdiag.runner.job import Job, TimeLimitReached
from memdiag.units import format_duration
from memdiag.verify.bench import Bench, Verdict
from memdiag.verify.judgement import Races, in_words, is_worth_it, saves, too_slow, undecided
from memdiag.verify.latency import MIN_PAIRS
from memdiag.verify.other_runtimes import OtherRuntimes
from memdiag.verify.outputs import Bound

_TIMES = 3
_PAIRS = 16
_FINAL_PAIRS = 32
_MAX_RESERVE = 0.5
"""Share of the time at most that is kept for measuring the result thoroughly."""


INTERRUPTED = "the search was interrupted; the result is the best so far"


@dataclass
class Search:
    """Finds the best change of each rule, one rule after the other, the costliest first.

    A change is tried on top of those that were accepted before, and has to save something beside
    them: it is measured in turn with the model that has them. `max_slowdown` is beside the
    original. At `end`, by `time.monotonic()`, or at Ctrl-C the search ends with the best so far:
    `timed_out` and `interrupted` say so.
    """

    attempt: Attempt
    bench: Bench
    others: OtherRuntimes
    max_slowdown: float
    say: Callable[[str], None]
    end: float = inf
    timed_out: bool = field(init=False, default=False)
    interrupted: bool = field(init=False, default=False)
    _ranked: list[Candidate] = field(init=False, default_factory=list)
    _pace: Pace = field(init=False)
    _explore_until: float = field(init=False, default=inf)
    _left: int = field(init=False, default=0)
    _kept: list[list[Candidate]] = field(init=False, default_factory=list)
    _tried: dict[bytes, str] = field(init=False, default_factory=dict)
    _unwritable: ReportError | None = field(init=False, default=None)

    def run(self, rules: Rules) -> Proof | None:
        """Try everything; return what was published, None where nothing is worth changing.

        Raises:
            ReportError: a model that might have been, or the result, could not be written.
        """
        self.attempt.before = self.bench.before
        self.attempt.notes += self.others.notes
        if self.bench.unstable:
            names = ", ".join(sorted(self.bench.unstable))
            self.attempt.notes.append(f"outputs that are random are not compared: {names}")
        self._explore(rules)
        try:
            proof = None if self.interrupted else self._verified()
        except TimeLimitReached:
            self.timed_out = True
            proof = self._as_it_is()
        except KeyboardInterrupt:
            self.interrupted = True
        if self.interrupted:
            proof = self._as_it_is()
            if proof is None:  # there is no result that could be kept
                raise KeyboardInterrupt
        self.attempt.notes += self._ending()
        if proof is None and self._unwritable is not None:
            raise self._unwritable
        return proof

    def _explore(self, rules: Rules) -> None:
        """Try everything, as far as the time allows."""
        first_s = self.bench.estimate_s(times=1, pairs=_PAIRS)
        self._pace = Pace(first_s=first_s, end=self.end)
        self._left = sum(map(len, rules))
        deadline = self.bench.job.deadline
        thorough_s = self.bench.estimate_s(times=_TIMES, pairs=_FINAL_PAIRS)
        self._explore_until = self.end - min(thorough_s, _MAX_RESERVE * deadline.remaining_s)
        try:
            for changes in rules:
                self._keep_best(changes)
        except TimeLimitReached:
            self.timed_out = True
            self.attempt.leave(rules, "the time limit ended the search before")
        except KeyboardInterrupt:
            self.interrupted = True
            self.attempt.leave(rules, "the search was interrupted before")
        deadline.at = self.end

    def _verified(self) -> Proof | None:
        """Return the best result that stands when it is verified thoroughly, published."""
        self._accept_ranked()
        while self._kept:
            proof = self._finish()
            if proof is not None:
                return proof
        return None

    def _as_it_is(self) -> Proof | None:
        """Publish what was judged last, without looking at it again; None where there is nothing.

        The model with all that was accepted was compared with the original when its last change
        was tried: its outputs, its latency and, once, its memory.
        """
        if self._ranked:
            best = self._ranked[-1]
            self._kept.append(self._ranked)
            self.attempt.accepted.append(best.change)
            self.attempt.note(best.change, "applied", in_words(best.before, best.after))
            self._ranked = []
        last = self._last
        if last is None:
            return None
        files = self.attempt.files
        with files.built(files.draft(self.attempt.accepted)) as built:
            self.attempt.is_valid = last.is_valid
            return Proof(
                output=files.publish(built),
                verdict=last.verdict,
                bound=self.attempt.bound(self.attempt.accepted),
                before=self.bench.before,
                after=last.after,
                verified_on=(self.bench.onnxruntime,),
            )

    def _ending(self) -> list[str]:
        """Return what is to be said of how the search ended."""
        if self.interrupted:
            return [INTERRUPTED]
        if not self.timed_out:
            return []
        if self._kept:
            return ["the time limit ended the search; the result is the best so far"]
        each = format_duration(self._pace.first_s)
        return [f"the time limit ended the search; a trial of one remedy takes about {each}"]

    def _keep_best(self, changes: tuple[Change, ...]) -> None:
        """Accept the best change of one rule, if any is worth having."""
        for change in changes:
            self._left -= 1
            found = self._try(change)
            if found is not None:
                self._rank(found, self._ranked)
                # From now on there is something to verify, which takes its time.
                self.bench.job.deadline.at = self._explore_until
        self._accept_ranked()

    def _accept_ranked(self) -> None:
        self._accept(self._ranked)
        self._ranked = []

    def _rank(self, found: Candidate, ranked: list[Candidate]) -> None:
        """Put a candidate where it belongs in `ranked`, the best of which is the last."""
        place = len(ranked)
        while place and preferred(ranked[place - 1], found)[0] is not found:
            place -= 1
        ranked.insert(place, found)
        best = ranked[-1]
        for other in ranked[:-1]:
            why = preferred(best, other)[1]
            reason = f"{best.change.name} {why} ({in_words(other.after, best.after)})"
            self.attempt.note(other.change, "rejected", reason)

    def _accept(self, ranked: list[Candidate]) -> None:
        """Accept the best of `ranked` that is worth it also when it is measured thoroughly."""
        while ranked:
            best = self._confirmed(ranked[-1])
            if isinstance(best, Candidate):
                ranked[-1] = best
                self._kept.append([*ranked])
                ranked.clear()
                self.attempt.accepted.append(best.change)
                self.attempt.note(best.change, "applied", in_words(best.before, best.after))
                return
            self.attempt.note(ranked.pop().change, "rejected", best)

    def _confirmed(self, found: Candidate) -> Candidate | str:
        """Return a candidate with thorough figures, or what speaks against it.

        The model is measured in turn with the one that has only what is accepted.
        """
        files, accepted = self.attempt.files, self.attempt.accepted
        changes = [*accepted, found.change]
        before, disk_bytes = self.bench.job, self.bench.before.disk_bytes
        try:
            with ExitStack() as exits:
                if accepted:
                    standing = exits.enter_context(files.built(files.draft(accepted)))
                    before, disk_bytes = self._job(standing), standing.disk_bytes
                built = exits.enter_context(files.built(files.draft(changes)))
                figures, after = self.bench.measure_both(
                    self._job(built),
                    _TIMES,
                    before_bytes=disk_bytes,
                    after_bytes=built.disk_bytes,
                    before=before,
                )
                if not is_worth_it(figures, after, found.races, self._races()):
                    return _saves_nothing(figures, after)
                problem = self.others.problem(self._job(built), self.attempt.bound(changes))
        except MemdiagError as error:
            return self._failed(error)
        return problem or replace(found, before=figures, after=after)

    @property
    def _last(self) -> Candidate | None:
        """What was accepted last: the model has it, and all before it."""
        return self._kept[-1][-1] if self._kept else None

    def _races(self) -> Races:
        """Return how the model with what is accepted did beside the original."""
        return self._last.races if self._last is not None else ()

    def _try(self, change: Change) -> Candidate | None:
        """Build and judge a change; note why it is not worth having, if it is not."""
        found = self.attempt.possible(change)
        if found is None:
            return None
        change, draft = found
        self.say(f"trying {change.name} ({self._pace.step(self._left)})")
        try:
            with self.attempt.files.built(draft) as built:
                judged = self._judge(change, built)
        except MemdiagError as error:
            judged = self._failed(error)
        if isinstance(judged, Candidate):
            return judged
        self._dismiss(change, judged)
        return None

    def _dismiss(self, change: Change, why: str | Undecided) -> None:
        if isinstance(why, Undecided):
            self.attempt.note(change, "undecided", why.reason)
        else:
            self.attempt.note(change, "rejected", why)

    def _judge(self, change: Change, built: Built) -> Candidate | str | Undecided:
        """Return the change as a candidate, or why it is not worth having.

        What costs least to find out comes first; memory is measured once.
        """
        if built.digest in self._tried:
            return f"it gives the same model as {self._tried[built.digest]}"
        self._tried[built.digest] = change.name
        problem = self.attempt.invalidity(built)
        if problem is not None:
            return problem
        bound = self.attempt.bound([*self.attempt.accepted, change])
        job = self._job(built)
        before = self.bench.before if self._last is None else self._last.after
        after = self.bench.measure(job, 1, disk_bytes=built.disk_bytes)
        is_saving = saves(before, after)
        verdict = self._compared(job, bound, is_saving)
        if verdict.problem is not None:
            return f"{verdict.problem}; {in_words(before, after)}"
        if not is_worth_it(before, after, verdict.races, self._races()):
            return _saves_nothing(before, after)
        if slower := too_slow(verdict.races, self.max_slowdown):
            return slower
        if doubt := undecided(verdict.races, self.max_slowdown):
            return Undecided(f"{in_words(before, after)}; {doubt}")
        return Candidate(
            change=change,
            before=before,
            after=after,
            verdict=verdict,
            is_valid=self.attempt.is_valid,
            digest=built.digest,
            kept_count=len(built.kept),
            file_count=len(built.written) + len(built.kept),
        )

    def _compared(self, job: Job, bound: Bound, is_saving: bool) -> Verdict:
        """Return what is to be said of outputs and latency, briefly where no memory is saved."""
        return self.bench.judge(
            job,
            bound,
            disk_bytes=0,
            times=0,
            pairs=_PAIRS if is_saving else MIN_PAIRS,
            limit=self.max_slowdown if is_saving else None,
        )

    def _finish(self) -> Proof | None:
        """Verify the result thoroughly, beside the original; publish it if it holds.

        If it does not, the change that was accepted last gives way to the next best of its rule.
        """
        estimate_s = self.bench.estimate_s(times=_TIMES, pairs=_FINAL_PAIRS)
        self.say(f"verifying the result (about {format_duration(estimate_s)})")
        ranked = self._kept[-1]
        files = self.attempt.files
        with files.built(files.draft(self.attempt.accepted)) as built:
            try:
                proof = self._prove(built, ranked[-1])
            except MeasurementError as error:
                proof = self._failed(error)
        if isinstance(proof, Proof):
            return proof
        del self._kept[-1]
        self.attempt.accepted.pop()
        self._dismiss(ranked.pop().change, proof)
        self._accept(ranked)
        return None

    def _prove(self, built: Built, last: Candidate) -> Proof | str | Undecided:
        """Return what was found of the result, which is published, or what is wrong with it."""
        problem = self.attempt.invalidity(built)
        if problem is not None:
            return problem
        bound = self.attempt.bound(self.attempt.accepted)
        job = self._job(built)
        verdict = self.bench.judge(
            job,
            bound,
            disk_bytes=0,
            times=0,
            pairs=_FINAL_PAIRS,
            least_pairs=_FINAL_PAIRS,
            limit=self.max_slowdown,
        )
        problem = (
            verdict.problem
            or too_slow(verdict.races, self.max_slowdown)
            or self.others.problem(job, bound)
        )
        if problem is not None:
            return problem
        before, after = last.before, last.after
        # A single change was measured beside the original already, if it is the very same model.
        if len(self.attempt.accepted) > 1 or built.digest != last.digest:
            before, after = self.bench.measure_both(
                job,
                _TIMES,
                before_bytes=self.bench.before.disk_bytes,
                after_bytes=built.disk_bytes,
            )
        if not is_worth_it(before, after, verdict.races, ()):
            return f"together they save nothing ({in_words(before, after)})"
        if doubt := undecided(verdict.races, self.max_slowdown):
            return Undecided(f"{in_words(before, after)}; {doubt}")
        self.attempt.excuse()
        return Proof(
            output=self.attempt.files.publish(built),
            verdict=verdict,
            bound=bound,
            before=before,
            after=after,
            verified_on=(self.bench.onnxruntime, *self.others.versions),
        )

    def _failed(self, error: MemdiagError) -> str:
        """Return why a model came to nothing."""
        if isinstance(error, ReportError):
            self._unwritable = self._unwritable or error
        what = "run" if isinstance(error, MeasurementError) else "be built"
        return f"it cannot {what}: {error}"

    def _job(self, built: Built) -> Job:
        return replace(self.bench.job, model=built.path)


def _saves_nothing(before: Figures, after: Figures) -> str:
    figures = in_words(before, after)
    if (after.peak_bytes < before.peak_bytes) != (after.steady_bytes < before.steady_bytes):
        return f"one figure falls, but the other does not ({figures})"
    return f"it saves nothing that can be measured ({figures})"

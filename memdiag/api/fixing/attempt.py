"""One fix under way: what was accepted so far, and what became of each remedy."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from memdiag.api.fixing.changes import Change
from memdiag.api.fixing.files import Built, FixFiles, Output
from memdiag.model.graph_index import GraphIndex
from memdiag.ort.reductions import largest_reduction
from memdiag.records.finding import Finding
from memdiag.records.fix import Figures, Remedy, RemedyStatus
from memdiag.remedies.draft import Draft
from memdiag.runner.job import Deadline
from memdiag.verify.outputs import Bound
from memdiag.verify.validity import Checker

Rules = Sequence[tuple[Change, ...]]


@dataclass(kw_only=True)
class Attempt:
    """Tells which changes are possible, on top of those `accepted`, and notes what becomes of them.

    `is_valid` says whether the model that was looked at last passes `onnx.checker`; `before` is
    what the original takes, None where it is not measured.
    """

    files: FixFiles
    unsafe: bool
    accepted: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_valid: bool | None = None
    before: Figures | None = None
    deadline: Deadline = field(default_factory=Deadline)

    def __post_init__(self) -> None:
        self._checker = Checker(self.files.file.path, deadline=self.deadline)
        self._remedies: dict[tuple[str, str, tuple[str, ...]], Remedy] = {}

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What became of each change, in the order in which it was decided first."""
        return tuple(self._remedies.values())

    def possible(self, change: Change) -> tuple[Change, Draft] | None:
        """Return `change` for the findings that it can answer, and the model with it.

        For the others the reason is noted. None where it can answer none.
        """
        rewriter, findings = change
        if not rewriter.rewrite.safe and not self.unsafe:
            self.note(change, "refused", "it changes values (see --unsafe)")
            return None
        draft = self.files.draft(self.accepted)
        refused: dict[str, list[Finding]] = defaultdict(list)
        possible: list[Finding] = []
        for finding in findings:
            reason = rewriter.check(draft, finding)
            if reason is None:
                possible.append(finding)
            else:
                refused[reason].append(finding)
        # All are applied: a list, for `any` would stop at the first that changes something.
        if possible and not any([rewriter.apply(draft, finding) for finding in possible]):
            refused["it changes nothing"] += possible
            possible = []
        for reason, those in refused.items():
            self.note(Change(rewriter, tuple(those)), "refused", reason)
        return (Change(rewriter, tuple(possible)), draft) if possible else None

    def note(self, change: Change, status: RemedyStatus, reason: str) -> None:
        """Note what became of a change; the last word on it counts."""
        self._remedies[change.name, change.rule, change.weights] = Remedy(
            name=change.name,
            rule=change.rule,
            status=status,
            reason=self.files.shown(reason),
            weights=change.weights,
        )

    def leave(self, rules: Rules, why: str) -> None:
        """Note of each change that nothing is known of that it was not tried, for the reason."""
        for change in (change for changes in rules for change in changes):
            if not any((one.name, one.rule) == (change.name, change.rule) for one in self.remedies):
                self.note(change, "untried", why)

    def bound(self, changes: Sequence[Change]) -> Bound:
        """Return how far the outputs of the original with `changes` may be from its own."""
        if all(change.is_exact for change in changes):
            return Bound.exact()
        file = self.files.file
        return Bound.reordered(largest_reduction(file, GraphIndex(file)))

    def invalidity(self, built: Built) -> str | None:
        """Return why a changed model is not as valid as the original; None if it is."""
        if built.newer is not None:
            return f"it declares {built.newer}, which the original does not"
        complaint, is_new = self._checker.check(built.path)
        self.is_valid = not complaint
        return f"onnx.checker finds fault with it ({complaint})" if is_new else None

    def excuse(self) -> None:
        """Note why the model that was looked at last is as it is though it does not pass."""
        if self.is_valid is False:
            self.notes.append(
                "onnx.checker finds the same fault with the original as with the result"
                f" ({self._checker.complaint})"
            )

    def any_possible(self, rules: Rules) -> bool:
        """Return whether there is a change to try; if not, the reasons are noted."""
        return any(self.possible(change) for changes in rules for change in changes)

    def foresee(self, rules: Rules) -> None:
        """Say of each remedy whether it would be tried."""
        for change in (change for changes in rules for change in changes):
            found = self.possible(change)
            if found is not None:
                self.note(found[0], "possible", "it would be built, verified and measured")

    def give_up(self, rules: Rules) -> None:
        """Refuse everything: the model cannot be run."""
        for change in (change for changes in rules for change in changes):
            self.note(change, "refused", "the model does not run here (see --unverified)")

    def trust(self, rules: Rules) -> Output | None:
        """Publish the model with the first possible and valid remedy of each rule, unmeasured.

        Raises:
            MemdiagError: it cannot be built, or not be written.
        """
        for changes in rules:
            any(self._trusts(change) for change in changes)
        if not self.accepted:
            return None
        with self.files.built(self.files.draft(self.accepted)) as built:
            self.invalidity(built)
            self.excuse()
            return self.files.publish(built)

    def _trusts(self, change: Change) -> bool:
        found = self.possible(change)
        if found is None:
            return False
        change, draft = found
        with self.files.built(draft) as built:
            problem = self.invalidity(built)
        if problem is not None:
            self.note(change, "rejected", problem)
            return False
        self.accepted.append(change)
        self.note(change, "unverified", "the model could not be run")
        return True

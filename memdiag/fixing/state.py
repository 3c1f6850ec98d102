"""The state of rewriting: which changes were accepted so far, and the outcome of each."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memdiag.errors import MemdiagError, ModelError, defect_reason
from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import BuiltModel, ModelWriter
from memdiag.records.finding import Finding
from memdiag.records.fix import Remedy, RemedyStatus
from memdiag.records.measured_change import SearchEnd
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import UNSAFE_PROBLEM, Rewrite
from memdiag.rules import model_detectors
from memdiag.runner.job import Deadline
from memdiag.verify.model_bound import reordered_bound
from memdiag.verify.outputs import Bound
from memdiag.verify.validity import Validity, ValidityChecker

ChangesByRule = Sequence[tuple[Change, ...]]


@dataclass(kw_only=True)
class FixState:
    """Accepted changes and outcomes.

    Attributes:
        writer: writes changed models.
        max_difference: the difference of outputs that is accepted; None for a bound that follows
            from the changes, which then must not change values.
        accepted: the changes accepted so far; further ones are applied on top of them.
        notes: sentences for the record.
        is_valid: whether the model that was checked last passes `onnx.checker`.
        deadline: when to stop.
        ended_by: what ended the search.
    """

    writer: ModelWriter
    max_difference: float | None = None
    accepted: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_valid: bool | None = None
    deadline: Deadline = field(default_factory=Deadline)
    ended_by: SearchEnd = "completion"

    def __post_init__(self) -> None:
        self._checker = ValidityChecker(self.writer.file.path, deadline=self.deadline)
        self._validities: dict[bytes, Validity] = {}
        self._outcomes: dict[tuple[str, str, tuple[str, ...]], Remedy] = {}

    @property
    def outcomes(self) -> tuple[Remedy, ...]:
        """The outcome of each change, in the order in which it was first decided."""
        return tuple(self._outcomes.values())

    def is_accepted(self, change: Change) -> bool:
        """Return whether `change` was accepted for all of its findings."""
        accepted_weights = {
            weight
            for accepted in self.accepted
            if (accepted.name, accepted.rule) == (change.name, change.rule)
            for weight in accepted.weights
        }
        return bool(accepted_weights) and accepted_weights >= {*change.weights}

    def possible(
        self, change: Change, *, on_top_of: Sequence[Change] = ()
    ) -> tuple[Change, ModelEditor] | None:
        """Return `change` for the findings that it can be applied to, and the changed model.

        The model also has the accepted changes and the changes `on_top_of`. For the other findings
        the reason is recorded. None if it can be applied to no finding.
        """
        rewriter, findings = change
        if not rewriter.rewrite.safe and self.max_difference is None:
            self.record(change, "refused", UNSAFE_PROBLEM)
            return None
        try:
            editor = self.writer.editor([*self.accepted, *on_top_of])
        except ModelError as error:
            self.record(change, "refused", f"the graph cannot be rewritten ({error})")
            return None
        refused_by_reason: dict[str, list[Finding]] = defaultdict(list)
        applicable: list[Finding] = []
        try:
            for finding in findings:
                reason = rewriter.check(editor, finding)
                if reason is None:
                    applicable.append(finding)
                else:
                    refused_by_reason[reason].append(finding)
            # A list, because `any` of a generator would stop at the first that changes something.
            if applicable and not any([rewriter.apply(editor, finding) for finding in applicable]):
                refused_by_reason["it changes nothing"] += applicable
                applicable = []
        except MemdiagError:
            raise
        except Exception as error:  # a defect of one rewrite must not lose the others
            reason = f"the rewrite has a defect ({defect_reason(error)}). Please report it"
            self.record(change, "refused", reason)
            return None
        for reason, refused_findings in refused_by_reason.items():
            self.record(Change(rewriter, tuple(refused_findings)), "refused", reason)
        return (Change(rewriter, tuple(applicable)), editor) if applicable else None

    def record(self, change: Change, status: RemedyStatus, reason: str) -> None:
        """Record the outcome of a change; it replaces an earlier outcome of the same change."""
        self._outcomes[change.name, change.rule, change.weights] = Remedy(
            name=change.name,
            rule=change.rule,
            status=status,
            reason=self.writer.without_hidden_names(reason),
            weights=change.weights,
        )

    def record_needless(self, rewrite: Rewrite) -> None:
        """Record a rewrite that was asked for although no finding calls for it."""
        rules = [
            detector.rule.name
            for detector in model_detectors()
            if rewrite.name in detector.rule.remedies
        ]
        self._outcomes[rewrite.name, rules[0], ()] = Remedy(
            name=rewrite.name,
            rule=rules[0],
            status="refused",
            reason=f"no finding calls for it ({' or '.join(rules)} would)",
            weights=(),
        )

    def record_untried(self, rules: ChangesByRule, why: str) -> None:
        """Record each change as untried, for its findings without an outcome, with reason `why`."""
        for change in (change for changes in rules for change in changes):
            change_outcomes = [
                outcome
                for outcome in self.outcomes
                if (outcome.name, outcome.rule) == (change.name, change.rule)
            ]
            decided_weights = {weight for outcome in change_outcomes for weight in outcome.weights}
            undecided = [
                finding for finding in change.findings if not decided_weights >= {*finding.weights}
            ]
            if undecided or not change_outcomes:
                findings = tuple(undecided) or change.findings
                self.record(Change(change.rewriter, findings), "untried", why)

    def bound(self, changes: Sequence[Change]) -> Bound:
        """Return how much outputs may differ from the original's with `changes`."""
        if self.max_difference is not None:
            return Bound.given(self.max_difference)
        is_exact = all(change.is_exact for change in changes)
        bound = Bound.exact() if is_exact else reordered_bound(self.writer.file)
        return replace(bound, may_be_given=True)

    def invalidity(self, built: BuiltModel) -> str | None:
        """Return why a changed model is not as valid as the original; None if it is."""
        if built.newer is not None:
            return f"it declares {built.newer}, which the original does not"
        validity = self._validities.get(built.digest)
        if validity is None:
            validity = self._validities[built.digest] = self._checker.check(built.path)
        self.is_valid = not validity.error
        return f"onnx.checker rejects it ({validity.error})" if validity.is_new else None

    def explain_invalidity(self) -> None:
        """Add a note if `onnx.checker` rejects the last checked model, as it does the original."""
        if self.is_valid is False:
            self.notes.append(
                "onnx.checker rejects the rewritten model for the same reason as the original"
                f" ({self._checker.original_error})"
            )

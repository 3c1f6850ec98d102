"""What a fix tries: the rewrites, optimizers and session options that ``--only`` names."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from memdiag.api.check import RuleSelection
from memdiag.api.optimizer_outputs import check_optimizers, optimizer_names
from memdiag.errors import UsageError
from memdiag.fixing.changes import Change
from memdiag.ort.runtime import Runtime
from memdiag.rewrites import rewriters
from memdiag.rewrites.rewrite import Rewrite
from memdiag.runner.job import Job
from memdiag.tuning.tuning_options import TuningOption, tuning_options

REWRITES, OPTIONS = "rewrites", "options"
"""The names of everything that changes the model, and of everything that changes its session."""


@dataclass(frozen=True)
class FixScope:
    """What is tried.

    Args:
        names: `REWRITES` (with the models of optimizers), `OPTIONS`, and names of rewrites,
            optimizers, options and rules; everything is tried if empty.
        changes_values: whether to try what changes values beyond the order of sums.
    """

    names: Sequence[str] = ()
    changes_values: bool = False

    def check(self) -> None:
        """Check the names.

        Raises:
            UsageError: a name is unknown, or an optimizer among them cannot be used.
        """
        rules = self._rule_names()
        try:
            RuleSelection(select=rules)
        except UsageError:
            known_names = self._known_names()
            unknown_name = next(name for name in rules if not _is_rule(name))
            similar = get_close_matches(unknown_name, known_names, n=1)
            advice = f"Did you mean {similar[0]}?" if similar else f"Use {REWRITES} or {OPTIONS}."
            raise UsageError(
                f"{unknown_name!r} is not a rewrite, option, optimizer or rule. {advice}"
            ) from None
        check_optimizers(self.names, changes_values=self.changes_values)

    def asked(self) -> tuple[str, ...]:
        """Return the names without duplicates; codes of rules become the names of the rules."""
        rules = self._rule_names()
        return tuple(
            dict.fromkeys(
                rule_name
                for name in self.names
                for rule_name in (
                    [detector.rule.name for detector in RuleSelection(select=(name,)).chosen]
                    if name in rules
                    else [name]
                )
            )
        )

    def check_usable(self, job: Job) -> None:
        """Check that each option that is named can be tried with `job`.

        Raises:
            UsageError: an option cannot be tried; with the reason.
        """
        runtime = Runtime.installed()
        for option in tuning_options():
            if option.name not in self.names:
                continue
            needs = f" (it needs {option.needs})" if option.needs else ""
            if not option.is_available(runtime):
                problem = f"is not available here, with onnxruntime {runtime}{needs}. Leave it out"
            elif not option.is_relevant(job):
                subject = "the memory on a GPU" if job.records_device else "this model"
                problem = f"makes no difference to {subject}{needs}. Leave it out"
            elif option.changes_values and not self.changes_values:
                problem = "changes values. Allow that with --max-difference"
            else:
                continue
            raise UsageError(f"{option.name}: it {problem}.")

    @property
    def needs_new_models(self) -> bool:
        """Whether rewrites or optimizers are among what is tried."""
        options = {option.name for option in tuning_options()}
        return not self.names or any(name != OPTIONS and name not in options for name in self.names)

    def has_change(self, change: Change) -> bool:
        """Return whether the rewrite `change` is tried."""
        if not self.names or REWRITES in self.names or change.name in self.names:
            return True
        rules = self._rule_names()
        return bool(rules) and change.rule in {
            detector.rule.name for detector in RuleSelection(select=rules).chosen
        }

    def rewrites(self) -> list[Rewrite]:
        """Return the rewrites that are named."""
        all_rewrites = (rewriter.rewrite for rewriter in rewriters())
        return [rewrite for rewrite in all_rewrites if rewrite.name in self.names]

    def optimizers(self) -> tuple[str, ...]:
        """Return the names of the optimizers that are tried."""
        names = optimizer_names()
        if not self.names or REWRITES in self.names:
            return names
        return tuple(name for name in names if name in self.names)

    def options(self, job: Job, runtime: Runtime) -> list[TuningOption]:
        """Return the session options that are tried with `job`."""
        tries_all = not self.names or OPTIONS in self.names
        return [
            option
            for option in tuning_options()
            if (tries_all or option.name in self.names)
            and option.is_available(runtime)
            and option.is_relevant(job)
            and (self.changes_values or not option.changes_values)
        ]

    def together(self) -> tuple[str, ...]:
        """Return the names of single options and optimizers, which are also tried together."""
        combinable_names = {*optimizer_names(), *(option.name for option in tuning_options())}
        return tuple(name for name in self.names if name in combinable_names)

    def _rule_names(self) -> list[str]:
        return [name for name in self.names if name not in self._known_names()]

    def _known_names(self) -> set[str]:
        return {
            *(REWRITES, OPTIONS),
            *optimizer_names(),
            *(option.name for option in tuning_options()),
            *(rewriter.rewrite.name for rewriter in rewriters()),
        }


def _is_rule(name: str) -> bool:
    try:
        RuleSelection(select=(name,))
    except UsageError:
        return False
    return True

"""Check a model against a budget and a baseline, with figures that are reproducible."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memdiag.api.arguments import check_at_least_one
from memdiag.budgets.baselines import (
    BaselineStatus,
    baseline_entry,
    condition_differences,
    read_baseline,
    update_baseline,
)
from memdiag.budgets.evaluation import UPDATE_OPTION, judge_budget
from memdiag.defaults import BUDGET_REPEATS, PINNED_ENVIRONMENT
from memdiag.errors import UsageError
from memdiag.records.baseline import Baseline, BaselineEntry
from memdiag.records.budget import Budget, Judgement
from memdiag.records.files import require_writable, resolve_output
from memdiag.records.profile import Profile
from memdiag.units import some_of

MAX_OTHER_BASELINES = 3
"""Baselines of other options in an error."""

ProfileRunner = Callable[[bool], Profile]
"""Profiles the model in a fresh process, with an X-ray if the argument is True."""


@dataclass(frozen=True, kw_only=True)
class BaselineUpdate:
    """An entry of a baseline that can be written.

    Attributes:
        path: the baseline file.
        model: the model, as the file names it.
        machine: the class of machine.
        entry: the new entry.
        tolerance: share by which figures may differ from the entry in the file.
    """

    path: Path
    model: str
    machine: str
    entry: BaselineEntry
    tolerance: float | None

    def write(self) -> BaselineStatus:
        """Write the entry, unless it hardly differs from the entry in the file; return the change.

        Raises:
            RecordError: the file is not a baseline.
            ReportError: the file cannot be written.
        """
        return update_baseline(self.path, self.model, self.machine, self.entry, self.tolerance)


@dataclass(frozen=True, kw_only=True)
class BudgetResult:
    """A profile that was compared with a budget and a baseline.

    Attributes:
        profile: the profile with its judgement; without a judgement if the model did not complete.
        incomparable: why a baseline that exists was not compared; empty otherwise.
        update: the update of the baseline, if one was asked for and the budget is not exceeded.
    """

    profile: Profile
    incomparable: str = ""
    update: BaselineUpdate | None = None

    @property
    def judgement(self) -> Judgement | None:
        """The comparison with budget and baseline."""
        return self.profile.judgement


def with_pinned_malloc(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with the variables that make a child's figures reproducible.

    Variables that `environment` already has keep their values.
    """
    return {**PINNED_ENVIRONMENT, **environment}


def check_budget(
    run_profile: ProfileRunner,
    budget: Budget,
    *,
    model: str,
    baseline: Path | None = None,
    update: bool = False,
    repeats: int = BUDGET_REPEATS,
    update_option: str = UPDATE_OPTION,
) -> BudgetResult:
    """Profile a model and compare it with `budget`, and with its `baseline` if there is one.

    One process is enough if nothing is exceeded. If a limit is exceeded, and for an update of the
    baseline, the figures are aggregated over several processes.

    Args:
        run_profile: profiles the model.
        budget: the limits.
        model: the name of the model, for messages.
        baseline: the baseline file.
        update: prepare an update of the baseline instead of comparing with it.
        repeats: number of fresh processes to aggregate.
        update_option: the option that updates a baseline, for messages.

    Raises:
        UsageError: there is neither a budget nor a baseline, a figure is not available, or the
            baseline was measured under other conditions.
        RecordError: the baseline file is not a baseline.
    """
    check_at_least_one("repeats", repeats)
    if update and baseline is not None:
        resolve_output(baseline)  # before anything is measured
        require_writable(baseline)
    saved_baseline = read_baseline(baseline) if baseline else None
    if not budget.limits and saved_baseline is None and not update:
        other_baselines = _other_baselines_clause(baseline, model) if baseline else ""
        raise UsageError(
            f"{model}: there is no budget or baseline{other_baselines}. Give a budget such as"
            f" peak=1.2GB, or write a baseline ({update_option})."
        )
    first_profile = run_profile(True)
    if not first_profile.outcome.completed:
        return BudgetResult(profile=first_profile)
    machine = first_profile.environment.machine
    entry = saved_baseline.machines.get(machine) if saved_baseline and not update else None
    profiles = [first_profile]
    judgement = judge_budget(profiles, budget, entry=entry, update_option=update_option)
    if (update or not judgement.is_met) and repeats > 1:
        for _ in range(repeats - 1):
            profiles.append(run_profile(False))
            if not profiles[-1].outcome.completed:
                return BudgetResult(profile=profiles[-1])
        judgement = judge_budget(profiles, budget, entry=entry, update_option=update_option)
    notes = list(judgement.notes)
    new_entry: BaselineUpdate | None = None
    if update and baseline is not None and judgement.is_met:
        new_entry = BaselineUpdate(
            path=baseline,
            model=model,
            machine=machine,
            entry=baseline_entry(profiles),
            tolerance=budget.tolerance,
        )
    elif update:
        notes.append("the baseline was not updated: the budget is exceeded")
    incomparable = ""
    if saved_baseline is not None and entry is None and not update:
        incomparable = _missing_entry_text(saved_baseline, machine, update_option)
        notes.append(incomparable)
    judgement = msgspec.structs.replace(judgement, notes=tuple(notes))
    return BudgetResult(
        profile=msgspec.structs.replace(first_profile, judgement=judgement),
        incomparable=incomparable,
        update=new_entry,
    )


def refuse_other_configuration(path: Path, model: str, profile: Profile) -> None:
    """Refuse to overwrite a baseline of another model or configuration with `profile`.

    Raises:
        UsageError: the baseline at `path` is of another model, or was measured with other options.
        RecordError: the file is not a baseline.
    """
    saved_baseline = read_baseline(path)
    saved_entry = (
        saved_baseline.machines.get(profile.environment.machine) if saved_baseline else None
    )
    if saved_baseline is not None and Path(saved_baseline.model).name != Path(model).name:
        owner = saved_baseline.model
    elif saved_entry is not None and (
        changed_settings := condition_differences(saved_entry, profile)
    ):
        owner = f"another configuration (this run had {'; '.join(changed_settings)})"
    else:
        return
    raise UsageError(
        f"{path}: this is the baseline of {owner}. Name another file, or delete this one first."
    )


def _other_baselines_clause(path: Path, model: str) -> str:
    """Return a clause that names the baselines of `model` next to the missing file `path`."""
    start = f"{Path(model).name}."
    names = [file.name for file in sorted(path.parent.glob("*.json"))]
    # A file is named after the model and the options that differ from the defaults.
    baseline_texts = [
        f"{name} ({name.removeprefix(start).removesuffix('json').rstrip('.') or 'the defaults'})"
        for name in names
        if name.startswith(start)
    ]
    if not baseline_texts:
        return ""
    current_folder = Path.cwd()
    folder = (
        path.parent.relative_to(current_folder)
        if path.is_relative_to(current_folder)
        else path.parent
    )
    return (
        f" for these options. Baselines for other options in {folder}:"
        f" {some_of(baseline_texts, MAX_OTHER_BASELINES)}"
    )


def _missing_entry_text(baseline: Baseline, machine: str, update_option: str) -> str:
    return (
        f"its baseline has no entry for this class of machine ({machine}), only for"
        f" {', '.join(sorted(baseline.machines))}. Update it here ({update_option})"
    )

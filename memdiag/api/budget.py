"""Hold a model to a budget and a baseline: measured so that the figures repeat."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from memdiag.api.baselines import Status, read_baseline, update_baseline
from memdiag.budgets.baselines import differences, take
from memdiag.budgets.judging import UPDATE_OPTION, judge
from memdiag.errors import UsageError
from memdiag.records.baseline import Baseline
from memdiag.records.budget import Budget, Judgement
from memdiag.records.files import resolve_output
from memdiag.records.profile import Profile

DEFAULT_PROCESSES = 3
MAX_OTHER_BASELINES = 3
"""An error names at most this many baselines of other options."""

PINNED = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
"""With this in its environment glibc gives back what is freed in blocks of 128 KiB and more. As it
is, it keeps some of them, which ones by chance, and figures spread by several percent."""

Once = Callable[[Literal["steady", "none"]], Profile]
"""Profiles the model in a fresh process, with an X-ray or without."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What became of it.

    `judgement` is None where the model did not complete, which `profile` tells of. `incomparable`
    says why there was a baseline and yet nothing was compared with it, empty otherwise.
    `update_baseline` writes the baseline that was to be updated, and returns what that changed; it
    is None where there is nothing to write, or the budget is exceeded.
    """

    profile: Profile
    judgement: Judgement | None
    incomparable: str = ""
    update_baseline: Callable[[], Status] | None = None


def pinned(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` for a child whose figures are to repeat; what it sets itself stays."""
    return {**PINNED, **environment} if sys.platform == "linux" else dict(environment)


def hold(
    once: Once,
    budget: Budget,
    *,
    model: str,
    baseline: Path | None = None,
    update: bool = False,
    processes: int = DEFAULT_PROCESSES,
    update_option: str = UPDATE_OPTION,
) -> Held:
    """Profile a model and compare it with `budget`, and with its `baseline` where that exists.

    One process is enough where all holds. A breach, and what becomes a baseline, are settled by
    `processes` processes. With `update` the result has a function that writes the baseline.
    Messages call the option that does so `update_option`.

    Raises:
        UsageError: there is nothing to hold it to, a figure cannot be had, or the baseline was
            measured otherwise.
        RecordError: the baseline file is none.
    """
    if processes < 1:
        raise UsageError("--processes must be at least 1.")
    if update and baseline is not None:
        resolve_output(baseline)  # before anything is measured, or waits for a pipe
    saved = read_baseline(baseline) if baseline else None
    if not budget.limits and saved is None and not update:
        others = _other_baselines(baseline, model) if baseline else ""
        raise UsageError(
            f"{model}: there is no budget or baseline{others}. Give a budget such as peak=1.2GB, or"
            f" write a baseline ({update_option})."
        )
    first = once("steady")
    if first.outcome.status != "completed":
        return Held(profile=first, judgement=None)
    machine = first.environment.machine
    taken = saved.machines.get(machine) if saved and not update else None
    profiles = [first]
    judgement = judge(profiles, budget, taken=taken, update_option=update_option)
    if (update or not judgement.holds) and processes > 1:
        for _ in range(processes - 1):
            profiles.append(once("none"))
            if profiles[-1].outcome.status != "completed":
                return Held(profile=profiles[-1], judgement=None)
        judgement = judge(profiles, budget, taken=taken, update_option=update_option)
    update_later = None
    if update and baseline is not None and judgement.holds:
        now = take(profiles)
        update_later = partial(update_baseline, baseline, model, machine, now, budget.tolerance)
    elif update:
        notes = (*judgement.notes, "the baseline was not updated: the budget is exceeded")
        judgement = msgspec.structs.replace(judgement, notes=notes)
    incomparable = ""
    if saved is not None and taken is None and not update:
        incomparable = _incomparable(saved, machine, update_option)
        notes = (*judgement.notes, incomparable)
        judgement = msgspec.structs.replace(judgement, notes=notes)
    return Held(
        profile=first,
        judgement=judgement,
        incomparable=incomparable,
        update_baseline=update_later,
    )


def refuse_other_configuration(path: Path, model: str, profile: Profile) -> None:
    """Refuse to write what `profile` took to a file that is the baseline of something else.

    Raises:
        UsageError: the file at `path` is of another model, or was measured with other options.
        RecordError: the file is no baseline.
    """
    saved = read_baseline(path)
    before = saved.machines.get(profile.environment.machine) if saved else None
    if saved is not None and Path(saved.model).name != Path(model).name:
        other = saved.model
    elif before is not None and (found := differences(before, profile)):
        other = f"another configuration (this run had {'; '.join(found)})"
    else:
        return
    raise UsageError(
        f"{path}: this is the baseline of {other}. Name another file, or delete this one first."
    )


def _other_baselines(path: Path, model: str) -> str:
    """Return in words which baselines of `model` there are beside `path`, which is not there."""
    start = f"{Path(model).name}."
    names = [one.name for one in sorted(path.parent.glob("*.json")) if one.name.startswith(start)]
    # The name of a file is that of the model, and the options other than the defaults.
    found = [
        f"{name} ({name.removeprefix(start).removesuffix('json').rstrip('.') or 'the defaults'})"
        for name in names
    ]
    if not found:
        return ""
    more = len(found) - MAX_OTHER_BASELINES
    and_more = f" and {more} more" if more > 0 else ""
    here = Path.cwd()
    folder = path.parent.relative_to(here) if path.is_relative_to(here) else path.parent
    return (
        f" for these options. Baselines for other options in {folder}:"
        f" {', '.join(found[:MAX_OTHER_BASELINES])}{and_more}"
    )


def _incomparable(saved: Baseline, machine: str, update_option: str) -> str:
    return (
        f"its baseline has nothing for this class of machine ({machine}), only for"
        f" {', '.join(sorted(saved.machines))}: comparing would be unsound; update it here"
        f" ({update_option})"
    )

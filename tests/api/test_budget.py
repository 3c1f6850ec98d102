"""How often a model is measured, and what is result against what; the profiles are made up."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from memdiag.api.budget import (
    BudgetResult,
    check_budget,
    refuse_other_configuration,
    with_pinned_malloc,
)
from memdiag.budgets.baselines import BaselineStatus, read_baseline
from memdiag.errors import UsageError
from memdiag.records.budget import Budget
from memdiag.records.profile import Profile
from tests.reports import profiles
from tests.reports.profiles import MIB

MACHINE = "Linux x86_64 avx2 glibc"


def taking(mebibytes: float, machine: str = MACHINE) -> Profile:
    """Return a profile with so much more than the usual one took, in every phase and at the end."""
    steps = [
        step
        if step.phase == "start"
        else replace(step, peak=step.peak + mebibytes, end=step.end + mebibytes)
        for step in profiles.TIED_IF
    ]
    profile = profiles.build(steps, runs=10)
    environment = msgspec.structs.replace(profile.environment, machine=machine)
    return msgspec.structs.replace(profile, environment=environment)


class Asked:
    """Returns made-up profiles one after the other, and keeps with which X-rays they were asked."""

    def __init__(self, *made: Profile) -> None:
        self.made = list(made)
        self.xrays: list[bool] = []

    def __call__(self, xray: bool) -> Profile:
        self.xrays.append(xray)
        return self.made.pop(0)


def update(result: BudgetResult) -> BaselineStatus:
    assert result.update is not None
    return result.update.write()


def created(path: Path) -> BudgetResult:
    runner = Asked(*[taking(0)] * 3)
    return check_budget(runner, Budget(), model="m.onnx", baseline=path, update=True)


PEAK = (1579 - 46) * MIB
FITS = Budget(limits={"peak": PEAK})


@pytest.mark.parametrize(
    ("sizes", "repeats", "peak", "is_met"),
    [
        ((0,), 3, 0, True),  # one process is enough where all holds
        ((9, 2, 5), 3, 5, False),  # the median of three
        ((9, 0, 0), 3, 0, True),  # a breach by chance
        ((9,), 1, 9, False),
    ],
)
def test_a_breach_is_the_median_of_three(
    sizes: tuple[float, ...], repeats: int, peak: int, is_met: bool
) -> None:
    asked = Asked(*map(taking, sizes))
    judgement = check_budget(asked, FITS, model="m.onnx", repeats=repeats).judgement
    assert judgement is not None
    assert (judgement.figures["peak"], judgement.processes) == (PEAK + peak * MIB, len(sizes))
    assert judgement.is_met == is_met
    assert asked.xrays == [True, False, False][: len(sizes)]


def test_no_process_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="repeats must be at least 1"):
        check_budget(Asked(), FITS, model="m.onnx", repeats=0)


def test_without_anything_to_hold_it_to_nothing_is_measured(tmp_path: Path) -> None:
    once = Asked()
    with pytest.raises(UsageError, match=r"^m\.onnx: there is no budget or baseline"):
        check_budget(once, Budget(), model="m.onnx", baseline=tmp_path / "none.json")
    assert once.xrays == []


def test_baselines_of_other_options_are_named(tmp_path: Path) -> None:
    wanted = tmp_path / "m.onnx.seq=96.json"
    for name in ("m.onnx.seq=64.json", "m.onnx.json", "model.onnx.json", "m.onnx.png"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError) as caught:
        check_budget(Asked(), Budget(), model="models/m.onnx", baseline=wanted)
    text = str(caught.value)
    assert text.startswith("models/m.onnx: there is no budget or baseline for these options. ")
    assert "m.onnx.json (the defaults), m.onnx.seq=64.json (seq=64). Give a budget" in text
    for number in range(3):
        (tmp_path / f"m.onnx.runs={number}.json").write_text("{}")
    with pytest.raises(UsageError, match=r"runs=1\) and 2 more\. Give a budget"):
        check_budget(Asked(), Budget(), model="m.onnx", baseline=wanted)


@pytest.mark.parametrize("ended", [profiles.failed, profiles.killed])
def test_a_run_that_ended_early_is_not_judged(ended: Callable[[], Profile]) -> None:
    assert check_budget(Asked(ended()), FITS, model="m.onnx").judgement is None
    result = check_budget(Asked(taking(9), ended()), FITS, model="m.onnx")
    assert result.judgement is None
    assert result.profile.outcome.status != "completed"


def test_a_baseline_is_created_kept_breached_and_updated(tmp_path: Path) -> None:
    path = tmp_path / "baselines" / "m.onnx.json"

    def outcome(mebibytes: float, *, update: bool) -> tuple[str | None, bool]:
        once = Asked(*[taking(mebibytes)] * 3)
        found = check_budget(once, Budget(), model="m.onnx", baseline=path, update=update)
        assert found.judgement is not None
        written = found.update.write() if found.update else None
        return written, found.judgement.is_met

    assert outcome(0, update=True) == ("created", True)
    first = path.read_bytes()
    assert outcome(0.5, update=False) == (None, True)
    assert outcome(0.5, update=True) == ("kept", True)
    assert path.read_bytes() == first
    assert outcome(100, update=False) == (None, False)
    assert path.read_bytes() == first
    assert outcome(100, update=True) == ("updated", True)
    assert outcome(100, update=False) == (None, True)


def test_above_its_budget_nothing_becomes_a_baseline(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    result = check_budget(Asked(*[taking(9)] * 3), FITS, model="m.onnx", baseline=path, update=True)
    assert result.update is None
    assert result.judgement is not None
    assert "the baseline was not updated: the budget is exceeded" in result.judgement.notes
    fits = check_budget(Asked(*[taking(0)] * 3), FITS, model="m.onnx", baseline=path, update=True)
    assert update(fits) == "created"


def test_a_file_of_another_configuration_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    refuse_other_configuration(path, "m.onnx", taking(0))
    update(created(path))
    refuse_other_configuration(path, "folder/m.onnx", taking(100))
    with pytest.raises(UsageError, match=r"m\.json: this is the baseline of m\.onnx\. Name"):
        refuse_other_configuration(path, "n.onnx", taking(0))
    profile = taking(0)
    session = msgspec.structs.replace(profile.session, options={"intra_op_num_threads": "1"})
    other = msgspec.structs.replace(profile, session=session)
    with pytest.raises(UsageError, match=r"another configuration .*options intra_op_num_thr"):
        refuse_other_configuration(path, "m.onnx", other)


def test_a_baseline_is_the_median_too(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    once = Asked(taking(9), taking(2), taking(5))
    update(check_budget(once, Budget(), model="m.onnx", baseline=path, update=True))
    saved = read_baseline(path)
    assert saved is not None
    assert saved.machines[MACHINE].figures["peak"] == PEAK + 5 * MIB


def test_another_class_of_machine_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    update(created(path))
    other = taking(100, machine="Darwin arm64")
    result = check_budget(Asked(other), Budget(), model="m.onnx", baseline=path)
    assert (
        "no entry for this class of machine (Darwin arm64), only for Linux" in result.incomparable
    )
    assert result.judgement is not None
    assert result.judgement.baseline == {}
    same = check_budget(Asked(taking(0)), Budget(), model="m.onnx", baseline=path)
    assert same.incomparable == ""


def test_the_allocators_threshold_is_pinned_unless_it_is_set() -> None:
    assert with_pinned_malloc({"A": "1"}) == {"A": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
    own = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    assert with_pinned_malloc(own) == own

"""The search for limits: of a real model where groups can be created, and with trials of a fake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import memdiag
from memdiag.api import limit as limit_api
from memdiag.api import limit_program as program_api
from memdiag.api.limit_program import limit_program
from memdiag.api.limit_search import LimitSearch, longest_trial_s, require_completed_trial
from memdiag.deploy.limited_group import GroupRemovedError, NoGroupError, ParentGroup
from memdiag.errors import MeasurementError, UsageError
from memdiag.records.limit import CountedMemory, LimitPoint, MemoryLimit
from memdiag.runner.job import Deadline
from memdiag.temporary_names import own_prefix
from memdiag.units import MIB
from sample_models.recipes import plain_mlp
from tests.deploy.real_groups import usable_parent

REFUSAL = "/sys/fs/cgroup: control groups are mounted read-only, as in most containers."
PARENT = ParentGroup(folder=Path("group-of-nobody"), version=2)


class FakeTrials:
    """Trials of a model that needs 200 MiB; `at_trial` is called before each with its number."""

    timeout_s = 100.0
    rss_bytes = 0
    uncounted_bytes = 12 * MIB
    counted: CountedMemory | None = CountedMemory(
        anonymous_bytes=190 * MIB, file_bytes=90 * MIB, kernel_bytes=None
    )

    def __init__(self, at_trial: Callable[[int], None] = lambda number: None) -> None:
        self.at_trial = at_trial
        self.number = 0

    def measure(self, limit_bytes: int | None) -> LimitPoint:
        self.number += 1
        self.at_trial(self.number)
        works = limit_bytes is None or limit_bytes >= 200 * MIB
        return LimitPoint(
            limit_bytes=limit_bytes,
            outcome="completed" if works else "killed",
            phase="" if works else "prepack",
            latency_s=0.1 if works else None,
            peak_bytes=limit_bytes or 280 * MIB,
        )


def found(
    trials: FakeTrials, deadline: Deadline | None = None, at_bytes: tuple[int, ...] = ()
) -> MemoryLimit:
    search = LimitSearch(trials, trials.measure(None), 1.0)
    search.run(deadline or Deadline(), lambda step: None, at_bytes)
    return search.record(PARENT, subject="m.onnx", kind="model", duration_s=1.0)


def raise_at(number: int, error: BaseException) -> Callable[[int], None]:
    def at_trial(current: int) -> None:
        if current == number:
            raise error

    return at_trial


class OlderKernelTrials(FakeTrials):
    """Trials by a kernel that states no peak."""

    rss_bytes = 270 * MIB

    def measure(self, limit_bytes: int | None) -> LimitPoint:
        return msgspec.structs.replace(super().measure(limit_bytes), peak_bytes=None)


@pytest.mark.parametrize("trials", [FakeTrials, OlderKernelTrials])
def test_the_record_has_the_limits_and_a_suggestion(trials: type[FakeTrials]) -> None:
    limit = found(trials())
    assert limit.smallest_bytes is not None
    assert 200 * MIB <= limit.smallest_bytes <= 207 * MIB
    assert limit.comfortable_bytes == limit.smallest_bytes
    assert limit.request_bytes == limit.smallest_bytes + 12 * MIB
    assert limit.limit_bytes == pytest.approx(1.2 * limit.request_bytes, abs=MIB)
    assert limit.is_measured_under_limits
    assert len(limit.unlimited) == 2
    assert limit.uncounted_bytes == 12 * MIB
    assert limit.notes == ()
    assert limit.message == ""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (GroupRemovedError("the control group g was removed."), "the control group g was removed."),
        (NoGroupError("g: no permission."), "g: no permission."),
    ],
)
def test_a_search_that_ends_early_keeps_its_result(error: BaseException, message: str) -> None:
    limit = found(FakeTrials(raise_at(5, error)))
    assert limit.message == message
    assert len(limit.points) == 4
    assert limit.smallest_bytes is not None
    assert any("was tried only 1 time, and not 3 times" in note for note in limit.notes)


def test_a_search_that_ends_before_any_limit_suggests_the_peak() -> None:
    limit = found(FakeTrials(raise_at(2, KeyboardInterrupt())))
    assert (limit.smallest_bytes, limit.comfortable_bytes) == (None, None)
    assert not limit.is_measured_under_limits
    assert limit.request_bytes == (280 + 12) * MIB


def test_the_time_limit_ends_the_search() -> None:
    limit = found(FakeTrials(), Deadline(0.0))
    assert limit.message == "the time limit was reached"
    assert len(limit.points) == 1


@pytest.mark.parametrize(("reread", "attempts"), [(0, 2), (3 * 64 * MIB, 2), (5 * 64 * MIB, 1)])
def test_a_trial_that_other_work_slowed_down_is_made_again(reread: int, attempts: int) -> None:
    timeouts = []

    class SlowTrials(FakeTrials):
        def measure(self, limit_bytes: int | None) -> LimitPoint:
            if limit_bytes is None:
                return super().measure(None)
            timeouts.append(self.timeout_s)
            return LimitPoint(
                limit_bytes=limit_bytes,
                outcome="timeout",
                peak_bytes=None,
                load_refault_bytes=reread,
            )

    limit = found(SlowTrials(), at_bytes=(64 * MIB,))
    assert limit.trial_timeout_s is not None
    assert timeouts == [limit.trial_timeout_s, 4 * limit.trial_timeout_s][:attempts]


def test_given_limits_are_tried_instead_of_a_search() -> None:
    limit = found(FakeTrials(), at_bytes=(100 * MIB, 210 * MIB, 512 * MIB))
    assert [point.limit_bytes for point in limit.limited] == [100 * MIB, 210 * MIB, 512 * MIB]
    assert [point.is_completed for point in limit.limited] == [False, True, True]
    assert limit.smallest_bytes == 210 * MIB
    assert not any("was tried only" in note for note in limit.notes)


def test_a_given_limit_above_the_peak_is_not_suggested() -> None:
    limit = found(FakeTrials(), at_bytes=(900 * MIB,))
    assert limit.smallest_bytes == 900 * MIB
    assert limit.request_bytes == (280 + 12) * MIB
    assert not limit.is_measured_under_limits


def test_a_nested_limit_is_named(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{256 * MIB}\n")
    (tmp_path / "memory.current").write_text("0\n")
    parent = ParentGroup(folder=tmp_path, version=2)
    search = LimitSearch(FakeTrials(), FakeTrials().measure(None), 1.0)
    record = search.record(parent, subject="m", kind="program", duration_s=1.0)
    assert any("is itself limited to 256 MiB" in note for note in record.notes)
    killed = LimitPoint(limit_bytes=None, outcome="killed", peak_bytes=None, message="killed")
    with pytest.raises(MeasurementError, match=r"limited to 256 MiB\. Run memdiag limit outside"):
        require_completed_trial(killed, "m", parent)


def test_what_does_not_work_without_a_limit_is_an_error() -> None:
    failed = LimitPoint(
        limit_bytes=None, outcome="failed", phase="parse", peak_bytes=None, message="bad"
    )
    with pytest.raises(
        MeasurementError, match=r"m: it does not work without a limit either in parse: bad"
    ):
        require_completed_trial(failed, "m", PARENT)


@pytest.mark.parametrize(
    ("program", "limits", "message"),
    [
        (["true"], {"time_limit_s": 0}, "time_limit_s must be greater than 0, not 0."),
        (["true"], {"at_bytes": [0]}, "at_bytes: a limit must be greater than 0"),
        ([], {}, "no program after --"),
        (["no-such-program"], {}, "no-such-program is not a program"),
    ],
)
def test_arguments_are_checked(program: list[str], limits: Any, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        limit_program(program, **limits)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("times", "timeout_s"),
    [
        ({}, 1800.0),
        ({"duration_s": 3600.0}, 5400.0),
        ({"time_limit_s": 60.0}, 1800.0),
        ({"time_limit_s": 7200.0}, 7200.0),
        ({"duration_s": 3600.0, "time_limit_s": 7200.0}, 10_800.0),
    ],
)
def test_a_trial_may_take_as_long_as_the_program_and_the_search(
    times: dict[str, float], timeout_s: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timeouts: list[float] = []

    class ProgramTrials(FakeTrials):
        escaped: int | None = None

        def __init__(self, *, timeout_s: float, **settings: object) -> None:
            super().__init__()
            timeouts.append(timeout_s)

    monkeypatch.setattr(
        program_api, "parent_group", lambda: ParentGroup(folder=tmp_path, version=2)
    )
    monkeypatch.setattr(program_api, "ProgramTrials", ProgramTrials)
    limit = limit_program(["true"], at_bytes=[400 * MIB], **times)  # type: ignore[arg-type]
    assert limit.smallest_bytes == 400 * MIB
    assert timeouts == [timeout_s]
    assert longest_trial_s(times.get("time_limit_s")) == timeout_s - times.get("duration_s", 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("limit") / "plain.onnx"
    plain_mlp.build(32, path, external=False)
    return path


def test_a_model_works_in_its_limit_and_is_killed_below(model: Path) -> None:
    parent = usable_parent()
    limit = memdiag.limit(model, runs=1, at_bytes=[40 * MIB, 400 * MIB])
    small, large = limit.limited
    assert not small.is_completed
    assert small.phase
    assert large.is_completed
    assert large.load_s is not None
    assert large.latency_s is not None
    assert limit.smallest_bytes == 400 * MIB
    assert limit.group_version == parent.version
    assert limit.counted is not None
    assert limit.counted.anonymous_bytes > 30 * MIB
    assert limit.onnxruntime
    assert not [*parent.folder.glob(f"{own_prefix()}*")]


def test_without_a_group_the_peak_is_measured_and_estimated(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> ParentGroup:
        raise NoGroupError(REFUSAL)

    monkeypatch.setattr(limit_api, "parent_group", refuse)
    monkeypatch.setattr(program_api, "parent_group", refuse)
    limit = memdiag.limit(model, runs=1)
    assert limit.message == REFUSAL
    assert limit.smallest_bytes is None
    assert limit.measured_peak_bytes is not None
    assert limit.estimated_bytes is not None
    assert limit.request_bytes >= max(limit.measured_peak_bytes, limit.estimated_bytes)
    with pytest.raises(NoGroupError, match="memdiag run -- true measures the peak"):
        limit_program(["true"])

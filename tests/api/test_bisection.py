import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import memdiag
from memdiag.api.comparing import column_growth
from memdiag.api.comparing.column_plans import ColumnPlan
from memdiag.api.comparing.version_search import VersionSearch, bisect_versions
from memdiag.api.leak import LeakConfig
from memdiag.comparison import runtimes
from memdiag.errors import MeasurementError, ModelError, UsageError
from memdiag.records.comparison import ComparisonColumn
from memdiag.records.growth import Growth
from memdiag.runner.job import InputConfig, Job
from memdiag.units import MIB
from tests.api.small_models import save_model
from tests.comparison.columns import column, measured
from tests.reports import growths

LEAKED_BYTES = 5000

# An onnxruntime that leaks a block of malloc in each run.
LEAKING = f"""
import ctypes, sys
here = __name__
sys.path = [path for path in sys.path if path != {{folder!r}}]
del sys.modules[here]
import onnxruntime
malloc = ctypes.CDLL(None).malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
run = onnxruntime.InferenceSession.run
def leaking(self, *arguments):
    malloc({LEAKED_BYTES})
    return run(self, *arguments)
onnxruntime.InferenceSession.run = leaking
sys.modules[here] = onnxruntime
"""

VERSIONS = [f"1.{minor}.0" for minor in range(15, 32)]


def search(steady: Callable[[str], float | None]) -> tuple[tuple[str, str] | None, list[str]]:
    """Bisect versions whose steady memory in MiB is given; None: it cannot be measured."""
    asked: list[str] = []

    def measure(version: str) -> ComparisonColumn | None:
        asked.append(version)
        size = steady(version)
        return None if size is None else column(version, measured(1000, size))

    def differs(one: ComparisonColumn, other: ComparisonColumn) -> bool:
        assert one.measured is not None
        assert other.measured is not None
        return abs(one.measured.steady.median - other.measured.steady.median) > 100 * MIB

    found = bisect_versions(VERSIONS, measure, differs)
    return (found[0].label, found[1].label) if found else None, asked


@pytest.mark.parametrize("jump", range(1, len(VERSIONS)))
def test_the_version_of_the_jump_is_found(jump: int) -> None:
    later = VERSIONS[jump:]
    found, asked = search(lambda version: 1000 if version in later else 500)
    assert found == (VERSIONS[jump - 1], VERSIONS[jump])
    assert len({*asked}) <= 7  # two ends, and the logarithm of what is between


def test_without_a_jump_only_the_ends_are_measured() -> None:
    found, asked = search(lambda version: 500)
    assert found is None
    assert asked == [VERSIONS[0], VERSIONS[-1]]


def test_versions_that_cannot_be_measured_are_passed_over() -> None:
    dead = {VERSIONS[0], VERSIONS[8], VERSIONS[9], VERSIONS[-1]}
    later = VERSIONS[9:]
    found, _ = search(
        lambda version: None if version in dead else 1000 if version in later else 500
    )
    assert found == (VERSIONS[7], VERSIONS[10])


def test_with_nothing_to_measure_nothing_is_found() -> None:
    assert search(lambda version: None)[0] is None
    assert search(lambda version: 500 if version == VERSIONS[3] else None)[0] is None


@pytest.fixture
def leaking_python(tmp_path: Path) -> Path:
    """An interpreter whose onnxruntime leaks `LEAKED_BYTES` in each run."""
    folder = tmp_path / "leaking"
    (folder / "onnxruntime").mkdir(parents=True)
    (folder / "onnxruntime" / "__init__.py").write_text(LEAKING.format(folder=str(folder)))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.slow
@pytest.mark.usefixtures("equal_latency")
def test_the_version_in_which_growth_begins_is_found(
    tmp_path: Path, leaking_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[8] x) => (float[8] y) { y = Abs(x) }"
    model = save_model(tmp_path / "model.onnx", text)
    pythons = {"1.1.0": Path(sys.executable), "1.2.0": leaking_python}
    monkeypatch.setattr(runtimes, "registry_versions", lambda: tuple(pythons))
    monkeypatch.setattr(runtimes, "runtime_interpreter", pythons.__getitem__)
    found = memdiag.compare(model, bisect="growth", repeats=1, runs=80, xray=False)
    assert found.bisection is not None
    assert (found.bisection.before, found.bisection.after) == ("1.1.0", "1.2.0")
    clean, leaking = (each.growth for each in found.columns)
    assert clean is not None
    assert (clean.verdict, clean.owner, clean.slope, clean.runs) == ("flat", None, None, 80)
    assert leaking is not None
    assert leaking.slope is not None
    assert (leaking.verdict, leaking.owner) == ("leak", "heap")
    # malloc adds up to 16 bytes to each block; the interpreter takes a little more in some runs.
    assert LEAKED_BYTES <= leaking.slope.bytes_per_unit <= LEAKED_BYTES + 100
    (change,) = [each for each in found.changes if each.metric == "growth"]
    assert change.bytes == round(leaking.slope.bytes_per_unit)


def test_too_few_runs_for_growth_are_refused() -> None:
    with pytest.raises(UsageError, match="runs must be at least 40"):
        memdiag.compare("model.onnx", bisect="growth", runs=39)


def test_a_damaged_model_is_not_tried_on_any_release(tmp_path: Path) -> None:
    model = tmp_path / "damaged.onnx"
    model.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"damaged\.onnx: "):
        memdiag.compare(model, bisect="growth", onnxruntime=["1.1.0", "1.2.0"])


def grown(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], object]) -> ComparisonColumn:
    monkeypatch.setattr(column_growth, "observe_model", lambda model, config: answer())
    job = Job(model=Path("model.onnx"))
    return column_growth.with_growth(column("1.2.0"), job, InputConfig(), 40)


class FakeSideBySide:
    """Measures every version; `broken` ones end in a failure."""

    def __init__(self, broken: str) -> None:
        self.inputs, self.ended_by = InputConfig(), "completion"
        self._broken = broken

    def measure(self, plans: Sequence[ColumnPlan]) -> list[ComparisonColumn]:
        found = column(plans[0].label)
        is_broken = plans[0].label == self._broken
        return [msgspec.structs.replace(found, measured=None) if is_broken else found]


def test_versions_whose_growth_is_not_known_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts = {
        "1.1.0": "leak",
        "1.2.0": "leak",
        "1.3.0": "undecided",
        "1.4.0": "plateau",
        "1.5.0": "flat",
        "1.6.0": "flat",
    }
    asked: list[str] = []

    def observe(model: Path, config: LeakConfig) -> Growth:
        version = str(config.session.python)
        asked.append(version)
        assert config.runs == 200
        return msgspec.structs.replace(growths.VERDICTS[verdicts[version]](), message="")

    monkeypatch.setattr(column_growth, "observe_model", observe)
    monkeypatch.setattr(runtimes, "registry_versions", lambda: tuple(verdicts))
    monkeypatch.setattr(runtimes, "runtime_interpreter", Path)
    search = VersionSearch(
        job=Job(model=Path("model.onnx")),
        metric="growth",
        side_by_side=FakeSideBySide(broken="1.6.0"),  # type: ignore[arg-type] # measure and inputs
        on_progress=lambda step: None,
        growth_runs=200,
    )
    columns, bisection = search.run([])
    assert bisection is not None
    assert (bisection.before, bisection.after, bisection.candidates) == ("1.2.0", "1.4.0", 6)
    assert sorted(asked) == ["1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0"]
    assert [each.label for each in columns] == list(verdicts)


def test_growth_that_ended_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = grown(monkeypatch, growths.VERDICTS["plateau"]).growth
    assert found is not None
    assert (found.verdict, found.owner, found.slope) == ("plateau", None, None)


def test_growth_that_is_not_known_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> object:
        raise MeasurementError("model.onnx: a run failed.")

    def ended_early() -> object:
        return msgspec.structs.replace(growths.VERDICTS["leak"](), message="a run failed")

    for answer, reason in ((failed, "model.onnx: a run failed."), (ended_early, "a run failed")):
        found = grown(monkeypatch, answer)
        assert found.growth is None
        assert found.message == f"its growth is not known: {reason}"


def test_an_interrupt_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        grown(monkeypatch, lambda: SimpleNamespace(message="interrupted after 42 runs"))

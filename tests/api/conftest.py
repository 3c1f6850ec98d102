"""Searches that take seconds: models that are not measured, few rewrites, few options."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

import pytest

from memdiag.records.measured_change import Figures
from memdiag.rewrites import rewriters_among
from memdiag.rewrites.rewrite import Rewriter
from memdiag.runner.job import Job
from memdiag.tuning.tuning_options import tuning_options
from memdiag.verify.model_evaluator import InputSet
from tests.fixing.scripted_evaluator import ScriptedEvaluator


class HalvingEvaluator(ScriptedEvaluator):
    """Stands for `ModelEvaluator`: every changed model takes half of the original's memory."""

    changed_mib = 50

    def __init__(
        self, job: Job, input_sets: Sequence[InputSet], scratch: Path, disk_bytes: int
    ) -> None:
        super().__init__(job, {"changed": self.changed_mib})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure_both(self, job: Job, times: int, **how: object) -> tuple[Figures, Figures]:
        return self.before, self._figures(job)

    def _name(self, job: Job) -> str:
        return "original" if job.model == self.job.model else "changed"


@pytest.fixture
def halved_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every rewrite halve the memory, at no cost: no process is started to measure it."""
    monkeypatch.setattr("memdiag.api.original_model.ModelEvaluator", HalvingEvaluator)


@pytest.fixture
def unchanged_memory(halved_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no change save memory; no process is started to measure it."""
    monkeypatch.setattr(HalvingEvaluator, "changed_mib", 100)


@pytest.fixture
def two_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave two of the rewrites for a tied weight, so that a test takes seconds."""

    def chosen(remedies: Iterable[str]) -> tuple[Rewriter, ...]:
        wanted = ("overridable-weight", "gemm-transposed")
        return rewriters_among(name for name in remedies if name in wanted)

    monkeypatch.setattr("memdiag.fixing.changes.rewriters_among", chosen)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that leaves only the options named, so that a test takes seconds."""

    def choose(*names: str) -> None:
        chosen = tuple(one for one in tuning_options() if one.name in names)
        assert len(chosen) == len(names)
        monkeypatch.setattr("memdiag.api.fix_scope.tuning_options", lambda: chosen)

    return choose

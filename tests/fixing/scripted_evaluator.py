"""An evaluator with figures that a test sets: nothing is measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import onnx

from memdiag.errors import MeasurementError
from memdiag.records.measured_change import Figures
from memdiag.runner.job import Job
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from memdiag.verify.model_evaluator import ModelEvaluation
from memdiag.verify.outputs import Bound
from tests.tuning.scripted_search import figures


@dataclass
class ScriptedEvaluator:
    """Stands for `ModelEvaluator`: figures by the name of a model's graph.

    Attributes:
        sizes: memory in MiB; 100 where not set.
        ratios: ratios of latencies; 1 where not set.
        later: the same from the second time on.
        broken: models that do not run.
        ends: exceptions that end the work, after `ends_after` measurements of the model.
        measured, compared: the models that were measured and compared.
    """

    job: Job
    sizes: dict[str, float]
    ratios: dict[str, float] = field(default_factory=dict)
    later: dict[str, float] = field(default_factory=dict)
    broken: Sequence[str] = ()
    ends: dict[str, type[BaseException]] = field(default_factory=dict)
    ends_after: int = 0
    further_sizes: tuple[str, ...] = ()
    notes: Sequence[str] = ()
    onnxruntime: str = "1.31.1"
    session_s: float = 0.0
    quickest_s: float = 2.0
    session_count: int = 0
    device: None = None
    measured: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)

    @property
    def before(self) -> Figures:
        return self._figures(self.job)

    def renew_original(self) -> None:
        """Nothing differs from session to session."""

    def applicable_bound(self, bound: Bound) -> Bound:
        return bound

    def memory_s(self, processes: int) -> float:
        return 10.0 * processes

    def comparison_s(self, pairs: int) -> float:
        return 1.0 * pairs

    def measure(self, job: Job, times: int, *, disk_bytes: int) -> Figures:
        name = self._name(job)
        self._may_end(name)
        self.measured.append(name)
        if name in self.broken:
            raise MeasurementError(f"{job.model}: it ended.")
        return self._figures(job)

    def evaluate(self, job: Job, bound: Bound, **how: Any) -> ModelEvaluation:
        name = self._name(job)
        self._may_end(name)
        ratio = self.ratios.get(name, 1.0)
        if name in self.later:
            self.ratios[name] = self.later[name]
        self.compared.append(name)
        found = LatencyComparison(1.0, ratio, LatencyRatio(ratio, ratio, ratio, 15))
        return ModelEvaluation(problem=None, comparisons=(("size 1", found),))

    def _may_end(self, name: str) -> None:
        if name in self.ends:
            if not self.ends_after:
                raise self.ends[name]
            self.ends_after -= 1

    def _name(self, job: Job) -> str:
        return onnx.load(job.model, load_external_data=False).graph.name

    def _figures(self, job: Job) -> Figures:
        taken = figures(self.sizes.get(self._name(job), 100))
        return msgspec.structs.replace(taken, load_s=1.0, latency_s=1.0, disk_bytes=100)

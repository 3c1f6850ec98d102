"""The original of a search: its file, its inputs, and the evaluator of changed models."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from memdiag.api.comparison_inputs import ComparisonInputs, find_comparison_inputs
from memdiag.errors import MeasurementError
from memdiag.model.model_file import ModelFile
from memdiag.runner.failure_text import CUSTOM_OPS_OPTION
from memdiag.runner.job import InputConfig, Job
from memdiag.runner.temporary import temporary_folder
from memdiag.verify.model_evaluator import ModelEvaluator


@dataclass(frozen=True, kw_only=True)
class OriginalModel:
    """The original model of a search, with which changed models are compared.

    Attributes:
        file: the open model.
        job: its session.
        scratch: a folder for files of the search.
        inputs: the inputs that it runs with.
        evaluator: compares changed models with the original; None if it runs with no generated
            inputs.
    """

    file: ModelFile
    job: Job
    scratch: Path
    inputs: ComparisonInputs
    evaluator: ModelEvaluator | None

    def not_runnable(self, alternative: str = "") -> MeasurementError:
        """Return the error for a model without an evaluator, which names an `alternative`."""
        trial = self.inputs.trial
        assert trial is not None
        if not trial.has_answer:
            problem = "the model does not run here"
            action = "Free memory, or use smaller inputs with --dim"
        elif CUSTOM_OPS_OPTION in (trial.problem or ""):
            return MeasurementError(f"{self.file.path}: {trial.problem}.")
        elif not trial.has_session:
            problem = "the session cannot be created"
            action = "Try another release of onnxruntime"
        else:
            problem = "the model does not run with these inputs"
            action = "Use --dim or --input"
        return MeasurementError(
            f"{self.file.path}: {problem} ({trial.problem}). {action}{alternative}."
        )


def measured_original(
    exits: ExitStack,
    model_file: ModelFile,
    job: Job,
    config: InputConfig,
    *,
    sizes: Sequence[int] | None,
    report_progress: Callable[[str], None],
) -> OriginalModel:
    """Find inputs for `model_file`, and measure it; its session is open until `exits` closes.

    Raises:
        MeasurementError: the model runs, but not in the process in which it is measured.
        TimeLimitReached: the deadline of `job` passed.
    """
    scratch = exits.enter_context(temporary_folder())
    report_progress("finding inputs that the model runs with")
    inputs = find_comparison_inputs(model_file, job, scratch / "inputs", config, sizes=sizes)
    if not inputs.sets:
        return OriginalModel(
            file=model_file, job=job, scratch=scratch, inputs=inputs, evaluator=None
        )
    report_progress("measuring the original")
    disk_bytes = sum(file.stat().st_size for file in model_file.files)
    evaluator = exits.enter_context(ModelEvaluator(job, inputs.sets, scratch, disk_bytes))
    return OriginalModel(
        file=model_file, job=job, scratch=scratch, inputs=inputs, evaluator=evaluator
    )

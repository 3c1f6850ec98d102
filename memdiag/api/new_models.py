"""The models that take the original's place: the rewritten one, and one of each optimizer."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from memdiag.api.arguments import OnProgress
from memdiag.api.fix import EvaluatedFix
from memdiag.api.optimizer_outputs import OptimizerOutputs, optimizer_names
from memdiag.errors import ReportError
from memdiag.fixing.model_writer import ModelWriter
from memdiag.paths import path_text
from memdiag.records.fix import Fix
from memdiag.records.tuning import REWRITE, Point
from memdiag.runner.job import Deadline
from memdiag.tuning.options import TuningOption
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.record import Publication, rewrite_option


class NewModels:
    """Offers new models as options of a search, and publishes the one that is chosen.

    Args:
        writer: wrote the rewritten model, staged, and publishes.
        fixed: the fix that rewrote it.
        optimizers: writes the models of optimizers.

    Attributes:
        rewrite: the option to load the rewritten model; None if there is none.
    """

    def __init__(
        self, writer: ModelWriter, fixed: EvaluatedFix, optimizers: OptimizerOutputs
    ) -> None:
        self._writer, self._optimizers = writer, optimizers
        self._fixed, self._evaluation = fixed
        self.rewrite: TuningOption | None = None
        if self._fixed.output is not None:
            self.rewrite = rewrite_option(self._fixed.output, optimizer_names())

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about optimizers that wrote nothing."""
        return self._optimizers.notes

    @property
    def untried(self) -> Sequence[str]:
        """The names of the optimizers for which there was no time."""
        return self._optimizers.untried

    def rewritten_point(self, point_evaluator: PointEvaluator) -> Point | None:
        """Return the point of the rewritten model as the fix compared it; None without one."""
        if self.rewrite is None:
            return None
        assert self._fixed.after is not None
        assert self._evaluation is not None
        return point_evaluator.known_point((self.rewrite,), self._fixed.after, self._evaluation)

    def without_hidden_names(self, text: str) -> str:
        """Return `text` in one line, without the names of models that are not published."""
        return self._writer.without_hidden_names(text)

    def write_with_optimizers(
        self, model: Path, folder: Path, deadline: Deadline, report_progress: OnProgress
    ) -> list[TuningOption]:
        """Return an option for each optimizer, which writes its model from `model` to `folder`.

        Raises:
            MeasurementError: this interpreter cannot be started.
        """
        name = self._writer.target_name
        return self._optimizers.write(model, name, folder, deadline, report_progress)

    def publish(self, chosen: Sequence[str]) -> Publication:
        """Publish the model among the options `chosen`, if there is one, and no other.

        Raises:
            ModelError: the original changed meanwhile.
        """
        if REWRITE in chosen:
            return self.publish_rewritten()
        optimized = self._optimizers.chosen_model(chosen)
        result = "another model" if optimized else "the original model"
        fixed = without_model(self._fixed, f"not used, since {result} was chosen")
        if optimized is None:
            self._writer.discard_staged()
            notes = self._writer.notes_on_unused_target()
            return Publication(msgspec.structs.replace(fixed, notes=(*fixed.notes, *notes)))

        def publish() -> None:
            try:
                self._writer.publish_copy(optimized)
            except ReportError:
                self._writer.discard_staged()  # there may be room for one model only
                self._writer.publish_copy(optimized)

        problem = self._problem_of(publish)
        self._writer.discard_staged()
        return Publication(fixed, self._writer.copy_targets(optimized), problem)

    def publish_rewritten(self) -> Publication:
        """Publish the fixed model, if there is one.

        Raises:
            ModelError: the original changed meanwhile.
        """
        if self._fixed.output is None:
            return Publication(self._fixed)
        files = map(path_text, self._writer.staged_targets)
        output_files = (*files, *self._fixed.kept_files)
        fixed = msgspec.structs.replace(
            self._fixed, output=output_files[0], output_files=output_files
        )
        return Publication(fixed, problem=self._problem_of(self._writer.publish_staged))

    def _problem_of(self, publish: Callable[[], object]) -> str:
        """Call `publish`; return why files could not be written, or an empty text.

        A Ctrl-C only ends the search, which still publishes its result: after the first one
        `publish` is called once more. A second one gives the model up.
        """
        for _ in range(2):
            try:
                publish()
            except ReportError as error:
                return str(error)
            except KeyboardInterrupt:
                if self._writer.has_published:
                    return ""
            else:
                return ""
        return "Ctrl-C came twice meanwhile. Run it again."


def without_model(fixed: Fix, why: str) -> Fix:
    """Return the record of a fix whose model is not a part of the result, for the reason `why`."""
    remedies = [
        msgspec.structs.replace(remedy, status="rejected", reason=f"{why} ({remedy.reason})")
        if remedy.status == "applied"
        else remedy
        for remedy in fixed.remedies
    ]
    return msgspec.structs.replace(
        fixed,
        output=None,
        output_files=(),
        kept_files=(),
        kept_bytes=0,
        remedies=tuple(remedies),
        is_valid=None,
        oldest_onnxruntime=None,
        oldest_reason="",
    )

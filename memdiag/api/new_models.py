"""The models that may replace the original: the rewritten one, and one from each optimizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from memdiag.api.arguments import OnProgress
from memdiag.api.optimizer_outputs import OptimizerOutputs, optimizer_names
from memdiag.errors import ReportError
from memdiag.fixing.candidates import RewrittenModel
from memdiag.fixing.model_writer import ModelWriter
from memdiag.fixing.rewrite_search import RewriteSearch
from memdiag.fixing.state import ChangesByRule, FixState
from memdiag.paths import path_text
from memdiag.records.fix import REWRITE, Point, Remedy
from memdiag.runner.job import Deadline
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.record import Publication, rewrite_option
from memdiag.tuning.tuning_options import TuningOption


@dataclass(kw_only=True)
class NewModels:
    """Writes new models, offers them as options of a search, and publishes the chosen one.

    Attributes:
        writer: stages the rewritten model, and publishes.
        state: the outcomes of the rewrites.
        rules: the rewrites to try.
        optimizers: writes the models of optimizers.
        rewritten: the rewritten model; None if there is none.
    """

    writer: ModelWriter
    state: FixState
    rules: ChangesByRule
    optimizers: OptimizerOutputs
    rewritten: RewrittenModel | None = field(init=False, default=None)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about rewriting, and about optimizers that wrote nothing."""
        return (*self.state.notes, *self.optimizers.notes)

    @property
    def saved_bytes(self) -> int:
        """The bytes of peak plus steady memory that the most promising rewrite may save."""
        return max((changes[0].saved_bytes for changes in self.rules), default=0)

    @property
    def is_cut_short(self) -> bool:
        """Whether something was not tried because the search ended early."""
        return self.state.ended_by != "completion" or bool(self.optimizers.untried)

    def rewrite(
        self, points: PointEvaluator, report_progress: OnProgress
    ) -> tuple[Point, TuningOption] | None:
        """Search for rewrites, and return the rewritten model as a point and its option.

        The point is compared. None if no rewrite is worth it.
        """
        if not self.rules:
            return None
        search = RewriteSearch(
            self.state,
            points.model_evaluator,
            points.max_slowdown,
            report_progress,
            end=self.state.deadline.at,
        )
        self.rewritten = search.run(self.rules)
        if self.rewritten is None:
            return None
        option = rewrite_option(
            path_text(self.rewritten.output.files[0]),
            excludes=optimizer_names(),
            same_kernels=self.rewritten.same_kernels,
        )
        figures, evaluation = self.rewritten.figures, self.rewritten.evaluation
        return points.known_point((option,), figures, evaluation), option

    def write_with_optimizers(
        self, model: Path, folder: Path, deadline: Deadline, report_progress: OnProgress
    ) -> list[TuningOption]:
        """Return an option for each optimizer, which writes its model from `model` to `folder`.

        Raises:
            MeasurementError: this interpreter cannot be started.
        """
        name = self.writer.target.name
        return self.optimizers.write(model, name, folder, deadline, report_progress)

    def publish(self, chosen: Sequence[str]) -> Publication:
        """Publish the model among the options `chosen`, if there is one, and no other.

        Raises:
            ModelError: the original changed during the search.
        """
        if REWRITE in chosen:
            return self.publish_rewritten()
        optimized_model = self.optimizers.chosen_model(chosen)
        result = "another model" if optimized_model else "the original model"
        remedies = _rejected_remedies(self.state.outcomes, f"{result} was chosen instead")
        if optimized_model is None:
            self.writer.discard_staged()
            notes = self.writer.notes_on_unused_target()
            return Publication(remedies=remedies, notes=notes)

        def publish() -> None:
            try:
                self.writer.publish_copy(optimized_model)
            except ReportError:
                self.writer.discard_staged()  # there may be room for one model only
                self.writer.publish_copy(optimized_model)

        problem = self._problem_of(publish)
        self.writer.discard_staged()
        files = tuple(map(path_text, self.writer.copy_targets(optimized_model)))
        return Publication(remedies=remedies, output_files=files, problem=problem)

    def publish_rewritten(self) -> Publication:
        """Publish the rewritten model, if there is one.

        Raises:
            ModelError: the original changed during the search.
        """
        if self.rewritten is None:
            return Publication(remedies=self.state.outcomes)
        rewritten_files = self.rewritten.output.built
        kept_files = tuple(map(path_text, rewritten_files.kept))
        return Publication(
            remedies=self.state.outcomes,
            output_files=(*map(path_text, self.writer.staged_targets), *kept_files),
            kept_files=kept_files,
            kept_bytes=rewritten_files.kept_bytes,
            is_valid=self.rewritten.is_valid,
            oldest_onnxruntime=str(rewritten_files.oldest.runtime)
            if rewritten_files.oldest.runtime
            else None,
            oldest_reason=rewritten_files.oldest.why,
            problem=self._problem_of(self.writer.publish_staged),
        )

    def _problem_of(self, publish: Callable[[], object]) -> str:
        """Call `publish`; return why files could not be written, or an empty text.

        Ctrl-C only ends the search, which still publishes its result: after the first Ctrl-C
        `publish` is called once more. A second Ctrl-C gives up the model.
        """
        for _ in range(2):
            try:
                publish()
            except ReportError as error:
                return str(error)
            except KeyboardInterrupt:
                if self.writer.has_published:
                    return ""
            else:
                return ""
        return "Ctrl-C came twice. Run it again."


def _rejected_remedies(remedies: Sequence[Remedy], reason: str) -> tuple[Remedy, ...]:
    """Return `remedies` with applied rewrites rejected for `reason`."""
    return tuple(
        msgspec.structs.replace(remedy, status="rejected", reason=f"{reason} ({remedy.reason})")
        if remedy.status == "applied"
        else remedy
        for remedy in remedies
    )

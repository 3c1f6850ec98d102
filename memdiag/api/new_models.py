"""The models that take the original's place: the rewritten one, and one of each optimizer."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from memdiag.api.arguments import OnProgress
from memdiag.api.optimizer_outputs import OptimizerOutputs
from memdiag.errors import ReportError
from memdiag.fixing.model_writer import ModelWriter
from memdiag.paths import path_text
from memdiag.records.fix import Fix
from memdiag.records.tuning import REWRITE
from memdiag.runner.job import Deadline
from memdiag.tuning.options import TuningOption
from memdiag.tuning.points import peak_plus_steady
from memdiag.tuning.record import NewModel, rewrite_option
from memdiag.tuning.search import OptionSearch


class NewModels:
    """Offers new models as options of a search, and publishes the one that is chosen.

    Args:
        writer: wrote the fixed model, staged, and publishes.
        fixed: the record of the fix.
        optimizers: writes the models of optimizers.
    """

    def __init__(self, writer: ModelWriter, fixed: Fix, optimizers: OptimizerOutputs) -> None:
        self._writer, self._fixed, self._optimizers = writer, fixed, optimizers

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about optimizers that wrote nothing."""
        return self._optimizers.notes

    @property
    def untried(self) -> Sequence[str]:
        """The names of the optimizers for which there was no time."""
        return self._optimizers.untried

    @property
    def measured_savings(self) -> dict[str, int]:
        """The bytes of peak plus steady memory that the fix saved, by the name of its option."""
        before, after = self._fixed.before, self._fixed.after
        if before is None or after is None:
            return {}
        return {REWRITE: peak_plus_steady(before) - peak_plus_steady(after)}

    def without_hidden_names(self, text: str) -> str:
        """Return `text` in one line, without the names of models that are not published."""
        return self._writer.without_hidden_names(text)

    def options(
        self, model: Path, folder: Path, deadline: Deadline, report_progress: OnProgress
    ) -> list[TuningOption]:
        """Return an option for each new model; optimizers write theirs from `model` to `folder`.

        Raises:
            MeasurementError: this interpreter cannot be started.
        """
        found = self._optimizers.write(
            model, self._writer.target_name, folder, deadline, report_progress
        )
        if self._fixed.output is not None:
            found.append(rewrite_option(self._fixed.output, [each.name for each in found]))
        return found

    def publish(self, search: OptionSearch) -> NewModel:
        """Publish the model of the chosen point, or the rewritten one if that may still be chosen.

        Raises:
            ModelError: the original changed meanwhile.
        """
        chosen = search.chosen.options
        optimized = self._optimizers.written(chosen)
        if optimized is None and (REWRITE in chosen or search.may_still_choose(REWRITE)):
            return self.publish_rewritten()
        fixed = without_model(self._fixed)
        if optimized is None:
            notes = self._writer.notes_on_unused_target()
            return NewModel(msgspec.structs.replace(fixed, notes=(*fixed.notes, *notes)))

        def publish() -> None:
            self._writer.discard_staged()  # there may be room for one model only
            self._writer.publish_copy(optimized)

        return NewModel(fixed, self._writer.copy_targets(optimized), _problem_of(publish))

    def publish_rewritten(self) -> NewModel:
        """Publish the fixed model, if there is one.

        Raises:
            ModelError: the original changed meanwhile.
        """
        if self._fixed.output is None:
            return NewModel(self._fixed)
        files = map(path_text, self._writer.staged_targets)
        output_files = (*files, *self._fixed.kept_files)
        fixed = msgspec.structs.replace(
            self._fixed, output=output_files[0], output_files=output_files
        )
        return NewModel(fixed, problem=_problem_of(self._writer.publish_staged))


def without_model(fixed: Fix) -> Fix:
    """Return the record of a fix whose model is not a part of the result."""
    remedies = [
        msgspec.structs.replace(
            remedy, status="rejected", reason=f"not in the best combination ({remedy.reason})"
        )
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


def _problem_of(publish: Callable[[], object]) -> str:
    """Call `publish`; return why files could not be written, or an empty text."""
    try:
        publish()
    except ReportError as error:
        return str(error)
    except KeyboardInterrupt:
        return "Ctrl-C came meanwhile. Run it again."
    return ""

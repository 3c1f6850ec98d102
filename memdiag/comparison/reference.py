"""The session of the first column, with which the sessions of the others are compared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from memdiag.runner.job import Job
from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import LatencyComparison, compare_latency
from memdiag.verify.model_evaluator import InputSet
from memdiag.verify.outputs import Difference, SavedOutputs, compare_outputs, unstable_outputs

INTERLEAVED_PAIRS = 25
MAX_INTERLEAVED_S = 20.0


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """Outputs and latency of a session, compared with the first session's.

    Attributes:
        largest: the largest difference of an output that both have; None if they share none.
        missing: the outputs that only the first has.
        added: the outputs that only this session has.
        interleaved: the latencies of alternating runs.
        failure: why outputs and latency were not compared; empty if they were.
    """

    largest: Difference | None = None
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    interleaved: LatencyComparison | None = None
    failure: str = ""


class ReferenceSession:
    """A session of `job` with its outputs for several sets of inputs; a context manager.

    Args:
        job: the model and configuration of the first column.
        sets: the sets of inputs.
        scratch: a folder for the outputs.

    Attributes:
        unstable: names of outputs that differ from run to run, which are not compared.

    Raises:
        MeasurementError: the model does not run.
    """

    def __init__(self, job: Job, sets: Sequence[InputSet], scratch: Path) -> None:
        self._feeds = [trial.feeds for trial in sets]
        self._scratch = scratch
        self._count = 0
        self._server = SessionServer(replace(job, runs=None), self._feeds)
        try:
            self._outputs = self._save_set_outputs(self._server)
            self.unstable = unstable_outputs(self._outputs, self._save_set_outputs(self._server))
        except BaseException:
            self._server.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.close()

    def compare(self, job: Job, timed: int) -> OutputComparison:
        """Compare the outputs of `job`, and its latency with the set of inputs at index `timed`.

        Raises:
            MeasurementError: the model does not run.
        """
        with SessionServer(replace(job, runs=None), self._feeds) as server:
            outputs = self._save_set_outputs(server)
            first_names, names = self._outputs[0].keys(), outputs[0].keys()
            differences = [
                difference
                for before, after in zip(self._outputs, outputs, strict=True)
                for difference in compare_outputs(before, after)
                if difference.output in names and difference.output not in self.unstable
            ]
            interleaved = compare_latency(
                self._server, server, timed, pairs=INTERLEAVED_PAIRS, max_s=MAX_INTERLEAVED_S
            )
        return OutputComparison(
            largest=max(differences, key=_relative_difference, default=None),
            missing=tuple(sorted(first_names - names)),
            added=tuple(sorted(names - first_names)),
            interleaved=interleaved,
        )

    def _save_set_outputs(self, server: SessionServer) -> list[SavedOutputs]:
        folder = self._scratch / f"outputs-{self._count}"
        self._count += 1
        return [server.save(index, folder / str(index)) for index in range(len(self._feeds))]


def _relative_difference(difference: Difference) -> float:
    return difference.relative

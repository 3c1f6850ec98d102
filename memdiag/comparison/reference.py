"""The first column's session, beside which those of the others compute and race."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from memdiag.runner.job import Job
from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import LatencyComparison, compare_latency
from memdiag.verify.model_evaluator import InputSet
from memdiag.verify.outputs import Difference, SavedOutputs, compare_outputs, unstable_outputs

_PAIRS = 25
_RACE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """Outputs and latency of a session, compared with the first session's.

    Attributes:
        largest: the largest difference of an output that both have; None if they share none.
        missing: the outputs that only the first has.
        added: the outputs that only this one has.
        raced: the latencies of alternating runs.
        why: why outputs and latency were not compared; empty if they were.
    """

    largest: Difference | None = None
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    raced: LatencyComparison | None = None
    why: str = ""


class Reference:
    """Holds the session of `job` and its outputs for `sets` of inputs; a context manager.

    `random` are the outputs that differ from run to run: they are not compared.

    Raises:
        MeasurementError: it does not run.
    """

    def __init__(self, job: Job, sets: Sequence[InputSet], scratch: Path) -> None:
        self._feeds = [trial.feeds for trial in sets]
        self._scratch = scratch
        self._count = 0
        self._server = SessionServer(replace(job, runs=None), self._feeds)
        try:
            self._outputs = self._save(self._server)
            self.random = unstable_outputs(self._outputs, self._save(self._server))
        except BaseException:
            self._server.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()

    def beside(self, job: Job, timed: int) -> OutputComparison:
        """Return how the outputs, and the latency with the inputs of index `timed`, compare.

        Raises:
            MeasurementError: it does not run.
        """
        with SessionServer(replace(job, runs=None), self._feeds) as other:
            saved = self._save(other)
            first, own = self._outputs[0].keys(), saved[0].keys()
            differences = [
                each
                for before, after in zip(self._outputs, saved, strict=True)
                for each in compare_outputs(before, after)
                if each.output in own and each.output not in self.random
            ]
            raced = compare_latency(self._server, other, timed, pairs=_PAIRS, budget_s=_RACE_S)
        return OutputComparison(
            largest=max(differences, key=_size, default=None),
            missing=tuple(sorted(first - own)),
            added=tuple(sorted(own - first)),
            raced=raced,
        )

    def _save(self, server: SessionServer) -> list[SavedOutputs]:
        folder = self._scratch / f"outputs-{self._count}"
        self._count += 1
        return [server.save(index, folder / str(index)) for index in range(len(self._feeds))]


def _size(difference: Difference) -> float:
    return difference.relative

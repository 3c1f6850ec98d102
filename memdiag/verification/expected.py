"""What a model must give to be as good as the original: interface and outputs."""

from math import inf
from pathlib import Path

from memdiag.measurement.server import Server
from memdiag.verification.outputs import Bound, Difference, Saved, compare, unstable


class Expected:
    """What the original's session, `server`, computes with inputs 0 to `count` - 1.

    Outputs are saved below `folder`. `unstable` are those that are random.

    Raises:
        MeasurementError: it does not run.
    """

    def __init__(self, server: Server, count: int, folder: Path) -> None:
        self._count, self._folder = count, folder
        self._signature = server.signature
        self._outputs = self._save(server, "original")
        self.unstable = unstable(self._outputs, self._save(server, "other"))

    def met(self, server: Server, bound: Bound) -> tuple[str | None, Difference | None]:
        """Return what is wrong with another session, and its largest difference of any output.

        Raises:
            MeasurementError: it does not run.
        """
        if server.signature != self._signature:
            return "its inputs, outputs or metadata are others", None
        differences = [
            difference
            for before, after in zip(self._outputs, self._save(server, "other"), strict=True)
            for difference in compare(before, after)
            if difference.output not in self.unstable
        ]
        worst = max(differences, key=lambda one: one.relative, default=None)
        wrong = worst is not None and worst.relative > bound.relative
        return _problem(worst, bound) if worst is not None and wrong else None, worst

    def _save(self, server: Server, name: str) -> list[Saved]:
        return [
            server.save(index, self._folder / f"{name}-{index}") for index in range(self._count)
        ]


def _problem(worst: Difference, bound: Bound) -> str:
    if worst.relative == inf:
        return f"output {worst.output} {worst.reason or 'differs from zeros'}"
    return (
        f"output {worst.output} differs by {worst.relative:.1e} of its largest value"
        f" (bound {bound.relative:.1e}: {bound.why})"
    )

"""Whether a changed model gives the same as the original on other releases of onnxruntime too."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memdiag.errors import MeasurementError, UsageError
from memdiag.runner.child import child_environment
from memdiag.runner.job import Job
from memdiag.runner.session_server import SessionServer
from memdiag.verify.bench import Trial
from memdiag.verify.expected import Expected
from memdiag.verify.outputs import Bound

_TIMEOUT_S = 60.0
_VERSION = "import numpy, onnxruntime; print(onnxruntime.__version__)"


class OtherRuntimes:
    """The original's outputs on the runtimes of other interpreters, for the inputs of `trials`.

    `versions` are those on which models are compared; `notes` say on which they cannot be, for the
    original does not run there.

    Raises:
        UsageError: an interpreter cannot be started, or has no onnxruntime.
    """

    def __init__(
        self, pythons: Sequence[Path], job: Job, trials: Sequence[Trial], scratch: Path
    ) -> None:
        self._feeds = [trial.feeds for trial in trials]
        self._expected: dict[Path, Expected] = {}
        self.notes: list[str] = []
        known = {python: _version_of(python) for python in pythons}
        for number, (python, version) in enumerate(known.items()):
            try:
                with self._server(job, python) as server:
                    folder = scratch / f"runtime-{number}"
                    self._expected[python] = Expected(server, len(self._feeds), folder)
            except MeasurementError as error:
                self.notes.append(
                    f"onnxruntime {version} does not run the original, so that nothing is verified"
                    f" on it ({error})"
                )
        self._versions = {python: known[python] for python in self._expected}
        self.versions = tuple(self._versions.values())

    def problem(self, job: Job, bound: Bound) -> str | None:
        """Return what is wrong with another model on one of the runtimes; None if nothing is."""
        for python, expected in self._expected.items():
            try:
                with self._server(job, python) as server:
                    problem, _ = expected.met(server, bound)
            except MeasurementError as error:
                problem = f"it does not run: {error}"
            if problem is not None:
                return f"on onnxruntime {self._versions[python]} {problem}"
        return None

    def _server(self, job: Job, python: Path) -> SessionServer:
        return SessionServer(replace(job, python=python, runs=None), self._feeds)


def _version_of(python: Path) -> str:
    """Return the version of the onnxruntime that an interpreter has.

    Raises:
        UsageError: it cannot be started, or has none that can be imported.
    """
    try:
        done = subprocess.run(
            [str(python), "-c", _VERSION],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise UsageError(
            f"{python}: cannot be started as a Python interpreter ({why}); give that of an"
            " environment with onnxruntime."
        ) from error
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise UsageError(
            f"{python}: its onnxruntime cannot be imported ({why}); give the interpreter of an"
            " environment that has one."
        )
    return done.stdout.decode("utf-8", "replace").split()[-1]

"""Comparing a changed model with the original on other releases of onnxruntime."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from memdiag.errors import MeasurementError, UsageError
from memdiag.runner.child import child_environment
from memdiag.runner.job import Job
from memdiag.runner.session_server import SessionServer
from memdiag.verify.model_evaluator import InputSet
from memdiag.verify.outputs import Bound
from memdiag.verify.reference_outputs import ReferenceOutputs

_TIMEOUT_S = 60.0
_VERSION = "import numpy, onnxruntime; print(onnxruntime.__version__)"


class OtherRuntimes:
    """The original's outputs on the runtimes of other interpreters.

    Args:
        known: the interpreters and their releases (see `releases_of`).
        job: the job of the original.
        input_sets: the inputs that models are compared with.
        scratch: a folder for outputs.

    Attributes:
        versions: the releases on which models are compared.
        notes: sentences about releases on which the original does not run.
    """

    def __init__(
        self,
        known: Mapping[Path, str],
        job: Job,
        input_sets: Sequence[InputSet],
        scratch: Path,
    ) -> None:
        self._feeds = [each.feeds for each in input_sets]
        self._references: dict[Path, ReferenceOutputs] = {}
        self.notes: list[str] = []
        for number, (python, version) in enumerate(known.items()):
            try:
                with self._server(job, python) as server:
                    folder = scratch / f"runtime-{number}"
                    self._references[python] = ReferenceOutputs(server, len(self._feeds), folder)
            except MeasurementError as error:
                self.notes.append(
                    f"onnxruntime {version} does not run the original, so that nothing is verified"
                    f" on it ({error})"
                )
        self._versions = {python: known[python] for python in self._references}
        self.versions = tuple(self._versions.values())

    def problem(self, job: Job, bound: Bound) -> str | None:
        """Return the first problem of another model on one of the runtimes; None if it has none."""
        for python, reference in self._references.items():
            try:
                with self._server(job, python) as server:
                    problem, _ = reference.check(server, bound)
            except MeasurementError as error:
                problem = f"it does not run: {error}"
            if problem is not None:
                return f"on onnxruntime {self._versions[python]} {problem}"
        return None

    def _server(self, job: Job, python: Path) -> SessionServer:
        session = replace(job.session, python=python)
        return SessionServer(replace(job, session=session, runs=None), self._feeds)


def releases_of(pythons: Sequence[str | Path]) -> dict[Path, str]:
    """Return the release of onnxruntime in the environment of each interpreter.

    Raises:
        UsageError: an interpreter cannot be started, or its onnxruntime cannot be imported.
    """
    return {Path(python): _version_of(Path(python)) for python in pythons}


def _version_of(python: Path) -> str:
    """Return the version of onnxruntime in the environment of an interpreter.

    Raises:
        UsageError: the interpreter cannot be started, or its onnxruntime cannot be imported.
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
        why = error.strerror if isinstance(error, OSError) else "no answer"
        raise UsageError(
            f"{python}: cannot be started as a Python interpreter ({why}). Use the interpreter of"
            " an environment that has onnxruntime."
        ) from error
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise UsageError(
            f"{python}: its onnxruntime cannot be imported ({why}). Use the interpreter of an"
            " environment that has onnxruntime."
        )
    return done.stdout.decode("utf-8", "replace").split()[-1]

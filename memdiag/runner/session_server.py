"""A child that keeps a session and runs it on request, so that two models can run in turn."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from memdiag.errors import MeasurementError
from memdiag.runner.child import Child
from memdiag.runner.job import Feed, Job, json_value
from memdiag.runner.temporary import created_folder


class SessionServer:
    """A session of `job`'s model in a process of its own; a context manager.

    Args:
        job: the model and the configuration of the session.
        feed_sets: the sets of inputs with which it can be run, by index.
        cpu_time: let `run` return the CPU time of the process instead of latencies.

    Attributes:
        onnxruntime: the version in the child.
        signature: names, types and shapes of ``inputs`` and ``outputs``, and ``metadata``.

    Raises:
        MeasurementError: the interpreter cannot be started, or the session or a temporary folder
            not be created.
        TimeLimitReached: the job's deadline passed, here or in a later request.
    """

    def __init__(
        self, job: Job, feed_sets: Sequence[Sequence[Feed]], *, cpu_time: bool = False
    ) -> None:
        job.limits.deadline.check()
        self._job = job
        self._scratch = created_folder()
        signature_path = Path(self._scratch.name, "signature.json")
        self._index_path = Path(self._scratch.name, "outputs.json")
        message = job.message() | {
            "feed_sets": json_value(feed_sets),
            "signature": str(signature_path),
            "cpu_time": cpu_time,
        }
        self._child = Child(job, message, "serve.py")
        try:
            self.onnxruntime = str(self._wait_for_event("serving")["onnxruntime"])
            self.signature: dict[str, Any] = json.loads(signature_path.read_text(encoding="utf-8"))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process, and the session in it."""
        self._child.end()
        self._scratch.cleanup()

    @property
    def pid(self) -> int:
        """The child's process number."""
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether the child process has ended, or is about to."""
        return self._child.silent or self._child.ended

    def run(self, feeds: int, times: int = 1) -> tuple[float, ...]:
        """Run with the inputs of that index and return the latencies in seconds.

        Contents that may vary change before each run; that time is not part of the latency.

        Raises:
            MeasurementError: the model fails, or takes longer than the job's timeout.
        """
        self._child.send({"do": "run", "feeds": feeds, "times": times})
        return tuple(map(float, self._wait_for_event("ran")["latencies"]))

    def restart_inputs(self) -> None:
        """Go back to the first contents: the next runs repeat the first ones.

        Raises:
            MeasurementError: the process does not answer.
        """
        self._child.send({"do": "restart"})
        self._wait_for_event("restarted")

    def save(self, feeds: int, folder: Path) -> dict[str, tuple[Path, ...]]:
        """Run once and save the outputs to `folder`; return their files by name.

        The inputs are as they were saved, whatever ran before. Sequences and maps have several
        files, absent optional outputs none.

        Raises:
            MeasurementError: the model fails, or takes longer than the job's timeout.
        """
        folder.mkdir(parents=True, exist_ok=True)
        request = {
            "do": "save",
            "feeds": feeds,
            "folder": str(folder),
            "index": str(self._index_path),
        }
        self._child.send(request)
        self._wait_for_event("saved")
        outputs = json.loads(self._index_path.read_text(encoding="utf-8"))
        return {name: tuple(map(Path, files)) for name, files in outputs.items()}

    def _wait_for_event(self, name: str) -> dict[str, Any]:
        """Wait for the child's next event `name` and return its fields."""
        try:
            event = self._child.next_event(name, time.monotonic())
        except TimeoutError:
            raise MeasurementError(
                f"{self._job.model}: its process did not answer in time. Try smaller inputs."
            ) from None
        if event is None:
            raise MeasurementError(
                f"{self._job.model}: its process ended without an error message. Free memory, and"
                " run the command again."
            )
        if event.name == "error":
            raise MeasurementError(
                f"{self._job.model}: {event.fields['problem']}: {event.fields['message']}"
            )
        return event.fields

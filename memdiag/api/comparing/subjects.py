"""What is to be measured side by side, one subject a column, with what making it took."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memdiag.comparison import runtimes
from memdiag.comparison.optimizers import ORIGINAL, Adapter
from memdiag.comparison.optimizing import interpreter_for, optimize
from memdiag.errors import MemdiagError, ProvisionError
from memdiag.model.model_file import open_model
from memdiag.records.comparison import ColumnStatus, OptimizerRun
from memdiag.runner.job import Job

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One column to come: the session to create; `status` is not ``completed`` where there is none.

    `message` says why, or what is to know of it. `model` is what the model is called in the record,
    where that is not its path.
    """

    label: str
    job: Job
    model: str = ""
    status: ColumnStatus = "completed"
    message: str = ""
    optimizer: OptimizerRun | None = None


def versions(job: Job, wanted: Sequence[str], say: Say) -> Iterator[Subject]:
    """Yield a subject for each version of onnxruntime, provisioned where that is needed.

    Raises:
        UsageError: one is no version.
    """
    for version in wanted:
        say(f"looking for onnxruntime {version}")
        label, message = version, ""
        try:
            if version == runtimes.LATEST:
                label, message = runtimes.latest()
            python = runtimes.runtime(label)
        except ProvisionError as error:
            yield Subject(label=label, job=job, status="unavailable", message=str(error))
        else:
            yield Subject(label=label, job=replace(job, python=python), message=message)


def environments(job: Job, paths: Sequence[Path]) -> Iterator[Subject]:
    """Yield a subject for each interpreter or environment, called by the version that it has.

    Raises:
        UsageError: a path is neither.
    """
    for path in paths:
        python = runtimes.existing(path)
        version = runtimes.version_of(python)
        own = replace(job, python=python)
        if version is None:
            message = f"{path}: it has no onnxruntime; install it there."
            yield Subject(label=path.name, job=own, status="unavailable", message=message)
        else:
            yield Subject(label=version, job=own)


def optimized(job: Job, adapters: Sequence[Adapter], scratch: Path, say: Say) -> Iterator[Subject]:
    """Yield the original, and what each optimizer makes of it, written below `scratch`.

    The job's time and memory limits are those of the optimizers, too.
    """
    yield Subject(label=ORIGINAL, job=job)
    with open_model(job.model) as file:
        model_bytes = sum(path.stat().st_size for path in file.files)
    for adapter in adapters:
        say(f"running {adapter.name}")
        target = scratch / adapter.name / job.model.name
        try:
            python = interpreter_for(adapter)
            done = optimize(
                adapter,
                job.model,
                target,
                python=python,
                model_bytes=model_bytes,
                timeout_s=job.timeout_s,
                memory_limit_bytes=job.memory_limit_bytes,
            )
        except ProvisionError as error:
            yield Subject(label=adapter.name, job=job, status="unavailable", message=str(error))
        except MemdiagError as error:
            yield Subject(label=adapter.name, job=job, status="failed", message=str(error))
        else:
            yield Subject(
                label=adapter.name,
                job=replace(job, model=done.path) if done.path else job,
                # It lies in a folder that will be gone.
                model=f"{adapter.name}/{job.model.name}" if done.path else "",
                status=done.status,
                message=done.message,
                optimizer=done.run,
            )


def models(job: Job, paths: Sequence[Path]) -> Iterator[Subject]:
    """Yield a subject for each model, called by the shortest path that distinguishes its file."""
    for label, path in zip(distinguishing(paths), paths, strict=True):
        yield Subject(label=label, job=replace(job, model=path))


def distinguishing(paths: Sequence[Path]) -> list[str]:
    """Return for each path its file name, preceded by as many folders as the names need to differ.

    Equal paths get equal names.
    """
    whole = [Path(os.path.abspath(path)) for path in paths]
    found = []
    for path in whole:
        others = {each.parts for each in whole if each != path}
        for length in range(1, len(path.parts) + 1):
            tail = path.parts[-length:]
            if not any(parts[-length:] == tail for parts in others):
                break
        found.append(str(Path(*tail)))
    return found


def distinct(labels: Sequence[str]) -> list[str]:
    """Return `labels`, those that come again with a number."""
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found

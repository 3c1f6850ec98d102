"""Jobs in which onnxruntime writes the models of recorded sessions as it optimizes them."""

import fcntl
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from shutil import disk_usage
from tempfile import gettempdir
from typing import IO, NamedTuple

from memdiag.defaults import CPU_PROVIDER
from memdiag.model.model_file import ModelFile
from memdiag.programs.recorded_session import RecordedSession
from memdiag.runner.job import Job, Limits, SessionConfig
from memdiag.session_options import (
    DENORMAL_OPTION,
    DISABLED_OPTIMIZERS_OPTION,
    LEVEL_OPTION,
    THREADS_OPTION,
)
from memdiag.system.memory_limit import available_memory_bytes

MAX_OPTIMIZING_S = 60.0
"""Seconds after which the child that optimizes a model is ended."""

MIN_MEMORY_MULTIPLE = 6
"""Multiple of a model's weights that must be available as memory to optimize it. A child took 1,206
MB for the 236 MB of a Conv with its BatchNormalization (onnxruntime 1.32)."""

MIN_DISK_MULTIPLE = 2
"""Multiple of the weights that must be free in the folder for temporary files, for the optimized
model."""

CPU_ONLY = (CPU_PROVIDER,)
_OPTIMIZING_ENTRIES = (
    DISABLED_OPTIMIZERS_OPTION,
    "session.disable_quant_qdq",
    DENORMAL_OPTION,
)
"""Recorded config entries that change optimized weights."""


class _OptimizationSettings(NamedTuple):
    """Settings that determine the optimized model.

    Attributes:
        executable: the Python interpreter.
        import_path: the folders in which it finds onnxruntime.
        options: the session's options that change optimized weights.
    """

    executable: str
    import_path: tuple[str, ...]
    options: tuple[tuple[str, str], ...]


def optimizing_jobs(
    model_file: ModelFile, sessions: Sequence[RecordedSession], lock: IO[bytes]
) -> Generator[Job]:
    """Yield a job for each different optimization of `model_file` for `sessions`, its sessions.

    Sessions of other providers than the CPU are left out, and so are programs that embed Python:
    their executable would start the program again. This process has `lock` while a job is used.
    The jobs end if memory or space for temporary files is short.
    """
    optimizations = dict.fromkeys(
        _optimization_settings(session)
        for session in sessions
        if session.providers == CPU_ONLY and _is_python(session.process.executable)
    )
    weight_bytes = model_file.weight_bytes
    for executable, import_path, options in optimizations:
        config = SessionConfig(
            # Threads would only start and wait.
            options={**dict(options), THREADS_OPTION: "1"},
            providers=CPU_ONLY,
            environment={"PYTHONPATH": os.pathsep.join(import_path)},
            python=Path(executable),
        )
        with _acquired_lock(lock):
            if not _is_harmless(weight_bytes):
                return
            limits = Limits(timeout_s=MAX_OPTIMIZING_S)
            yield Job(model=model_file.path, session=config, limits=limits, runs=None)


def _is_harmless(weight_bytes: int) -> bool:
    """Return whether memory and disk suffice for a child that optimizes such a model."""
    return (
        available_memory_bytes() >= MIN_MEMORY_MULTIPLE * weight_bytes
        and disk_usage(gettempdir()).free >= MIN_DISK_MULTIPLE * weight_bytes
    )


def _optimization_settings(session: RecordedSession) -> _OptimizationSettings:
    description, process = session.description, session.process
    options = {
        name: text for name, text in description.config.items() if name in _OPTIMIZING_ENTRIES
    }
    level = description.options.get(LEVEL_OPTION)
    if level is not None:  # GraphOptimizationLevel.ORT_ENABLE_BASIC
        options[LEVEL_OPTION] = level.rpartition(".")[-1]
    return _OptimizationSettings(process.executable, process.import_path, tuple(options.items()))


def _is_python(executable: str) -> bool:
    return PurePath(executable).name.startswith("python")


@contextmanager
def _acquired_lock(lock: IO[bytes]) -> Iterator[None]:
    """Wait for `lock`, and hold it during the block."""
    fcntl.lockf(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(lock, fcntl.LOCK_UN)

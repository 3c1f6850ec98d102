"""X-rays of recorded processes, each taken by a forked process so that the recording goes on."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Final

import numpy as np

from memdiag.attribution.fused_weights import fused_search_targets
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.process_xray import take_xray
from memdiag.attribution.search_target import SearchTarget, search_target
from memdiag.errors import MemdiagError, ModelError, XrayError
from memdiag.model.model_file import open_model
from memdiag.programs.process_files import guess_models, named_models, with_guess_note
from memdiag.programs.recorded_session import RecordedSession
from memdiag.programs.xray_facts import is_private, same_form
from memdiag.programs.xrays.optimizing_jobs import optimizing_jobs
from memdiag.records.attribution import ArenaUsage, Attribution
from memdiag.records.codec import decode, encode
from memdiag.records.run import SessionMemory
from memdiag.runner.temporary import end_with, remove_stale, temporary_folder

MAX_BYTES_MODEL = 8 << 30
"""Bytes of a model that is read from the memory of the process."""

_RESULT_END: Final = b"\0"
"""The end of each result of an X-ray; JSON does not contain it."""


class ProcessXrayTask:
    """The X-ray of one process, taken in a forked child.

    The child is forked before memdiag starts a thread. Its result arrives on `reading`; a first one
    may be replaced by another, in which fused weights are identified as well.

    Args:
        pid: the process.
        lock: see `yield_attributions`.
        sessions: its sessions that are alive.
        models: the models of a process without recorded sessions; None to find them by its files.

    Attributes:
        reading: the descriptor that becomes readable when the result arrives.
    """

    def __init__(
        self,
        pid: int,
        sessions: Sequence[RecordedSession],
        models: Sequence[Path] | None = None,
        *,
        lock: IO[bytes],
    ) -> None:
        self.pid = pid
        self.sessions = tuple(sessions)
        self.reading, writing = os.pipe()
        self._result = bytearray()
        parent = os.getpid()
        self._child = os.fork()
        if not self._child:
            end_with(parent)
            os.close(self.reading)
            _write_results(writing, yield_attributions(pid, self.sessions, models, lock))
        os.close(writing)

    def read(self) -> bool:
        """Read some of the result; return False at its end."""
        data = os.read(self.reading, 1 << 20)
        self._result += data
        return bool(data)

    @property
    def has_result(self) -> bool:
        """Whether a result has been read."""
        return _RESULT_END in self._result

    def interrupt(self) -> None:
        """End the X-ray, and read the result that it has."""
        os.kill(self._child, signal.SIGKILL)
        while self.read():
            pass

    def close(self) -> None:
        """Wait for the end of the child, and remove the files of one that was interrupted."""
        os.close(self.reading)
        os.waitpid(self._child, 0)
        remove_stale(Path(tempfile.gettempdir()))

    def result(self) -> tuple[list[str], Attribution]:
        """Return the keys of the models, in order, and the X-ray; call it at the result's end.

        Raises:
            XrayError: the process could not be read, or the X-ray ended without a result.
        """
        self.close()
        *complete, _ = bytes(self._result).split(_RESULT_END)
        first, _, rest = (complete[-1] if complete else b"").partition(b"\n")
        keys = json.loads(first or b"null")
        if keys is None:
            raise XrayError(rest.decode() or f"process {self.pid}: its X-ray failed.")
        return keys, decode(rest, Attribution)


def _write_results(writing: int, xrays: Iterator[tuple[list[str], Attribution]]) -> None:
    """Write each of `xrays` to `writing`, and end this process."""
    try:
        with os.fdopen(writing, "wb") as file:
            try:
                for keys, attribution in xrays:
                    file.write(
                        json.dumps(keys).encode() + b"\n" + encode(attribution) + _RESULT_END
                    )
                    file.flush()
            except MemdiagError as error:
                file.write(b"null\n" + str(error).encode(errors="replace") + _RESULT_END)
    finally:
        os._exit(0)


def yield_attributions(
    pid: int,
    sessions: Sequence[RecordedSession],
    models: Sequence[Path] | None,
    lock: IO[bytes],
) -> Iterator[tuple[list[str], Attribution]]:
    """Yield the owners of the memory of process `pid`, and the keys of its models in order.

    Where weights of sessions are missing, they are yielded again with the tensors that onnxruntime
    computed from weights, if these can be obtained.

    Args:
        pid: the process.
        sessions: its sessions that are alive; models that cannot be read are left out.
        models: the models of a process without sessions; None to find them by its files.
        lock: a file that is locked while onnxruntime optimizes models, so that X-rays of several
            processes do so one after another.

    Raises:
        XrayError: the process cannot be read.
    """
    are_used: dict[str, bool] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        if sessions:
            files = model_files(pid, sessions, folder)
        else:
            if models is None:
                are_used = {str(path): is_used for path, is_used in guess_models(pid)}
            files = {
                str(path): path for path in (map(Path, are_used) if models is None else models)
            }
        targets = {}
        for key, path in files.items():
            with suppress(ModelError):
                targets[key] = search_target(stack.enter_context(open_model(path)))
        addresses = {
            session.number: session.address for session in sessions if session.address is not None
        }
        xray = take_xray(pid, list(targets.values()), sessions=addresses)
        if not sessions and models is None:
            certain = [are_used[key] for key in targets]
            named = named_models(xray, certain)
            xray = with_guess_note(xray, certain)
            targets = {
                key: target
                for index, (key, target) in enumerate(targets.items())
                if index not in named
            }
        yield list(targets), xray
        if xray.partial:
            return
        with suppress(MemdiagError, OSError):  # the process has ended; no space
            fused = _fused_search_targets(targets, xray, sessions, lock, folder, stack)
            if fused:
                again = take_xray(pid, [*targets.values(), *fused], sessions=addresses)
                if not again.partial:  # the process has not ended since
                    yield list(targets), again


def _fused_search_targets(
    targets: Mapping[str, SearchTarget],
    attribution: Attribution,
    sessions: Sequence[RecordedSession],
    lock: IO[bytes],
    folder: Path,
    opened: ExitStack,
) -> list[SearchTarget]:
    """Return the weights that onnxruntime computed from those of `targets` that are missing."""
    fused: list[SearchTarget] = []
    for index, (key, target) in enumerate(targets.items()):
        users = [session for session in sessions if session.model_key == key]
        # No such interpreter; half of an optimized model.
        with (
            suppress(MemdiagError),
            closing(optimizing_jobs(target.model_file, users, lock)) as jobs,
        ):
            fused += fused_search_targets(target, attribution, jobs, folder, opened, index=index)
    return fused


def model_files(pid: int, sessions: Sequence[RecordedSession], folder: Path) -> dict[str, Path]:
    """Return a file with each model by the key of the model (see `RecordedSession.model_key`).

    A model that the program gave as bytes is copied from the memory of the process to `folder`:
    Python keeps the bytes as long as the session lives.
    """
    files: dict[str, Path] = {}
    with ProcessMemory(pid) as memory:
        for session in sessions:
            model = session.description.model
            key = session.model_key
            if key in files:
                continue
            if model.path is not None:
                files[key] = Path(model.path)
            elif model.bytes is not None and model.bytes <= MAX_BYTES_MODEL:
                content = np.zeros(model.bytes, np.uint8)
                if memory.read_into(model.address or 0, content) == len(content):
                    files[key] = folder / f"{key}.onnx"
                    content.tofile(files[key])
    return files


def session_memories(
    keys: Sequence[str],
    attribution: Attribution,
    sessions: Sequence[RecordedSession],
    *,
    earlier_sessions: int = 0,
) -> dict[int, SessionMemory]:
    """Return the memory of each of `sessions`, by number, in an X-ray of their process.

    Weights in the bytes that Python keeps of a model are not those of a session: it does not read
    them.

    Args:
        keys: the keys of the models of the X-ray, in order.
        attribution: the X-ray.
        sessions: the sessions that were alive.
        earlier_sessions: the number of sessions of unknown models that the process may have too.
    """
    users: dict[str, list[int]] = {key: [] for key in keys}
    for session in sessions:
        users.setdefault(session.model_key, []).append(session.number)
    weights: dict[int, float] = {number: 0.0 for key in keys for number in users[key]}
    mapped = dict.fromkeys(weights, 0.0)
    sharing = {session.number: len(users[session.model_key]) for session in sessions}
    others = {
        key: min(earlier_sessions, max(0, _times_in_memory(attribution, index) - len(users[key])))
        for index, key in enumerate(keys)
    }
    kept = [session.kept_bytes for session in sessions]
    for copy in attribution.copies:
        if copy.in_use is False:  # in a freed block, which malloc keeps
            continue
        if any(copy.address in place for place in kept):
            continue
        # No model is named if there is only one.
        models = [keys[model] for model in copy.models] or keys
        numbers = [number for key in models for number in users[key]]
        count = len(numbers) + max((others[key] for key in models), default=0)
        for number in numbers:
            weights[number] += copy.resident_bytes / count
            if copy.backing.kind == "file":
                mapped[number] += copy.resident_bytes / count
            sharing[number] = max(sharing[number], count)
    arenas = {arena.session: arena for arena in attribution.arenas}
    return {
        number: _session_memory(
            arenas.get(number), weights.get(number), mapped.get(number), sharing=sharing[number]
        )
        for number in (session.number for session in sessions)
    }


def _session_memory(
    arena: ArenaUsage | None, weights: float | None, mapped: float | None, *, sharing: int
) -> SessionMemory:
    return SessionMemory(
        weight_bytes=None if weights is None else round(weights),
        sharing=sharing,
        arena_used_bytes=arena.used_bytes if arena else None,
        arena_slack_bytes=arena.slack_bytes if arena else None,
        resident_slack_bytes=arena.resident_slack_bytes if arena else None,
        resident_used_bytes=arena.resident_used_bytes if arena else None,
        mapped_weight_bytes=None if mapped is None else round(mapped),
    )


def _times_in_memory(attribution: Attribution, model: int) -> int:
    """Return how many copies in the same layout most bytes of the weights of a model have.

    Each session has one. A weight that several nodes use may have more in a single session.
    """
    copies = [
        copy
        for copy in attribution.copies
        if copy.in_use is not False and is_private(copy) and model in (copy.models or (0,))
    ]
    counts = sorted((len(same), same[0].bytes) for same in same_form(copies))
    half = sum(size for _, size in counts) / 2
    for count, size in counts:
        half -= size
        if half <= 0:
            return count
    return 0

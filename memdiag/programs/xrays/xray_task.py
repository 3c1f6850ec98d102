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
from memdiag.programs.xray_facts import copies_by_form, is_private
from memdiag.programs.xrays.optimizing_jobs import optimizing_jobs
from memdiag.records.attribution import ArenaUsage, Attribution
from memdiag.records.codec import decode, encode
from memdiag.records.run import SessionMemory
from memdiag.runner.temporary import end_with, remove_stale, temporary_folder

MAX_BYTES_MODEL = 8 << 30
"""The most bytes of a model that is read from the memory of the process."""

_RESULT_END: Final = b"\0"
"""The end of each result of an X-ray; JSON does not contain it."""


class ProcessXrayTask:
    """The X-ray of one process, taken in a forked child.

    The child is forked before memdiag starts a thread. Its result arrives on `reading`. A second
    result, in which fused weights are also identified, may replace the first one.

    Args:
        pid: the process.
        lock: see `yield_attributions`.
        sessions: the sessions of the process that are alive.
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
        """End the X-ray, and read the result that it has until now."""
        os.kill(self._child, signal.SIGKILL)
        while self.read():
            pass

    def close(self) -> None:
        """Wait for the end of the child, and remove the files that an interrupted child left."""
        os.close(self.reading)
        os.waitpid(self._child, 0)
        remove_stale(Path(tempfile.gettempdir()))

    def result(self) -> tuple[list[str], Attribution]:
        """Return the keys of the models, in order, and the X-ray. Call it at the result's end.

        Raises:
            XrayError: the process could not be read, or the X-ray ended without a result.
        """
        self.close()
        *complete_results, _ = bytes(self._result).split(_RESULT_END)
        keys_line, _, content = (complete_results[-1] if complete_results else b"").partition(b"\n")
        keys = json.loads(keys_line or b"null")
        if keys is None:
            raise XrayError(content.decode() or f"process {self.pid}: its X-ray failed.")
        return keys, decode(content, Attribution)


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

    If weights of sessions are missing, the owners are yielded again with the tensors that
    onnxruntime computed from weights, if these can be obtained.

    Args:
        pid: the process.
        sessions: the sessions of the process that are alive; models that cannot be read are left
            out.
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
            used_flags = [are_used[key] for key in targets]
            named_indices = named_models(xray, used_flags)
            xray = with_guess_note(xray, used_flags)
            targets = {
                key: target
                for index, (key, target) in enumerate(targets.items())
                if index not in named_indices
            }
        yield list(targets), xray
        if xray.partial:
            return
        with suppress(MemdiagError, OSError):  # the process has ended, or there is no space
            fused_targets = _fused_search_targets(targets, xray, sessions, lock, folder, stack)
            if fused_targets:
                second_xray = take_xray(
                    pid, [*targets.values(), *fused_targets], sessions=addresses
                )
                if not second_xray.partial:  # the process has not ended since then
                    yield list(targets), second_xray


def _fused_search_targets(
    targets: Mapping[str, SearchTarget],
    attribution: Attribution,
    sessions: Sequence[RecordedSession],
    lock: IO[bytes],
    folder: Path,
    stack: ExitStack,
) -> list[SearchTarget]:
    """Return the weights that onnxruntime computed from weights of `targets` that are missing."""
    fused_targets: list[SearchTarget] = []
    for index, (key, target) in enumerate(targets.items()):
        users = [session for session in sessions if session.model_key == key]
        # There may be no such interpreter, or only a part of an optimized model.
        with (
            suppress(MemdiagError),
            closing(optimizing_jobs(target.model_file, users, lock)) as jobs,
        ):
            fused_targets += fused_search_targets(
                target, attribution, jobs, folder, stack, index=index
            )
    return fused_targets


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

    Weights in the bytes that Python keeps of a model do not count for a session, which does not
    read them.

    Args:
        keys: the keys of the models of the X-ray, in order.
        attribution: the X-ray.
        sessions: the sessions that were alive.
        earlier_sessions: the number of sessions of unknown models that the process may also have.
    """
    users: dict[str, list[int]] = {key: [] for key in keys}
    for session in sessions:
        users.setdefault(session.model_key, []).append(session.number)
    weight_bytes: dict[int, float] = {number: 0.0 for key in keys for number in users[key]}
    mapped_bytes = dict.fromkeys(weight_bytes, 0.0)
    sharing = {session.number: len(users[session.model_key]) for session in sessions}
    earlier_by_key = {
        key: min(earlier_sessions, max(0, _times_in_memory(attribution, index) - len(users[key])))
        for index, key in enumerate(keys)
    }
    kept_ranges = [session.kept_bytes for session in sessions]
    for copy in attribution.copies:
        if copy.in_use is False:  # it is in a freed block, which malloc keeps
            continue
        if any(copy.address in addresses for addresses in kept_ranges):
            continue
        # If there is only one model, copies do not name it.
        models = [keys[model] for model in copy.models] or keys
        numbers = [number for key in models for number in users[key]]
        count = len(numbers) + max((earlier_by_key[key] for key in models), default=0)
        for number in numbers:
            weight_bytes[number] += copy.resident_bytes / count
            if copy.backing.kind == "file":
                mapped_bytes[number] += copy.resident_bytes / count
            sharing[number] = max(sharing[number], count)
    arenas = {arena.session: arena for arena in attribution.arenas}
    return {
        number: _session_memory(
            arenas.get(number),
            weight_bytes.get(number),
            mapped_bytes.get(number),
            sharing=sharing[number],
        )
        for number in (session.number for session in sessions)
    }


def _session_memory(
    arena: ArenaUsage | None,
    weight_bytes: float | None,
    mapped_bytes: float | None,
    *,
    sharing: int,
) -> SessionMemory:
    return SessionMemory(
        weight_bytes=None if weight_bytes is None else round(weight_bytes),
        sharing=sharing,
        arena_used_bytes=arena.used_bytes if arena else None,
        arena_slack_bytes=arena.slack_bytes if arena else None,
        resident_slack_bytes=arena.resident_slack_bytes if arena else None,
        resident_used_bytes=arena.resident_used_bytes if arena else None,
        mapped_weight_bytes=None if mapped_bytes is None else round(mapped_bytes),
    )


def _times_in_memory(attribution: Attribution, model: int) -> int:
    """Return how many copies in the same layout most bytes of the weights of a model have.

    Each session has one copy. A weight that several nodes use may have more in a single session.
    """
    copies = [
        copy
        for copy in attribution.copies
        if copy.in_use is not False and is_private(copy) and model in (copy.models or (0,))
    ]
    counts_and_sizes = sorted(
        (len(copies_of_form), copies_of_form[0].bytes) for copies_of_form in copies_by_form(copies)
    )
    remaining_bytes = sum(size for _, size in counts_and_sizes) / 2
    for count, size in counts_and_sizes:
        remaining_bytes -= size
        if remaining_bytes <= 0:
            return count
    return 0

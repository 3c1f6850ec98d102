"""X-rays of recorded processes, each taken by a forked process so that the recording goes on."""

import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.process_xray import take_xray
from memdiag.attribution.search_target import search_target
from memdiag.errors import MemdiagError, ModelError, XrayError
from memdiag.model.model_file import open_model
from memdiag.programs.process_files import guess_models, with_guess_note
from memdiag.programs.recorded import RecordedSession
from memdiag.records.attribution import Attribution
from memdiag.records.codec import decode, encode
from memdiag.records.run import SessionMemory
from memdiag.runner.temporary import end_with, remove_stale, temporary_folder

MAX_BYTES_MODEL = 8 << 30
"""Bytes of a model that is read from the memory of the process."""


class ProcessXrayTask:
    """The X-ray of one process, taken in a forked child.

    The child is forked before memdiag starts a thread. Its result arrives on `reading`.

    Args:
        pid: the process.
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
            _write_result(writing, lambda: examine(pid, self.sessions, models))
        os.close(writing)

    def read(self) -> bool:
        """Read some of the result; return False at its end."""
        data = os.read(self.reading, 1 << 20)
        self._result += data
        return bool(data)

    def cancel(self) -> None:
        """End the X-ray without a result."""
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        os.close(self.reading)
        remove_stale(Path(tempfile.gettempdir()))

    def result(self) -> tuple[list[str], Attribution]:
        """Return the keys of the models, in order, and the X-ray; call it at the result's end.

        Raises:
            XrayError: the process could not be read, or the X-ray ended without a result.
        """
        os.close(self.reading)
        os.waitpid(self._child, 0)
        first, _, rest = bytes(self._result).partition(b"\n")
        keys = json.loads(first or b"null")
        if keys is None:
            raise XrayError(rest.decode() or f"process {self.pid}: its X-ray failed.")
        return keys, decode(rest, Attribution)


def _write_result(writing: int, xray: Callable[[], tuple[list[str], Attribution]]) -> None:
    """Write the result of `xray` to `writing`, and end this process."""
    try:
        with os.fdopen(writing, "wb") as file:
            try:
                keys, attribution = xray()
                file.write(json.dumps(keys).encode() + b"\n" + encode(attribution))
            except MemdiagError as error:
                file.write(b"null\n" + str(error).encode(errors="replace"))
    finally:
        os._exit(0)


def examine(
    pid: int, sessions: Sequence[RecordedSession], models: Sequence[Path] | None = None
) -> tuple[list[str], Attribution]:
    """Return the owners of the memory of process `pid`, and the keys of its models in order.

    Models that cannot be read are left out. Without `sessions`, the models are `models`, or those
    whose files the process uses.

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
        found = take_xray(pid, list(targets.values()), sessions=addresses)
    if not sessions and models is None:
        found = with_guess_note(found, [are_used[key] for key in targets])
    return list(targets), found


def model_files(pid: int, sessions: Sequence[RecordedSession], folder: Path) -> dict[str, Path]:
    """Return a file with each model by the key of the model (see `model_key`).

    A model that the program gave as bytes is copied from the memory of the process to `folder`:
    Python keeps the bytes as long as the session lives.
    """
    found: dict[str, Path] = {}
    with ProcessMemory(pid) as memory:
        for session in sessions:
            model = session.description["model"]
            key = model_key(session)
            if key in found:
                continue
            if model["path"] is not None:
                found[key] = Path(model["path"])
            elif model["bytes"] <= MAX_BYTES_MODEL:
                content = np.zeros(model["bytes"], np.uint8)
                if memory.read_into(model["address"], content) == len(content):
                    found[key] = folder / f"{key}.onnx"
                    content.tofile(found[key])
    return found


def model_key(session: RecordedSession) -> str:
    """Return what is equal for sessions of the same model: the path, or a hash of the bytes."""
    model = session.description["model"]
    return str(model["path"] or model["digest"])


def session_memories(
    keys: Sequence[str], attribution: Attribution, sessions: Sequence[RecordedSession]
) -> dict[int, SessionMemory]:
    """Return the memory of each of `sessions`, by number, in an X-ray of their process.

    Args:
        keys: the keys of the models of the X-ray, in order.
        attribution: the X-ray.
        sessions: the sessions that were alive.
    """
    users: dict[str, list[int]] = {key: [] for key in keys}
    for session in sessions:
        users.setdefault(model_key(session), []).append(session.number)
    weights: dict[int, float] = {number: 0.0 for key in keys for number in users[key]}
    mapped = dict.fromkeys(weights, 0.0)
    sharing = {session.number: len(users[model_key(session)]) for session in sessions}
    for copy in attribution.copies:
        if copy.in_use is False:  # in a freed block, which malloc keeps
            continue
        # No model is named if there is only one.
        models = [keys[model] for model in copy.models] or keys
        numbers = [number for key in models for number in users[key]]
        for number in numbers:
            weights[number] += copy.resident_bytes / len(numbers)
            if copy.backing.kind == "file":
                mapped[number] += copy.resident_bytes / len(numbers)
            sharing[number] = max(sharing[number], len(numbers))
    arenas = {arena.session: arena for arena in attribution.arenas}
    found = {}
    for session in sessions:
        number = session.number
        arena = arenas.get(number)
        found[number] = SessionMemory(
            weight_bytes=round(weights[number]) if number in weights else None,
            sharing=sharing[number],
            arena_used_bytes=arena.used_bytes if arena else None,
            arena_slack_bytes=arena.slack_bytes if arena else None,
            mapped_weight_bytes=round(mapped[number]) if number in mapped else None,
        )
    return found

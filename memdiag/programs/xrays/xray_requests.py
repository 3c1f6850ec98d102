"""Requests to a recording that is under way, through a file in its folder."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from memdiag.errors import UsageError
from memdiag.programs.events import XrayRequest
from memdiag.records.attribution import Owner
from memdiag.records.base import Record
from memdiag.records.run import SessionMemory
from memdiag.regular_files import read_regular

CONTROL_FILE: Final = "recording.json"
"""File with the address of a recording that is under way. Only its owner may read it."""

CONTROL_ANSWER_S = 300.0
_NO_RECORDING = (OSError, ValueError, RecursionError, msgspec.MsgspecError)
"""Errors of a file or an answer that is not of a recording."""


class _ControlFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file."""

    address: str


@contextmanager
def control_file(folder: Path, address: str) -> Iterator[None]:
    """Write the address of a recording to `folder`, which is created if missing.

    At the end the file is removed, and so is the folder if it was created here and is empty.

    Raises:
        UsageError: the file cannot be written, there is a file that no recording has left, or
            another recording is under way there.
    """
    path = folder / CONTROL_FILE
    _check_is_free(folder)
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(_ControlFile(address=address)))
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}). Choose another folder with --out."
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is not empty
            path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()


def _check_is_free(folder: Path) -> None:
    """Raise UsageError if a recording is under way in `folder`, or a file of the user is there."""
    path = folder / CONTROL_FILE
    if not os.path.lexists(path):
        return
    try:
        address, _ = _recording_address(folder)
    except _NO_RECORDING as error:
        raise UsageError(
            f"{path}: this file is not of a recording. Choose another folder with --out."
        ) from error
    with suppress(*_NO_RECORDING):  # a killed recording left its file
        _connect_recording(address).close()
        raise UsageError(
            f"{folder}: another recording is under way there. Choose another folder with --out."
        )


def _recording_address(folder: Path) -> tuple[str, str]:
    """Return the address of the recording in `folder`, and its secret.

    Raises:
        OSError, ValueError, RecursionError or MsgspecError: no recording wrote the file.
    """
    content = msgspec.json.decode(read_regular(folder / CONTROL_FILE), type=_ControlFile)
    address, separator, secret = content.address.partition("#")
    if not separator:
        raise ValueError(content.address)
    return address, secret


def _connect_recording(address: str) -> socket.socket:
    """Return a connection to the recording with this address.

    Raises:
        OSError or ValueError: there is no such recording.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONTROL_ANSWER_S)
        connection.connect(address.replace("@", "\0", 1))
    except BaseException:
        connection.close()
        raise
    return connection


class XrayedSession(Record, frozen=True, kw_only=True):
    """A session in the X-ray of its process.

    Attributes:
        number: its number in the recording.
        model: the file name of the model; None if it was created from bytes.
        memory: its memory.
    """

    number: int
    model: str | None
    memory: SessionMemory


class XrayedProcess(Record, frozen=True, kw_only=True):
    """The owners of the memory of a process, in the answer to a request.

    Attributes:
        command: the command line of the process.
        owners: all owners; their sum is the resident set.
    """

    pid: int
    command: tuple[str, ...]
    owners: tuple[Owner, ...]
    sessions: tuple[XrayedSession, ...]


class XrayAnswer(Record, frozen=True, kw_only=True):
    """The answer to a request.

    Attributes:
        asked: the number of processes that use onnxruntime.
        processes: the processes whose X-ray succeeded.
        failures: why the other processes have no X-ray.
    """

    asked: int
    processes: tuple[XrayedProcess, ...]
    failures: tuple[str, ...] = ()


def request_xray(folder: Path) -> XrayAnswer:
    """Request an X-ray of every process that uses onnxruntime from the recording in `folder`.

    Raises:
        UsageError: no recording is under way there.
    """
    if folder.is_file():
        raise UsageError(
            f"{folder}: this is a file. Name a process or the folder of a recording, or take the"
            " X-ray of a model with memdiag profile."
        )
    try:
        address, secret = _recording_address(folder)
        with _connect_recording(address) as connection:
            connection.sendall(msgspec.json.encode(XrayRequest(secret=secret)) + b"\n")
            with connection.makefile("rb") as answers:
                return msgspec.json.decode(answers.readline(), type=XrayAnswer)
    except _NO_RECORDING as error:
        raise UsageError(
            f"{folder}: no recording is under way. Name the folder of a memdiag run or watch that"
            " has not ended."
        ) from error

"""Requests to a recording that is under way, through a file in its folder."""

import json
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

CONTROL_FILE: Final = "recording.json"
"""File with the address of a recording that is under way. Only its owner may read it."""

CONTROL_ANSWER_S = 300.0
_NO_RECORDING = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors of a file or an answer that is not of a recording."""


@contextmanager
def control_file(folder: Path, address: str) -> Iterator[None]:
    """Write the address of a recording to `folder`, which is created if missing.

    The file is removed in the end, and a folder that was created and is empty then.

    Raises:
        UsageError: the file cannot be written, or another recording is under way there.
    """
    path = folder / CONTROL_FILE
    if _is_under_way(folder):
        raise UsageError(
            f"{folder}: another recording is under way there. Choose another folder with --out."
        )
    is_new = not folder.exists()
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump({"address": address}, file)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be written ({error.strerror}). Choose another folder with --out."
            ) from error
        yield
    finally:
        with suppress(OSError):  # the folder is not empty
            path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()


def _is_under_way(folder: Path) -> bool:
    """Return whether a recording is under way in `folder`."""
    try:
        _connect(folder)[0].close()
    except _NO_RECORDING:
        return False
    return True


def _connect(folder: Path) -> tuple[socket.socket, str]:
    """Return a connection to the recording in `folder`, and its secret.

    Raises:
        OSError, ValueError, KeyError, TypeError or RecursionError: there is none.
    """
    content = json.loads((folder / CONTROL_FILE).read_bytes())
    address, _, secret = str(content["address"]).partition("#")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONTROL_ANSWER_S)
        connection.connect(address.replace("@", "\0", 1))
    except BaseException:
        connection.close()
        raise
    return connection, secret


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
    """The owners of the memory of a process, by the recording's answer to a request.

    Attributes:
        command: its command line.
        owners: every owner; their sum is the resident set.
    """

    pid: int
    command: tuple[str, ...]
    owners: tuple[Owner, ...]
    sessions: tuple[XrayedSession, ...]


class XrayAnswer(Record, frozen=True, kw_only=True):
    """The answer to a request.

    Attributes:
        asked: the number of processes that use onnxruntime.
        processes: those whose X-ray succeeded.
        failures: why the others have none.
    """

    asked: int
    processes: tuple[XrayedProcess, ...]
    failures: tuple[str, ...] = ()


def request_xray(folder: Path) -> XrayAnswer:
    """Have the recording in `folder` take an X-ray of every process that uses onnxruntime.

    Raises:
        UsageError: no recording is under way there.
    """
    if folder.is_file():
        raise UsageError(
            f"{folder}: this is a file. Name a process or the folder of a recording, or take the"
            " X-ray of a model with memdiag profile."
        )
    try:
        connection, secret = _connect(folder)
        with connection:
            connection.sendall(msgspec.json.encode(XrayRequest(secret=secret)) + b"\n")
            with connection.makefile("rb") as answers:
                return msgspec.json.decode(answers.readline(), type=XrayAnswer)
    except (*_NO_RECORDING, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{folder}: no recording is under way. Name the folder of a memdiag run or watch that"
            " has not ended."
        ) from error

"""Requests to a recording that is under way, through a file in its folder."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from memdiag.errors import UsageError

CONTROL_FILE: Final = "recording.json"
"""File with the address of a recording that is under way. Only its owner may read it."""

ANSWER_S = 300.0


@contextmanager
def control_file(folder: Path, address: str) -> Iterator[None]:
    """Write the address of a recording to `folder`, which is created if missing.

    The file is removed in the end.

    Raises:
        UsageError: the file cannot be written.
    """
    path = folder / CONTROL_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump({"address": address}, file)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror}). Choose another folder with --out."
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def request_xray(folder: Path) -> int:
    """Have the recording in `folder` take an X-ray of every process that uses onnxruntime.

    Returns:
        the number of processes.

    Raises:
        UsageError: no recording is under way there.
    """
    try:
        address, _, secret = _address_in(folder).partition("#")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(address.replace("@", "\0", 1))
            connection.sendall(json.dumps({"event": "xray", "secret": secret}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                return int(json.loads(answers.readline())["processes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder}: no recording is under way. Name the folder of a memdiag run or watch that"
            " has not ended."
        ) from error


def _address_in(folder: Path) -> str:
    return str(json.loads((folder / CONTROL_FILE).read_bytes())["address"])

"""The recorder, with this process in the place of the hook."""

import json
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from memdiag.programs import process_sampling
from memdiag.programs.recorder import Recorder

HELLO: dict[str, Any] = {
    "forked_from": None,
    "sessions": [],
    "onnxruntime": "1",
    "build": "",
    "python": "",
    "executable": "",
    "import_path": [],
    "telemetry": False,
}


def connected(recorder: Recorder) -> tuple[socket.socket, str]:
    """Return a connection to `recorder`, and the secret."""
    address, _, secret = recorder.address.partition("#")
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address.replace("@", "\0", 1))
    return connection, secret


class Hook:
    """A connection to `recorder`, whose steps it takes."""

    def __init__(self, recorder: Recorder, **hello: Any) -> None:
        self._recorder = recorder
        self._socket, secret = connected(recorder)
        self.ask("hello", **{"secret": secret, "pid": os.getpid(), **HELLO, **hello})

    def ask(self, event: str, **fields: Any) -> Any:
        self._socket.sendall(json.dumps({"event": event, "asks": 7, **fields}).encode() + b"\n")
        self._socket.setblocking(False)
        while True:
            self._recorder.step(os.getpid())
            try:
                answer = json.loads(self._socket.recv(4096))
            except BlockingIOError:
                continue
            assert answer.pop("answers") == 7
            return answer

    def create(
        self, number: int, path: str = "m.onnx", provider: str = "CPU", **description: Any
    ) -> None:
        described = {
            "session": number,
            "model": {"path": path, "bytes": None},
            "callers": [["app.py", 1, "main"]],
            "options": {},
            "config": {},
            "providers": [],
            "threads": [0, 0],
            "severity": 2,
            "logid": "",
        }
        assert self.ask("create", **{**described, **description})
        assert self.ask("created", session=number, latency_s=0.0, providers=[provider])

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder(takes_xray=False)
    yield made
    made.close()


def test_a_process_is_known_by_its_connection(recorder: Recorder) -> None:
    Hook(recorder, pid=1).close()  # its own id in a sandbox
    assert [process.pid for process in recorder.processes] == [os.getpid()]


def test_a_process_that_is_found_at_the_end_has_a_peak(recorder: Recorder) -> None:
    recorder.run(os.getpid(), lambda: True)
    (process,) = recorder.processes
    assert process.peak_rss_bytes > 0
    assert process.timeline.samples().rss_bytes == (process.peak_rss_bytes,)


def test_descriptors_of_a_sender_without_the_secret_are_closed(recorder: Recorder) -> None:
    stranger, _ = connected(recorder)
    with stranger:
        recorder.step(os.getpid())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            socket.send_fds(stranger, [b"{"], [0] * 100)
            recorder.step(os.getpid())
        assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_that_arrive_with_the_secret_are_kept(recorder: Recorder) -> None:
    # The writing end is not among them: whoever has it is waited for when the recorder ends.
    reading, writing = os.pipe()
    passed = reading, os.open(os.devnull, os.O_WRONLY)
    os.close(writing)
    hook, secret = connected(recorder)
    with hook:
        hello = {**HELLO, "event": "hello", "secret": secret, "pid": os.getpid()}
        hook.sendall(json.dumps(hello).encode() + b"\n")
        socket.send_fds(hook, [b'{"event": "stderr_filtered"}\n'], [*passed])
        while not recorder.processes:  # a late recorder receives both at once
            recorder.step(os.getpid())
        recorder.step(os.getpid())
    for number in passed:
        os.close(number)
    assert recorder.notes == []


def test_a_lost_event_is_answered_as_lost(recorder: Recorder) -> None:
    hook = Hook(recorder)
    assert hook.ask("stderr_filtered") == {}  # its descriptors did not arrive
    assert hook.ask("stderr_restored")
    assert hook.ask("released", session="1") == {}
    assert hook.ask("no_such_event") == {}
    hook.close()
    lost = [re.findall(r"the event '(\w+)' was lost", note) for note in recorder.notes]
    assert lost == [["stderr_filtered"], ["released"], ["no_such_event"]]


def test_a_path_may_have_bytes_that_are_no_text(recorder: Recorder) -> None:
    hook = Hook(recorder)
    path = os.fsdecode(b"/\xff.onnx")
    hook.create(1, path)
    hook.close()
    assert recorder.sessions[0].description.model.path == path


def test_sessions_end_when_another_program_replaces_theirs(recorder: Recorder) -> None:
    hook = Hook(recorder)
    hook.create(1)
    hook.create(2)
    hook.close()  # exec
    hook = Hook(recorder)
    hook.create(1)
    hook.close()
    assert [session.released_s is None for session in recorder.sessions] == [False, False, True]
    assert recorder.processes[0].live_sessions == recorder.sessions[2:]


def test_sessions_stay_when_onnxruntime_is_imported_again(recorder: Recorder) -> None:
    first, second = Hook(recorder), Hook(recorder)
    first.create(1)
    Hook(recorder).close()
    assert recorder.sessions[0].released_s is None
    first.close()
    second.close()


def test_processes_that_cannot_be_read_are_noted(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process_info(pid: int) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(process_sampling, "process_info", process_info)
    recorder.run(os.getpid(), lambda: True)
    number = os.getpid()
    (note,) = recorder.notes
    assert note.startswith("1 process could not be read all the time, such as process")
    assert note.endswith(f" {number} (Too many open files)")

"""The connection of the hook to the recording."""

import json
import socket
from typing import Any

import pytest

from memdiag.programs.hook import channel as module


def test_an_answer_that_ctrl_c_interrupted_is_not_taken_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(module, "file_identity", lambda descriptor: None)
    channel = module.HookChannel("")

    class Interrupted:
        def recv(self, size: int) -> bytes:
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(ours, name)

    channel._socket = Interrupted()  # type: ignore[assignment]  # a stand-in
    with pytest.raises(KeyboardInterrupt):
        channel.ask("first")
    channel._socket = ours
    theirs.sendall(b'"rest": 0}\n{"answers": 1, "peak": 1}\n{"answers": 2, "pe')
    theirs.sendall(b'ak": 2}\n')
    assert channel.ask("second") == {"peak": 2}
    sent = theirs.recv(4096).splitlines()
    assert [json.loads(line)["event"] for line in sent] == ["first", "second"]
    ours.close()
    theirs.close()

import os
import random
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from memdiag.graph import spool as spool_module
from memdiag.graph.spool import Spool, Stored


def items(count: int, most: int) -> list[bytes]:
    return [random.randbytes(random.randrange(most)) for _ in range(count)]


@pytest.mark.parametrize("held", [0, 100, 1 << 20], ids=["file", "both", "memory"])
def test_what_was_added_is_read_again_in_any_order(held: int) -> None:
    spool, added = Spool(held), items(500, 300)
    added += [random.randbytes(200_000), *items(20, 50)]
    places = []
    for one in added:
        places.append((spool.add(one), one))
        start, known = random.choice(places)
        assert spool.read(start, start + len(known)) == known
    random.shuffle(places)
    assert all(spool.read(start, start + len(one)) == one for start, one in places)


@pytest.mark.parametrize("most", [3, 12, 1000])
def test_a_list_of_items_is_a_sequence(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where they lie is in the spool as well, but for the last ones.
    monkeypatch.setattr(spool_module, "_NOTED", 3)
    monkeypatch.setattr(spool_module, "MOST_PLACES", most)
    stored, added = Stored(Spool(50)), items(40, 20)
    for one in added:
        stored.append(one)
    assert len(stored) == 40
    assert list(stored) == added
    assert stored[7] == added[7]
    assert stored[-1] == added[-1]
    assert list(stored[3:30:4]) == added[3:30:4]
    assert [stored.at(place) for place in range(39, -1, -1)] == added[::-1]
    with pytest.raises(IndexError):
        stored[40]


def test_many_bytes_are_in_a_file_that_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = Spool(1000)
    for one in (b"x" * 900, b"y" * 900, b"z"):
        spool.add(one)
    assert spool.read(900, 1800) == b"y" * 900
    assert not list(tmp_path.iterdir())
    file: Any = spool._file
    assert os.fstat(file.fileno()).st_size == 1800
    del spool
    assert file.closed


class Full:
    """A file on a disk that is full after so many bytes."""

    def __init__(self, left: int) -> None:
        self.content = bytearray()
        self.left = left
        self.position = 0

    def seek(self, position: int) -> None:
        self.position = position

    def write(self, data: bytes) -> int:
        if not self.left:
            raise OSError("no space left")
        part = bytes(data[: self.left])
        self.content[self.position : self.position + len(part)] = part
        self.position += len(part)
        self.left -= len(part)
        return len(part)

    def read(self, size: int) -> bytes:
        return bytes(self.content[self.position : self.position + size])

    def close(self) -> None:
        pass


@pytest.mark.parametrize("room", [0, 700, 2500])
def test_where_no_file_can_be_written_all_stays_in_memory(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full(room))
    spool, added = Spool(100), items(60, 100)
    places = [(spool.add(one), one) for one in added]
    assert all(spool.read(start, start + len(one)) == one for start, one in places)


def test_threads_read_at_the_same_time() -> None:
    spool, added = Spool(1000), items(5000, 200)
    places = [(spool.add(one), one) for one in added]
    wrong: list[bytes] = []

    def read(seed: int) -> None:
        order = places[:]
        random.Random(seed).shuffle(order)
        wrong.extend(one for start, one in order if spool.read(start, start + len(one)) != one)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""Ranges of files are copied to the byte, in each of the ways in which they can be."""

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memdiag.remedies import copying
from memdiag.remedies.copying import copy_range, write

PAGE = mmap.PAGESIZE
CONTENT = os.urandom(20 * PAGE + 123)


@pytest.fixture(params=["as it is", "without a mapping", "without the kernel"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of `CONTENT`, with chunks so small that a copy takes several."""
    monkeypatch.setattr(copying, "_CHUNK", 3 * PAGE)
    monkeypatch.setattr(copying, "_SMALLEST_MAPPED", 2 * PAGE)
    if request.param == "without a mapping":
        monkeypatch.setattr(copying, "_POPULATE_READ", 12345)  # as a system does that has none
    if request.param == "without the kernel":
        monkeypatch.delattr(os, "copy_file_range")
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    """Draw an offset and a length, often of whole pages."""
    places = st.integers(0, len(CONTENT)) | st.integers(0, len(CONTENT) // PAGE).map(PAGE.__mul__)
    start, end = sorted((draw(places), draw(places)))
    return start, end - start


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # it stays as it is
@given(parts=st.lists(ranges(), max_size=4), before=st.sampled_from([0, 1, 777, PAGE]))
def test_ranges_follow_each_other(source: Path, parts: list[tuple[int, int]], before: int) -> None:
    target = source.with_name("target")
    with target.open("wb", buffering=0) as out:
        out.write(b"x" * before)
        for offset, length in parts:
            copy_range(source, offset, length, out)
    copied = b"".join(CONTENT[offset : offset + length] for offset, length in parts)
    assert target.read_bytes() == b"x" * before + copied


@pytest.mark.parametrize("size", [10 * PAGE, 10 * PAGE + 50, 0], ids=["page", "in a page", "empty"])
@pytest.mark.parametrize("offset", [0, 5])
def test_a_shorter_file_is_told(source: Path, size: int, offset: int) -> None:
    os.truncate(source, size)
    with (
        source.with_name("target").open("wb", buffering=0) as out,
        pytest.raises(OSError, match="became shorter"),
    ):
        copy_range(source, offset, 10 * PAGE + 100, out)


@pytest.mark.parametrize("size", [10 * PAGE, 10 * PAGE + 50])
def test_a_file_that_becomes_shorter_meanwhile_is_told(
    source: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shorten(out: object, data: bytes) -> None:
        os.truncate(source, size)

    monkeypatch.setattr(copying, "write", shorten)
    with (
        source.with_name("target").open("wb", buffering=0) as out,
        pytest.raises(OSError, match="became shorter"),
    ):
        copy_range(source, 5, 10 * PAGE + 100, out)


class Narrow:
    """A file that takes a few bytes at a time, as one on a disk that is nearly full."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        taken = bytes(data[:7])
        self.data += taken
        return len(taken)


def test_nothing_is_lost_where_less_is_written_than_asked() -> None:
    out = Narrow()
    write(out, CONTENT)  # type: ignore[arg-type] # it only writes
    assert out.data == CONTENT

"""Arrays in files that the user gives: damaged ones are refused, and data is read late."""

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memdiag.errors import UsageError
from memdiag.stored_arrays import MAX_ARRAYS, read_archive, stored_array

ARRAY = np.arange(64, dtype=np.float32).reshape(4, 16)
CENTRAL = b"PK\x01\x02"
HEADER = "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"


def npy(descr: str = "'<f4'", shape: str = "(4, 16)", version: int = 1) -> bytes:
    """Return a ``.npy`` file with the data of `ARRAY` and any header."""
    header = HEADER.format(descr=descr, shape=shape).encode()
    start = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(header))
    return start + header + ARRAY.tobytes()


def stored(path: Path) -> bytes:
    np.savez(path, x=ARRAY)
    return path.read_bytes()


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def with_method(data: bytes, method: int) -> bytes:
    """Return an archive with the compression `method` stated for its only member."""
    return changed(changed(data, 8, method), data.index(CENTRAL) + 10, method)


def encrypted(data: bytes) -> bytes:
    return changed(changed(data, 6, 1), data.index(CENTRAL) + 8, 1)


def members(names: list[str], content: bytes) -> Callable[[bytes, Path], bytes]:
    def make(_: bytes, path: Path) -> bytes:
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, content)
        return path.read_bytes()

    return make


def test_arrays_are_read_as_they_were_saved(tmp_path: Path) -> None:
    fortran = np.asfortranarray(ARRAY)
    np.savez_compressed(tmp_path / "a.npz", x=ARRAY, fortran=fortran, one=np.int8(7))
    found = read_archive(tmp_path / "a.npz")
    assert sorted(found) == ["fortran", "one", "x"]
    assert found["one"].shape == ()
    assert found["one"].dtype == np.dtype(np.int8)
    for name in ("x", "fortran"):
        assert found[name].shape == (4, 16)
        np.testing.assert_array_equal(np.asarray(found[name]), ARRAY)
    np.save(tmp_path / "a.npy", ARRAY)
    np.testing.assert_array_equal(np.asarray(stored_array(tmp_path / "a.npy")), ARRAY)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data, _: b"",
        lambda data, _: data[: len(data) // 2],
        lambda data, _: changed(data, 200, 99),
        lambda data, _: encrypted(data),
        lambda data, _: with_method(data, 77),
        lambda data, _: with_method(data, zipfile.ZIP_DEFLATED),
        lambda data, _: npy(),
        lambda data, _: b"not an archive",
        members([], b""),
        members(["x.npy"], b""),
        members(["x.npy"], b"no array"),
        members(["x.npy"], npy(shape="(-4, 16)")),
        members(["x.npy"], npy(shape="(4000000, 16)")),
        members(["x.npy"], npy(shape="(9999999999999999999, 16)")),
        members(["x.npy"], npy(descr="'|O'")),
        members(["x.npy"], npy(descr="[('a', '<f4'), ('a', '<f4')]")),
        members(["x.npy"], npy(descr="(" * 3000)),
        members(["x.npy"], npy(version=9)),
        members([f"{number}.npy" for number in range(MAX_ARRAYS + 1)], npy()),
    ],
)
def test_a_damaged_archive_is_one_sentence(
    tmp_path: Path, damage: Callable[[bytes, Path], bytes]
) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(damage(stored(path), path))
    with pytest.raises(UsageError, match=r"a\.npz: .*\.$"):
        {name: np.asarray(array) for name, array in read_archive(path).items()}


@pytest.mark.parametrize(
    "content",
    [b"", b"\x93NUMPY\x01", npy()[:-1], npy(descr="'|O'"), npy(shape="-1"), b"PK\x03\x04"],
)
def test_a_damaged_array_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.npy: .*\.$"):
        np.asarray(stored_array(path))


def test_only_headers_are_read_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20), y=np.zeros(1 << 20))
    read: list[int] = []
    original = zipfile.ZipExtFile.read

    def count(self: zipfile.ZipExtFile, n: int | None = -1) -> bytes:
        data = original(self, n)
        read.append(len(data))
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", count)
    found = read_archive(tmp_path / "a.npz")
    assert sum(read) < 1000
    np.asarray(found["x"])
    assert (1 << 23) < sum(read) < (1 << 24)  # of one of the two


def test_an_array_that_was_replaced_meanwhile_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAY)
    found: Any = stored_array(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", ARRAY[:2])
    with pytest.raises(UsageError, match="it changed while it was read"):
        np.asarray(found)

"""Arrays, settings and lists of models as users give them, and what is done to them."""

import io
import struct
import zipfile
from random import Random
from typing import Any

import numpy as np

from benchmarks.fuzz.encoding import NUMBERS, mutate_bytes
from benchmarks.fuzz.target import NAMES

_TYPES = ("<f4", "<f2", ">i8", "|b1", "<U3", "|O", "|V0", "|S2", "<c16", "<M8[s]", "x", "", "<f99")
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_SETTINGS = """
[tool.memdiag]
select = ["identical-weights", "MD1"]
ignore = ["unused-weights"]
min-bytes = "1 MiB"
for-onnxruntime = "1.24.4"
dim = {batch = 4, sequence = 128}
[tool.memdiag.budgets."models/*.onnx"]
peak = "1.2 GB"
copies = 2
[tool.memdiag.budgets."*"]
steady = 1000000
[other]
text = '''
a
'''
"""
_LIST = """
models = ["model.onnx", "folder", {path = "model.onnx", name = "A", dims = {batch = 4}}]
[[more]]
path = "w.bin"
"""
_TOML_VALUES = (
    *("[]", "{}", "true", "1", "-1", "1.5", "nan", "inf", "1e400", "2026-01-01", "07:32:00", '""'),
    *(
        '"x"',
        "[[1, 2], [3]]",
        "{a = 1}",
        "0x" + "f" * 40,
        "9" * 30,
        "9" * 5000,
        "''",
        "[1, ",
        "=",
        "#",
    ),
)


def mutate_settings(random: Random) -> bytes:
    """Return a damaged ``pyproject.toml``."""
    return _mutate_text(_SETTINGS, random)


def mutate_list(random: Random) -> bytes:
    """Return a damaged list of models, which names files in its folder only."""
    return _mutate_text(_LIST, random)


def _mutate_text(text: str, random: Random) -> bytes:
    """Return `text` after one to four changes of lines, values and bytes."""
    lines = text.splitlines()
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(lines))
        key, equals, value = lines[at].partition("=")
        kind = random.randrange(8)
        if kind == 0:
            del lines[at]
            lines = lines or [""]
        elif kind == 1:
            lines.insert(random.randrange(len(lines)), lines[at])
        elif kind == 2 and equals:
            lines[at] = f"{key}= {random.choice(_TOML_VALUES)}"
        elif kind == 3 and equals:
            lines[at] = f"{key}= {random.choice(NUMBERS)}"
        elif kind == 4 and equals:
            lines[at] = f"{key}= {quoted(random)}"
        elif kind == 5 and equals:
            lines[at] = f"{quoted(random)} ={value}"
        elif kind == 6:
            lines[at] = lines[at].replace('"', random.choice(("'", '"""', "")), 1)
        else:
            deep = random.choice((3, 300, 20_000))
            lines[at] = f"{key}= {'[' * deep}{']' * random.choice((deep, 0))}"
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    return mutate_bytes(data, random) if random.random() < 0.2 else data


def quoted(random: Random) -> str:
    """Return a hostile name as a text of TOML, mostly one that is encoded rightly."""
    name = random.choice(NAMES).replace("/", "").replace("..", "")  # no other folder
    if random.random() < 0.2:
        return f'"{name}"'
    return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in name) + '"'


def mutate_array(random: Random) -> bytes:
    """Return a damaged ``.npy`` file."""
    data = _array(random)
    return mutate_bytes(data, random) if random.random() < 0.5 else data


def mutate_archive(random: Random) -> bytes:
    """Return a damaged ``.npz`` file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", random.choice(_COMPRESSIONS)) as archive:
        for number in range(random.choice((0, 1, 1, 2, 3, 40))):
            name = f"{random.choice(('', '', '/', *NAMES[-8:]))}{number}.npy"  # once each
            info = zipfile.ZipInfo(name.replace("\0", ""))
            info.compress_type = random.choice(_COMPRESSIONS)
            archive.writestr(info, mutate_array(random))
    data = bytearray(out.getvalue())
    if random.random() < 0.5:  # a field of a header, such as a flag, a method or a size
        starts = [at for mark in (b"PK\x01\x02", b"PK\x03\x04") for at in _all(data, mark)]
        for start in random.sample(starts, min(len(starts), 2)):
            at = start + random.randrange(4, 30)
            data[at : at + 2] = struct.pack("<H", random.choice((0, 1, 8, 12, 99, 0x7FFF, 0xFFFF)))
    return mutate_bytes(bytes(data), random) if random.random() < 0.5 else bytes(data)


def _all(data: bytearray, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


def _array(random: Random) -> bytes:
    """Return a ``.npy`` file whose header may not say what its data is."""
    array = np.ones((4, 16), np.float32)
    if random.random() < 0.5:
        out = io.BytesIO()
        np.save(out, array)
        return out.getvalue()
    shape: tuple[Any, ...] = tuple(
        random.choice(NUMBERS) for _ in range(random.choice((0, 1, 2, 40)))
    )
    header = str(
        {
            "descr": random.choice(_TYPES),
            "fortran_order": random.choice((False, True, 0)),
            "shape": random.choice((shape, (4, 16), (4.0, 16), [4, 16], None)),
        }
    )
    if random.random() < 0.2:
        header = random.choice(("", "{", "(" * 3000, "{}", "[1]", header * 3, "1if 2", "\\", "\0"))
    encoded = header.encode() + b"\n"
    version = random.choice((1, 1, 1, 2, 3, 0, 9))
    length = struct.pack("<H" if version < 2 else "<I", len(encoded) % 2**16)
    return b"\x93NUMPY" + bytes([version, 0]) + length + encoded + array.tobytes()

"""Real sessions in child processes, and their memory as bytes to look for copies in."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from memdiag.xray.layouts import Uses, VirtualCopy, layouts

RUNTIMES = [sys.executable, *filter(None, os.environ.get("MEMDIAG_RUNTIMES", "").split(":"))]
"""Interpreters to make sessions with: this one, and those that MEMDIAG_RUNTIMES names."""

_CHILD = """
import sys, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
for pair in sys.argv[2:]:
    options.add_session_config_entry(*pair.split("=", 1))
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class ProcessMemory:
    """All writable memory of a process at one moment: (address, bytes) by region."""

    regions: list[tuple[int, bytes]]

    def find(self, copy: VirtualCopy) -> list[int]:
        """Return the addresses at which every specified byte of `copy` is."""
        places = [
            offset
            for offset in range(0, max(1, copy.nbytes - 63), 64)
            if all(not start <= offset < start + length for start, length in copy.derived)
        ]
        anchor = max(places[:64], key=lambda offset: len(set(copy.block(offset))))
        key = copy.block(anchor, min(64, copy.nbytes))
        found = []
        for address, memory in self.regions:
            at = memory.find(key)
            while at >= 0:
                if _holds(memory, at - anchor, copy):
                    found.append(address + at - anchor)
                at = memory.find(key, at + 1)
        return found


def _holds(memory: bytes, base: int, copy: VirtualCopy) -> bool:
    if base < 0 or base + copy.nbytes > len(memory):
        return False
    return all(
        b"".join(memory[base + start : base + start + length] for start, length in piece.runs)
        == piece.expected.tobytes()
        for piece in copy.pieces()
    )


def _read(pid: int) -> list[tuple[int, bytes]]:
    regions = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights.startswith("rw") and "[v" not in line:
                start, end = (int(part, 16) for part in span.split("-"))
                memory.seek(start)
                regions.append((start, memory.read(end - start)))
    return regions


@pytest.fixture(params=RUNTIMES, ids=lambda path: Path(path).parent.parent.name)
def session_memory(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[..., ProcessMemory]:
    """A function: a model and session config entries to the memory of a process that has loaded it."""

    def memory(model: onnx.ModelProto, *config: str) -> ProcessMemory:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        command = [request.param, "-c", _CHILD, str(path), *config]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            return ProcessMemory(_read(child.pid))

    return memory


@pytest.fixture
def copies() -> Callable[..., list[VirtualCopy]]:
    """A function: a weight, a layout's name and a use to the copies that the layout offers."""

    def offered(weight: np.ndarray[Any, Any], name: str, **uses: Any) -> list[VirtualCopy]:
        layout = next(layout for layout in layouts() if layout.name == name)
        return list(layout.candidates(weight, Uses(**uses)))

    return offered

"""Real sessions in child processes: small models, and the memory of a process with a session."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
from numpy.typing import NDArray
from onnx import helper

from memdiag.attribution.virtual_copy import VirtualCopy
from tests.builders import build, noise

RUNTIMES = [sys.executable, *filter(None, os.environ.get("MEMDIAG_RUNTIMES", "").split(":"))]
"""Interpreters for the sessions: this one, and those in MEMDIAG_RUNTIMES."""

# Imports onnxruntime once. Each session is made in a process forked for it, which then waits.
_PARENT = """
import json, os, signal, sys, onnxruntime as ort

def wait_with_session(path, config):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    for pair in config:
        options.add_session_config_entry(*pair.split("=", 1))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    print(os.getpid(), flush=True)
    signal.pause()

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            wait_with_session(*json.loads(line))
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(1)
    os.waitpid(child, 0)
"""


def model(body: str, *, x: str = "float[n, k]", **weights: Any) -> onnx.ModelProto:
    """Return a model of the nodes in `body` from ``x``, whose type is given, to ``y``."""
    graph = f"({x} x) => (y) {{ {body} }}"
    return build(graph, opset=21, ir=10, domains={"com.microsoft": 1}, weights=weights)


def combined(*models: onnx.ModelProto) -> onnx.ModelProto:
    """Return one model with the independent graphs of `models`, so that they share a session."""
    graphs = [
        onnx.compose.add_prefix(part, f"m{index}_").graph for index, part in enumerate(models)
    ]
    graph = helper.make_graph(
        [node for part in graphs for node in part.node],
        "g",
        [value for part in graphs for value in part.input],
        [value for part in graphs for value in part.output],
        [tensor for part in graphs for tensor in part.initializer],
    )
    return helper.make_model(graph, opset_imports=models[0].opset_import, ir_version=10)


@dataclass(frozen=True)
class ProcessMemory:
    """All writable memory of a process at one moment: (address, bytes) by region."""

    regions: list[tuple[int, bytes]]

    def find(self, copy: VirtualCopy) -> list[int]:
        """Return the addresses at which every specified byte of `copy` is."""
        offsets = [
            offset
            for offset in range(0, max(1, copy.nbytes - 63), 64)
            if not any(start <= offset < start + length for start, length in copy.derived)
        ]
        blocks = copy.blocks(np.array(offsets[:64], np.int64)).tolist()
        anchor, _ = max(zip(offsets[:64], blocks, strict=True), key=lambda pair: len(set(pair[1])))
        key = copy.block(anchor, min(64, copy.nbytes))
        found = []
        for address, memory in self.regions:
            at = memory.find(key)
            while at >= 0:
                if _contains(memory, at - anchor, copy):
                    found.append(address + at - anchor)
                at = memory.find(key, at + 1)
        return found


SessionMemory = Callable[..., ProcessMemory]
"""A function: a model and session config entries to the memory of a process that loaded it."""


class SessionStarter:
    """Makes sessions under one interpreter, each in a process of its own."""

    def __init__(self, python: str) -> None:
        command = [python, "-c", _PARENT]
        self._parent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def load(self, path: Path, config: Sequence[str] = ()) -> ProcessMemory:
        """Return the memory of a process that has made a session of the model at `path`."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([str(path), config]) + "\n")
        self._parent.stdin.flush()
        answer = self._parent.stdout.readline()
        assert answer.strip().isdecimal(), answer
        try:
            return ProcessMemory(_read(int(answer)))
        finally:
            os.kill(int(answer), signal.SIGKILL)

    def close(self) -> None:
        """End the process that starts the others."""
        self._parent.communicate()


def integers(dtype: Any, *shape: int, seed: int = 3) -> NDArray[Any]:
    """Return 8-bit values over their whole range, the same each time."""
    return noise(*shape, dtype=dtype, seed=seed)


def _contains(memory: bytes, base: int, copy: VirtualCopy) -> bool:
    if base < 0 or base + copy.nbytes > len(memory):
        return False
    return all(
        b"".join(memory[base + start : base + start + length] for start, length in runs.spans)
        == runs.expected.tobytes()
        for runs in copy.expected_spans()
    )


def _read(pid: int) -> list[tuple[int, bytes]]:
    """Return the writable regions that have a page in memory; most of the others are reserved.

    Adjacent regions are one: a fork keeps the heap of the parent and what is added to it apart.
    """
    regions: list[tuple[int, bytes]] = []
    with open(f"/proc/{pid}/smaps") as lines, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in lines:
            name, *words = line.split()
            if not name.endswith(":"):
                span, is_writable = name, words[0].startswith("rw") and "[v" not in line
            elif name == "Rss:" and is_writable and words[0] != "0":
                start, end = (int(part, 16) for part in span.split("-"))
                memory.seek(start)
                data = memory.read(end - start)
                if regions and regions[-1][0] + len(regions[-1][1]) == start:
                    start, data = regions[-1][0], regions.pop()[1] + data
                regions.append((start, data))
    return regions

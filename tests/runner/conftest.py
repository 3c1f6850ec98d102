"""A runtime of our own that logs like onnxruntime and does what the test says.

It is found by the child instead of onnxruntime, through PYTHONPATH: what happens in each phase, and
how much memory it takes, is then known by construction.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from memdiag.runner.job import Job, Limits, SessionConfig

RUNTIME = """
import ctypes, json, mmap, os, signal, sys, time, types

__version__ = "99.0.0"
SCRIPT = json.loads(os.environ["FAKE_RUNTIME"])
kept = []

def set_default_logger_severity(level):
    pass

def get_available_providers():
    return SCRIPT.get("available", ["CPUExecutionProvider"])

def log(message, severity="I"):
    now = time.time_ns()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now // 10**9))
    line = f"{stamp}.{now % 10**9:09d} [{severity}:onnxruntime:, file.cc:1 f] {message}\\n"
    os.write(2, line.encode())

def allocate(megabytes):
    area = mmap.mmap(-1, megabytes * 1_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, len(area), 4096):
        area[start] = 1
    return area

def act(stage):
    held = []
    for step in SCRIPT.get(stage, []):
        verb, value = next(iter(step.items()))
        if verb == "log":
            log(value)
        elif verb == "warn":
            log(value, "W")
        elif verb == "say":
            os.write(2, value.encode())
        elif verb == "keep":
            kept.append(allocate(value))
        elif verb == "hold":
            held.append(allocate(value))
        elif verb == "spike":
            allocate(value).close()
        elif verb == "sleep":
            time.sleep(value)
        elif verb == "raise":
            raise RuntimeError(value)
        elif verb == "load":
            kept.append(ctypes.CDLL(value))
        elif verb == "signal":
            os.kill(os.getpid(), getattr(signal, value))
        elif verb == "exit":
            os._exit(value)
    return held

def record(feeds):
    with open(SCRIPT["feeds_file"], "a") as file:
        print(json.dumps({name: value.tolist() for name, value in feeds.items()}), file=file)

class SessionOptions:
    def __init__(self):
        self.log_severity_level = -1
        self.enable_mem_pattern = True
        self.intra_op_num_threads = 0

    def add_session_config_entry(self, name, value):
        pass

class RunOptions:
    pass

class InferenceSession:
    def __init__(self, source, options, providers, **arguments):
        self.held = act("create")

    def get_providers(self):
        return SCRIPT.get("providers", ["CPUExecutionProvider"])

    def get_provider_options(self):
        return SCRIPT.get("provider_options", {})

    def get_inputs(self):
        return []

    def get_outputs(self):
        return []

    def get_modelmeta(self):
        return types.SimpleNamespace(custom_metadata_map={})

    def run(self, outputs, feeds, options=None):
        if "feeds_file" in SCRIPT:
            record(feeds)
        act("run")
        return []

act("import")
"""


@pytest.fixture
def fake_job(tmp_path: Path) -> Callable[..., Job]:
    """Return a function that makes a job whose runtime does as `script` says, by stage."""
    folder = tmp_path / "fake_runtime"
    folder.mkdir()
    (folder / "onnxruntime.py").write_text(RUNTIME)

    def make(script: Mapping[str, object], **changes: Any) -> Job:
        variables = {"PYTHONPATH": str(folder), "FAKE_RUNTIME": json.dumps(script)}
        session = SessionConfig(environment=variables)
        job = Job(model=tmp_path / "model.onnx", session=session, limits=Limits(timeout_s=60))
        groups: dict[str, Any] = {}
        for name in ("session", "limits"):
            group = getattr(job, name)
            known = {each.name for each in fields(group)} & changes.keys()
            groups[name] = replace(group, **{each: changes.pop(each) for each in known})
        return replace(job, **groups, **{"runs": 3, **changes})

    return make


def running_scripts(parent: int | None = None) -> list[psutil.Process]:
    """Return the children of `parent`, or of this process, that run a script.

    A browser of other tests may be a child, too, or have ended.
    """
    found = []
    for child in psutil.Process(parent).children():
        with suppress(psutil.ZombieProcess):
            found += [child] if any("scripts" in word for word in child.cmdline()) else []
    return found


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

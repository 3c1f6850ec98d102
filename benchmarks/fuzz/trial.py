"""One file through the commands, in the process that is forked for it."""

import faulthandler
import importlib
import io
import json
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from onnx import ModelProto

import memdiag.rules
from benchmarks.fuzz.models import base_models
from benchmarks.fuzz.mutations import mutate
from benchmarks.fuzz.records import base_records, mutate_record
from memdiag.api.check import Selection, check_models
from memdiag.api.inspect import inspect
from memdiag.api.load import load_reported
from memdiag.cli.output import print_check, show, show_inventory
from memdiag.errors import MemdiagError
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.codec import decode, encode
from memdiag.records.finding import Check
from memdiag.records.inventory import Inventory
from memdiag.reports import report_of
from memdiag.rules import detectors
from memdiag.units import KIB, MIB

SECONDS = 20
"""Processor time that a file may take, and a sixth of the time that may pass; else it hangs."""

ADDRESS_SPACE = 1024 * MIB
"""What a process may add to its address space, most of which is never used."""

CHECK, INSPECT, REPORT, BUILD = "check", "inspect", "report", "build"
_RECORDS = 0.03  # the share of files that are records, which take longest
_RUNTIMES = ("1.20.1", "1.22.1", "1.24.4", "1.32.0")
_DRAWN = ("html", "svg", "png")
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Bases:
    """The valid models and records that all files are made from, in a folder with their data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: Sequence[ModelProto] = list(base_models(folder).values())
        self.records = base_records()


def is_record(seed: int, number: int) -> bool:
    """Return whether file `number` is a record rather than a model."""
    return Random(f"{seed} {number} kind").random() < _RECORDS


def run(bases: Bases, seed: int, number: int, results: int, log: Path) -> NoReturn:
    """Build file `number`, put it through the commands, write what happened to `results`, and end.

    A line of JSON says which command is next, another one how it ended.
    """
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that forked ends this one
    faulthandler.enable(errors)
    faulthandler.register(signal.SIGXCPU, errors)
    faulthandler.dump_traceback_later(6 * SECONDS, file=errors)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    warnings.simplefilter("error")  # a warning is printed, which no command means to

    def say(**facts: object) -> None:
        os.write(results, json.dumps(facts).encode() + b"\n")

    random = Random(f"{seed} {number}")
    record = is_record(seed, number)
    path = bases.folder / ("record.json" if record else "model.onnx")
    commands: dict[str, Callable[[], dict[str, Any]]] = {
        BUILD: lambda: _build(bases, path, random, record=record)
    }
    if record:
        commands[REPORT] = lambda: _report(path, random)
    else:
        commands[CHECK] = lambda: _check(path, random)
        commands[INSPECT] = lambda: _inspect(path)
    for name, command in commands.items():
        say(begins=name)
        started = time.monotonic()
        try:
            facts = command()
        except MemdiagError:
            facts = {"outcome": "refused"}
        except BaseException as error:
            traceback.print_exc()
            facts = {"outcome": "exception", "where": _where(error)}
        say(ends=name, seconds=time.monotonic() - started, **facts)
    os._exit(0)


def prepare(bases: Bases) -> None:
    """Import what the commands import when they first need it, but for what draws pictures."""
    random = Random(0)
    path = bases.folder / "first"
    for model in bases.models:
        path.write_bytes(model.SerializeToString())
        _check(path, random)
        _inspect(path)
    for record in bases.records:
        path.write_text(json.dumps(record))
        _report(path, random, "html")
    path.unlink()


def lower_least_sizes() -> None:
    """Let rules look at weights of any size, so that models of some kilobytes reach all of them."""
    for entry in pkgutil.walk_packages(memdiag.rules.__path__, f"{memdiag.rules.__name__}."):
        module = importlib.import_module(entry.name)
        for name, value in vars(module).items():
            if name.lstrip("_").startswith(("LEAST", "MIN")) and isinstance(value, int):
                setattr(module, name, 1 if value >= KIB else value)


def _build(bases: Bases, path: Path, random: Random, *, record: bool) -> dict[str, Any]:
    path.write_bytes(
        mutate_record(bases.records, random) if record else mutate(bases.models, random)
    )
    return {"outcome": "built"}


def _check(path: Path, random: Random) -> dict[str, Any]:
    release = random.choice(_RUNTIMES)
    dims = random.choice(({}, {"N": 4, "H": 32, "W": 32, "S": 8}))
    selection = Selection(min_bytes=0)
    result = check_models([path], selection=selection, for_onnxruntime=release, dims=dims)
    problems: dict[str, Any] = {}
    for format in ("console", random.choice(("json", "sarif", "markdown"))):
        with _captured() as output:
            print_check(result, format)
        printed = output.getvalue()
        if format == "sarif":
            json.loads(printed)
        elif format == "json":
            decode(printed, Check)
        else:
            problems |= _unsafe(printed.decode())
    if any(min(one.bytes, one.peak_bytes) < 0 for one in result.findings):
        problems["where"] = "a finding of fewer than 0 bytes"
    if problems:
        return {"outcome": "unsafe", **problems}
    (model,) = result.models
    if model.error is not None:
        return {"outcome": "refused"}
    defects: list[str] = []
    if any("defect of memdiag" in note for note in model.notes):
        defects = _defects(path, release, dims)
    rules = sorted({one.rule for one in result.findings})
    outcome = "findings" if rules else "clean"
    return {"outcome": outcome, "rules": rules, "defects": defects}


def _defects(path: Path, release: str, dims: Mapping[str, int]) -> list[str]:
    """Return the places where rules fail on the model at `path`, each once."""
    places = []
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime.parse(release), sizes=dims)
        for detector in detectors():
            try:
                list(detector.detect(ctx))
            except Exception as error:
                traceback.print_exc()
                places.append(_where(error))
    return list(dict.fromkeys(places)) or ["a rule that did not fail again"]


def _inspect(path: Path) -> dict[str, Any]:
    inventory = inspect(path)
    with _captured() as output:
        show_inventory(inventory)
    decode(encode(inventory), Inventory)
    return {"outcome": "clean", **_unsafe(output.getvalue().decode())}


def _report(path: Path, random: Random, drawn: str = "") -> dict[str, Any]:
    record = load_reported(path)
    report = report_of(record)
    with _captured() as output:
        show(record)
    drawn = drawn or random.choice(_DRAWN)
    for format in ("json", "markdown", drawn):
        report.render(record, format)
    return {"outcome": "clean", **_unsafe(output.getvalue().decode())}


@contextmanager
def _captured() -> Iterator[io.BytesIO]:
    """Catch what is printed, encoded as strictly as standard output does it."""
    output, before = io.BytesIO(), sys.stdout
    sys.stdout = io.TextIOWrapper(output, "utf-8", write_through=True)
    try:
        yield output
    finally:
        sys.stdout.detach()
        sys.stdout = before


def _unsafe(text: str) -> dict[str, Any]:
    """Return what is wrong with printed `text`: characters that a terminal would obey."""
    for character in text:
        if character != "\n" and (
            unicodedata.category(character) == "Cc" or character in _BIDIRECTIONAL
        ):
            return {"outcome": "unsafe", "where": f"printed {character!a}"}
    return {}


def _where(error: BaseException) -> str:
    """Return the kind of `error` and the innermost place of memdiag's that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    root = str(Path(memdiag.__file__).parent)
    own = [frame for frame in frames if frame.filename.startswith(root)] or frames[-1:]
    place = f"{own[-1].filename.removeprefix(root + os.sep)}:{own[-1].name}"
    return f"{type(error).__name__} in {place}"

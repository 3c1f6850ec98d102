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
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, NoReturn

import numpy as np
from onnx import ModelProto

import memdiag.rules
from benchmarks.fuzz.models import base_models
from benchmarks.fuzz.mutations import mutate
from benchmarks.fuzz.records import PROFILE, base_records, mutate_record
from benchmarks.fuzz.small_files import (
    mutate_archive,
    mutate_array,
    mutate_list,
    mutate_settings,
)
from memdiag.api.check import RuleSelection, check_models
from memdiag.api.compare import compare
from memdiag.api.estimate import estimate
from memdiag.api.load import load, load_profile, load_reported
from memdiag.api.project_settings import read_project_settings
from memdiag.budgets.evaluation import judge_budget
from memdiag.cli.output import print_check, print_record_summary
from memdiag.errors import MemdiagError, UsageError
from memdiag.model.model_file import open_model
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.runtime import Runtime
from memdiag.records.baseline import Baseline
from memdiag.records.budget import Budget
from memdiag.records.codec import decode, encode
from memdiag.records.estimate import Estimate
from memdiag.records.finding import Check
from memdiag.records.profile import Profile
from memdiag.reports import budget, report_of
from memdiag.reports.text import plain
from memdiag.rules import model_detectors
from memdiag.stored_arrays import read_archive, stored_array
from memdiag.sweeps.model_sources import find_sweep_models
from memdiag.units import KIB, MIB

SECONDS = 20
"""Processor time that a file may take, and a sixth of the time that may pass; else it hangs."""

ADDRESS_SPACE = 1024 * MIB
"""What a process may add to its address space, most of which is never used."""

CHECK, ESTIMATE = "check", "estimate"
RECORD, ARRAYS, SETTINGS, LIST = "report", "--input", "pyproject.toml", "sweep LIST"
BUILD = "build"
_ESTIMATED = 0.3  # the share of models that are estimated
_RUNTIMES = ("1.24.4", "1.32.0")
_DRAWN = ("html", "svg", "png")
_PEAK_UNKNOWN = "the peak could not be estimated"
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Bases:
    """The valid models and records that all files are made from, in a folder with their data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: Sequence[ModelProto] = list(base_models(folder).values())
        self.records = base_records()


class Kind(NamedTuple):
    """A kind of file.

    Attributes:
        share: how many of all files are of it.
        name: the name of the file.
        build: returns the content of a damaged file.
        commands: what it goes through, by name.
    """

    share: float
    name: str
    build: Callable[[Bases, Random], bytes]
    commands: Mapping[str, Callable[[Path, Random], dict[str, Any]]]


def kind_of(seed: int, number: int) -> Kind:
    """Return the kind of file `number`."""
    at = Random(f"{seed} {number} kind").random()
    for kind in KINDS:
        at -= kind.share
        if at < 0:
            break
    return kind


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
    kind = kind_of(seed, number)
    path = bases.folder / kind.name

    def build(path: Path, random: Random) -> dict[str, Any]:
        path.write_bytes(kind.build(bases, random))
        return {"outcome": "built"}

    for name, command in {BUILD: build, **kind.commands}.items():
        say(begins=name)
        started = time.monotonic()
        try:
            facts = command(path, random)
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
    _estimate(path, random)
    for record in bases.records:
        path.write_text(json.dumps(record))
        _show(path, random, "html")
    path.unlink()


def lower_least_sizes() -> None:
    """Let rules look at weights of any size, so that models of some kilobytes reach all of them."""
    for entry in pkgutil.walk_packages(memdiag.rules.__path__, f"{memdiag.rules.__name__}."):
        module = importlib.import_module(entry.name)
        for name, value in vars(module).items():
            if name.lstrip("_").startswith(("LEAST", "MIN")) and isinstance(value, int):
                setattr(module, name, 1 if value >= KIB else value)


def _check(path: Path, random: Random) -> dict[str, Any]:
    release = random.choice(_RUNTIMES)
    dims = random.choice(({}, {"N": 4, "H": 32, "W": 32, "S": 8}))
    selection = RuleSelection(min_bytes=0)
    try:
        result = check_models([path], selection=selection, for_onnxruntime=release, dims=dims)
    except UsageError:  # it does not have all of these
        dims = {}
        result = check_models([path], selection=selection, for_onnxruntime=release)
    problems: dict[str, Any] = {}
    for format in ("console", random.choice(("json", "sarif", "markdown"))):
        with _captured() as output:
            print_check(result, format)
        printed = output.getvalue()
        problems |= _unsafe(printed.decode())
        if format == "sarif":
            json.loads(printed)
        elif format == "json":
            decode(printed, Check)
    if any(min(one.bytes, one.peak_bytes) < 0 for one in result.findings):
        problems["where"] = "a finding of fewer than 0 bytes"
    if problems:
        return {"outcome": "unsafe", **problems}
    (model,) = result.models
    if model.error is not None:
        return {"outcome": "refused"}
    is_failed = any("defect of memdiag" in note for note in model.notes)
    defects = _defects(path, release, dims) if is_failed else []
    defects += [note for note in model.notes if note.startswith(_PEAK_UNKNOWN)]
    rules = sorted({one.rule for one in result.findings})
    outcome = "findings" if rules else "clean"
    return {"outcome": outcome, "rules": rules, "defects": defects}


def _defects(path: Path, release: str, dims: Mapping[str, int]) -> list[str]:
    """Return the places where rules fail on the model at `path`, each once."""
    places = []
    with open_model(path) as model:
        ctx = AnalysisContext(model, Runtime.parse(release), sizes=dims)
        for detector in model_detectors():
            try:
                list(detector.detect(ctx))
            except Exception as error:
                traceback.print_exc()
                places.append(_where(error))
    return list(dict.fromkeys(places)) or ["a rule that did not fail again"]


def _estimate(path: Path, random: Random) -> dict[str, Any]:
    """Estimate one of some models: it takes twice as long as a check."""
    if random.random() > _ESTIMATED:
        return {"outcome": "passed over"}
    found = estimate(path, for_onnxruntime=random.choice(_RUNTIMES))
    with _captured() as output:
        print_record_summary(found)
    decode(encode(found), Estimate)
    return {"outcome": "clean", **_unsafe(output.getvalue().decode())}


def _show(path: Path, random: Random, drawn: str = "") -> dict[str, Any]:
    """Show a record as ``report`` does, and compare a profile or baseline with a profile."""
    loaded = load(path)
    if isinstance(loaded, Baseline):
        return _baseline(loaded)
    if isinstance(loaded, Check):
        with _captured() as output:
            print_check(loaded, "console")
        return {"outcome": "clean", **_unsafe(output.getvalue().decode())}
    record = load_reported(path)
    report = report_of(record)
    with _captured() as output:
        print_record_summary(record)
    drawn = drawn or random.choice(_DRAWN)
    printed = output.getvalue().decode()
    for format in ("json", "markdown", drawn):
        rendered = report.render(record, format)
        printed += rendered.decode() if format in ("json", "markdown") else ""
    if isinstance(record, Profile):
        with _captured() as output:
            print_record_summary(compare(path, path))
        printed += output.getvalue().decode()
    return {"outcome": "clean", **_unsafe(printed)}


def _baseline(baseline: Baseline) -> dict[str, Any]:
    profile = load_profile(PROFILE)
    judgements = [
        judge_budget([profile], Budget(), entry=each) for each in baseline.machines.values()
    ]
    printed = "\n".join(map(plain, chain.from_iterable(map(budget.judgement_lines, judgements))))
    return {"outcome": "clean", **_unsafe(printed)}


def _arrays(path: Path, random: Random) -> dict[str, Any]:
    arrays = [stored_array(path)] if path.suffix == ".npy" else read_archive(path).values()
    for array in arrays:
        np.asarray(array)
    return {"outcome": "clean"}


def _settings(path: Path, random: Random) -> dict[str, Any]:
    settings = read_project_settings(path.parent)
    settings.selection()
    settings.budget_for("models/a.onnx")
    return {"outcome": "clean"}


def _list(path: Path, random: Random) -> dict[str, Any]:
    find_sweep_models([str(path)])
    return {"outcome": "clean"}


KINDS = (
    Kind(
        0.03, "record.json", lambda bases, rnd: mutate_record(bases.records, rnd), {RECORD: _show}
    ),
    Kind(0.03, "array.npy", lambda _, rnd: mutate_array(rnd), {ARRAYS: _arrays}),
    Kind(0.05, "arrays.npz", lambda _, rnd: mutate_archive(rnd), {ARRAYS: _arrays}),
    Kind(0.03, "pyproject.toml", lambda _, rnd: mutate_settings(rnd), {SETTINGS: _settings}),
    Kind(0.02, "models.toml", lambda _, rnd: mutate_list(rnd), {LIST: _list}),
    Kind(
        0.84,
        "model.onnx",
        lambda bases, rnd: mutate(bases.models, rnd),
        {CHECK: _check, ESTIMATE: _estimate},
    ),
)


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
            unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _REORDERING
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

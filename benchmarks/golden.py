"""What memdiag says of many models, recorded and compared: ``python -m benchmarks.golden``.

A record is made before a change of the code and again after it; whatever differs is a mistake, or a
correction that the changelog names. The command line is used, except for the rewrites, so that the
code behind it may change as a whole:

``collect FOLDER [PYTEST ARGUMENTS]``
    Run the tests and keep a copy of every model that they open (of at most 16 MB, each content
    once).
``record FILE.json FOLDER…``
    For every model below the folders: the findings of ``check`` for five releases of onnxruntime,
    the rewrites that ``fix`` would try and those that it refuses. With ``--profile`` also the
    copies of weights that ``profile`` finds, for the models whose path contains the word given.
``compare BEFORE.json AFTER.json``
    Print what differs, apart from wording and order, and end with 1 where something does.

Records and models go to ``.cache/golden``; none is committed.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

RELEASES = ("1.24.4", "1.32.0")
MAX_MODEL_BYTES = 16_000_000
MAX_SECONDS = 120
_FINDING = ("name", "graph", "bytes", "peak_bytes", "phase", "evidence")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the three steps and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("collect")
    step.add_argument("folder", type=Path)
    step = steps.add_parser("record")
    step.add_argument("file", type=Path)
    step.add_argument("folders", type=Path, nargs="+")
    step.add_argument("--profile", metavar="WORD", help="also profile models with WORD in the path")
    step = steps.add_parser("compare")
    step.add_argument("before", type=Path)
    step.add_argument("after", type=Path)
    given, rest = parser.parse_known_args(arguments)
    if given.step == "collect":
        return collect(given.folder, rest)
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if given.step == "record":
        return record(given.file, given.folders, given.profile)
    return compare(given.before, given.after)


def collect(folder: Path, pytest_arguments: Sequence[str]) -> int:
    """Run pytest with `pytest_arguments` and copy every model that the tests open to `folder`."""
    import pytest

    folder.mkdir(parents=True, exist_ok=True)
    return int(pytest.main([*pytest_arguments, "-q"], plugins=[_Collector(folder)]))


class _Collector:
    """A pytest plugin that copies each model a test opens, with its external data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pytest_configure(self) -> None:
        from memdiag.model.model_file import ModelFile

        create = ModelFile.__init__

        def init(file: ModelFile, path: Path, *others: Any, **options: Any) -> None:
            create(file, path, *others, **options)
            with contextlib.suppress(OSError):
                self._copy(Path(path), file.external_bytes)

        setattr(ModelFile, "__init__", init)  # noqa: B010 # a type checker allows no other way

    def _copy(self, path: Path, external_bytes: int) -> None:
        if path.stat().st_size + external_bytes > MAX_MODEL_BYTES:
            return
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        target = self._folder / digest
        if target.exists():
            return
        target.mkdir()
        shutil.copy(path, target / "model.onnx")
        if external_bytes:
            for name in _external_files(path):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path.parent / name, target / name)


def _external_files(path: Path) -> set[str]:
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, _get_all_tensors, uses_external_data

    model = onnx.load(str(path), load_external_data=False)
    found = {
        ExternalDataInfo(tensor).location
        for tensor in _get_all_tensors(model)
        if uses_external_data(tensor)
    }
    return {name for name in found if not os.path.isabs(name) and ".." not in Path(name).parts}


def record(file: Path, folders: Sequence[Path], profile: str | None) -> int:
    """Write to `file` what memdiag says of each model below `folders`."""
    file, folders = file.absolute(), [folder.absolute() for folder in folders]
    _import_before_forking()
    models = sorted(
        {path for folder in folders for path in folder.rglob("*.onnx")}, key=lambda path: str(path)
    )
    results: dict[str, Any] = {}
    # Not a TemporaryDirectory, which the end of each fork would remove.
    settings = tempfile.mkdtemp()
    with contextlib.chdir(settings):
        # Of the smallest models, too.
        Path("pyproject.toml").write_text("[tool.memdiag]\nmin-bytes = 0\n")
        for number, path in enumerate(models, 1):
            print(f"\r{number}/{len(models)}", end="", file=sys.stderr, flush=True)
            results[_name(path, folders)] = dict(_of_model(path, profile))
    shutil.rmtree(settings)
    print(file=sys.stderr)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1, sort_keys=True))
    return 0


def _name(path: Path, folders: Sequence[Path]) -> str:
    for folder in folders:
        if path.is_relative_to(folder):
            return str(Path(folder.name) / path.relative_to(folder))
    raise AssertionError(path)


def _of_model(path: Path, profile: str | None) -> Iterator[tuple[str, Any]]:
    for release in RELEASES:
        code, found = _memdiag("check", "--for-onnxruntime", release, str(path))
        yield f"check {release}", {"exit": code, **_check(found)}
    code, rewrites = _in_fork(partial(_print_rewrites, path))
    yield "fix", {"exit": code, "rewrites": rewrites}
    if profile is not None and profile in str(path):
        threads = ("--session-option", "intra_op_num_threads=1")
        pinned = ("--runs", "2", *threads, "--env", "MALLOC_MMAP_THRESHOLD_=65536")
        with tempfile.TemporaryDirectory() as out:
            code, found = _memdiag("profile", *pinned, "--out", out, str(path))
        yield "profile", {"exit": code, "copies": _copies(found)}


def _memdiag(command: str, *arguments: str) -> tuple[int, dict[str, Any] | None]:
    """Run one command in a fork of this process; its exit code and what it printed as JSON."""
    return _in_fork(partial(_be_memdiag, [command, "--format", "json", *arguments]))


def _in_fork(run: Callable[[], int]) -> tuple[int, Any]:
    """Call `run` in a fork of this process; the exit code that it returns, and what it printed."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            _be_child(output.fileno(), run)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read()
    try:
        return os.waitstatus_to_exitcode(status), json.loads(text)
    except ValueError:
        return os.waitstatus_to_exitcode(status), None


def _import_before_forking() -> None:
    """Import what every fork needs, so that it is imported once."""
    for module in ("numpy", "onnx.checker", "onnx.shape_inference", "onnx_ir", "memdiag.cli.app"):
        import_module(module)


def _be_child(output: int, run: Callable[[], int]) -> None:
    import signal

    code = 70
    try:
        signal.alarm(MAX_SECONDS)
        os.dup2(output, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = run()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _be_memdiag(arguments: Sequence[str]) -> int:
    from memdiag.cli import main as run

    sys.argv = ["memdiag", *arguments]
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 70
    return 70


def _print_rewrites(path: Path) -> int:
    """Print what a fix would do with each rewrite before it measures; return 2 for no model."""
    import memdiag
    from memdiag.errors import MemdiagError
    from memdiag.fixing.changes import changes_by_rule
    from memdiag.fixing.model_writer import ModelWriter
    from memdiag.fixing.state import FixState
    from memdiag.model.model_file import open_model

    try:
        findings = memdiag.check(path, min_bytes=0)
        with open_model(path) as file:
            state = FixState(writer=ModelWriter(file, path.with_suffix(".fixed.onnx")))
            changes = itertools.chain.from_iterable(changes_by_rule(findings))
            tried = [found[0] for change in changes if (found := state.possible(change))]
    except MemdiagError:
        return 2
    rewrites = [(one.name, one.rule, "possible", sorted(one.weights)) for one in tried]
    rewrites += [(one.name, one.rule, one.status, sorted(one.weights)) for one in state.outcomes]
    print(json.dumps(sorted(rewrites)))
    return 0


def _check(found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        return {}
    findings = [
        {
            **{name: finding[name] for name in _FINDING},
            "weights": sorted(finding["weights"]),
            "nodes": sorted(finding["nodes"]),
            "remedies": sorted(finding["remedies"]),
        }
        for finding in found["findings"]
    ]
    return {
        "findings": sorted(findings, key=lambda finding: json.dumps(finding, sort_keys=True)),
        "notes": [len(model["notes"]) for model in found["models"]],
        "error": [bool(model["error"]) for model in found["models"]],
        "inputs": [[model["inputs"], model["dimensions"]] for model in found["models"]],
    }


def _copies(found: dict[str, Any] | None) -> list[Any]:
    attribution = (found or {}).get("attribution")
    if not attribution:
        return []
    return sorted(
        [sorted(copy["weights"]), copy["layout"], copy["kind"], copy["bytes"]]
        for copy in attribution["copies"]
    )


def compare(before: Path, after: Path) -> int:
    """Print what differs between two records; return 1 where something does."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    count = 0
    for model in sorted(old.keys() | new.keys()):
        for line in _differences(old.get(model), new.get(model)):
            print(f"{model}: {line}")
            count += 1
    print(f"{len(old.keys() & new.keys())} models in both, {count} differences")
    return 1 if count else 0


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    if type(old) is not type(new):
        yield f"{path} {_short(old)} → {_short(new)}"
    elif isinstance(old, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{path} {key}".strip())
    elif isinstance(old, list):
        texts = [[json.dumps(item, sort_keys=True) for item in items] for items in (old, new)]
        for text in texts[0]:
            if text not in texts[1]:
                yield f"{path} - {_short(text)}"
        for text in texts[1]:
            if text not in texts[0]:
                yield f"{path} + {_short(text)}"
    elif old != new:
        yield f"{path} {_short(old)} → {_short(new)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 400 else f"{text[:400]} …"


if __name__ == "__main__":
    sys.exit(main())

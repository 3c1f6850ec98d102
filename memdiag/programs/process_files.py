"""Files of a process that concern onnxruntime: its library, and its models."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from memdiag.attribution.address_space import read_address_space
from memdiag.errors import ModelError
from memdiag.model.model_file import open_model
from memdiag.records.attribution import Attribution

MAX_GUESSES = 20
"""Models that are searched for if none is given."""

MAX_MODELS_IN_FOLDER = 50
"""Models in the folder of a mapped file that are checked for external data in that file."""

_VERSION = r"(\d+\.\d+\.\d+)"
_LIBRARY_NAME = re.compile(r"onnxruntime[^/]*\.(so|node)\b[^/]*$")
_IN_NAME = re.compile(rf"\.so\.{_VERSION}$")
_IN_FOLDER = re.compile(rf"onnxruntime[^/]*-{_VERSION}/")
_PACKAGE_FILES = ("capi/build_and_package_info.py", "package.json")
_PACKAGE = re.compile(r"""^\s*"?(?:package_)?name"?\s*[=:]\s*["']([^"']+)""", re.MULTILINE)
_PACKAGE_VERSION = re.compile(
    rf"""^\s*"?(?:__)?version(?:__)?"?\s*[=:]\s*["']{_VERSION}""", re.MULTILINE
)
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_MAX_PARENTS = 6


class LoadedRuntime(NamedTuple):
    """The library of onnxruntime that a process has loaded.

    Attributes:
        version: the release; None if neither the path nor the package of the library has it.
        build: the Python distribution or the npm package; None for another library.
    """

    version: str | None
    build: str | None


def loaded_runtime(pid: int) -> LoadedRuntime | None:
    """Return the onnxruntime in process `pid`; None if it has none, or cannot be read."""
    try:
        maps = os.fsdecode(Path(f"/proc/{pid}/maps").read_bytes())
    except OSError:
        return None
    paths = {fields[5] for line in maps.splitlines() if len(fields := line.split(maxsplit=5)) == 6}
    libraries = sorted(path for path in paths if _LIBRARY_NAME.search(path))
    if not libraries:
        return None
    # The process may see other files than this one, as in a container.
    root = Path(f"/proc/{pid}/root")
    found = [_runtime_of(library, root) for library in libraries]
    return max(found, key=lambda runtime: (runtime.version is not None, runtime.build is not None))


def _runtime_of(library: str, root: Path) -> LoadedRuntime:
    for parent in list(Path(library).parents)[:_MAX_PARENTS]:
        if not parent.name.startswith("onnxruntime"):
            continue
        for name in _PACKAGE_FILES:
            with suppress(OSError):
                text = (root / str(parent / name).lstrip("/")).read_text(errors="replace")
                package, version = _PACKAGE.search(text), _PACKAGE_VERSION.search(text)
                if package and version:
                    return LoadedRuntime(version[1], package[1])
    in_path = _IN_NAME.search(library) or _IN_FOLDER.search(library)
    return LoadedRuntime(in_path[1] if in_path else None, None)


def guess_models(pid: int) -> tuple[Path, ...]:
    """Return the ONNX files that process `pid` maps, has open to read, or was started with.

    If it maps external data, models in the same folder that refer to it are included. A model that
    the process has read, and whose file it has closed, is not found.

    Raises:
        XrayError: the process cannot be read.
    """
    regions = read_address_space(pid).regions
    code = {region.path for region in regions if "x" in region.permissions}
    mapped = {region.path for region in regions if region.path.startswith("/")} - code
    files = [Path(path) for path in sorted(mapped)] + [*_open_files(pid), *_arguments(pid)]
    models = [path for path in files if path.suffix.lower() == ".onnx" and os.path.isfile(path)]
    for path in files:
        if path.suffix.lower() in (".onnx", ".so", ".py", ".pyc") or not os.path.isfile(path):
            continue
        in_folder = sorted(path.parent.glob("*.onnx"))[:MAX_MODELS_IN_FOLDER]
        models += [model for model in in_folder if _refers_to(model, path)]
    return tuple({path.resolve(): path for path in models}.values())[:MAX_GUESSES]


def with_guess_note(attribution: Attribution) -> Attribution:
    """Return an X-ray with the models of `guess_models`, with a note of where they are from."""
    note = "no model was given, and none was found; name it with --model to identify its weights"
    if attribution.models:
        names = ", ".join(model.name for model in attribution.models)
        note = f"no model was given; found by the files of the process: {names}"
    return msgspec.structs.replace(attribution, notes=(note, *attribution.notes))


def _refers_to(model: Path, data: Path) -> bool:
    try:
        with open_model(model) as file:
            return data.resolve() in file.files
    except ModelError:
        return False


def _open_files(pid: int) -> list[Path]:
    """Return the files that the process has open for reading; none if they cannot be read.

    Files that it writes, such as logs, are left out: they are neither models nor their data.
    """
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    found = []
    for link in links:
        with suppress(OSError):  # closed meanwhile
            flags = _FLAGS.search(Path(f"/proc/{pid}/fdinfo/{link.name}").read_bytes())
            if flags and int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY:
                found.append(link.readlink())
    return sorted(path for path in found if path.is_absolute())


def _arguments(pid: int) -> list[Path]:
    """Return the arguments of the process as paths, relative to its working directory."""
    try:
        folder = Path(f"/proc/{pid}/cwd").readlink()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [folder / os.fsdecode(word) for word in words if word.lower().endswith(b".onnx")]

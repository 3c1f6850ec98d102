"""The printed program: Python that creates a session with the settings of a point."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from textwrap import wrap

from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.model.graph_index import OVERRIDABLE_SINCE_IR
from memdiag.records.fix import Point
from memdiag.runner.optimized_model import EXTERNAL_DATA_OPTION
from memdiag.session_options import SHARED_ALLOCATORS_OPTION, call_lines, session_option_lines

_MALLOPT_PARAMETERS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, "M_MMAP_THRESHOLD"),
    "MALLOC_ARENA_MAX": (-8, "M_ARENA_MAX"),
}
"""Variables of glibc that a running process can set too: numbers and names of malloc.h."""

_MAX_DATA_FILES = 8
"""At most this many files of weights are watched for changes."""

_CPU_PROVIDERS_ARGUMENT = 'providers=["CPUExecutionProvider"]'


def session_program(
    model: str,
    point: Point,
    *,
    data: Sequence[str] = (),
    listed: bool = False,
    caveats: Mapping[str, str] | None = None,
) -> str:
    """Return a program that creates the session of `point` for `model`.

    Args:
        model: path of the model file.
        point: the combination of options.
        data: paths of the files of its weights, relative to the model's folder; empty if they are
            in the model file.
        listed: whether the IR version lists initializers among the inputs.
        caveats: where changes must not be used, by name, for comments.
    """
    lines = [
        *_caveat_comments(caveats or {}),
        *_latency_comments(point),
        *_point_session_lines(model, point, data, listed),
    ]
    return "\n".join(_prompt_lines(lines)) + "\n"


def _prompt_lines(lines: Sequence[str]) -> Iterator[str]:
    """Yield `lines` so that they can also be pasted at Python's prompt.

    At the prompt only a blank line ends an indented block.
    """
    is_indented = False
    for number, line in enumerate(lines):
        if not line:
            next_line = next((candidate for candidate in lines[number:] if candidate), "")
            if next_line.startswith(" "):
                continue
        elif is_indented and not line.startswith((" ", ")", "]")):
            yield ""
        is_indented = line.startswith(" ")
        yield line


def _point_session_lines(
    model: str, point: Point, data: Sequence[str], listed: bool
) -> Iterator[str]:
    yield from _environment_lines(point.environment)
    yield from _import_lines(point)
    yield f"MODEL = {model!r}"
    if point.saved_options:
        yield from _save_once_lines(model, point, data, listed)
    yield ""
    yield from session_option_lines("options", point.session_options)
    if point.shared_arena:
        yield from _shared_arena_lines()
    yield from _session_creation_lines(point)
    if point.run_options:
        yield "run_options = ort.RunOptions()"
        for name, value in point.run_options.items():
            yield from call_lines("run_options.add_run_config_entry", repr(name), repr(value))
        yield "# session.run(outputs, inputs, run_options)"


def _caveat_comments(caveats: Mapping[str, str]) -> Iterator[str]:
    for name, caveat in caveats.items():
        yield from wrap(f"{name}: {caveat}", 78, initial_indent="# ", subsequent_indent="# ")


def _latency_comments(point: Point) -> Iterator[str]:
    if point.ratio is not None and point.slowest_with:
        interval = f" ({point.low:.2f}-{point.high:.2f})" if point.low and point.high else ""
        yield f"# Measured: latency {point.ratio:.2f} ×{interval} that of the defaults, with"
        # Names of dimensions are the model's: one with a line break would end the comment.
        inputs = " ".join(point.slowest_with.replace("×", "x").split())
        yield f"# {ascii(inputs)[1:-1]}{_allowed_latency_reason(point)}."
        yield "# Outputs were dropped before the next run; kept ones can take more."
        yield ""


def _allowed_latency_reason(point: Point) -> str:
    """Return why a latency above that of the defaults counts as equal; empty if it doesn't."""
    if point.unnoticed:
        return ": too little longer to notice"
    is_above = point.ratio is not None and point.ratio > 1
    return (
        ": the same kernels run, so it counts as noise" if is_above and point.same_kernels else ""
    )


def _environment_lines(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield code that has the effect of the `variables`; it comes first, to apply to the rest."""
    mallopt_variables = {
        name: text for name, text in variables.items() if name in _MALLOPT_PARAMETERS
    }
    for name, text in variables.items() - mallopt_variables.items():
        yield f"# Before Python starts: export {name}={text}"
    if mallopt_variables:
        yield "import ctypes"
        yield ""
        exports = " ".join(f"{name}={text}" for name, text in mallopt_variables.items())
        yield f"# Or before Python starts: export {exports}"
        yield "libc = ctypes.CDLL(None)"
    for name, text in mallopt_variables.items():
        number, constant = _MALLOPT_PARAMETERS[name]
        yield f"libc.mallopt({number}, {text})  # {constant}"
    if mallopt_variables:
        yield ""


def _import_lines(point: Point) -> Iterator[str]:
    if point.saved_options:
        # hashlib and tempfile would take 4 MiB, a part of what the options save.
        yield from ("import os", "import platform", "import zlib")
    if point.saved_options:
        yield "from pathlib import Path"
        yield ""
    yield "import onnxruntime as ort"
    if point.shared_arena:
        yield "from onnxruntime.capi import onnxruntime_pybind11_state as kinds"
    yield ""


def _modification_time_lines(data: Sequence[str]) -> Iterator[str]:
    """Yield code that determines when the model, or a file of its weights, was last changed.

    Files that are made from the model get its time, and are made again if the times differ. A newer
    time of theirs shows nothing: a model that is copied later can have an older time.
    """
    if len(data) > _MAX_DATA_FILES:
        yield f"# Only {_MAX_DATA_FILES} files of weights are watched: if another one changes,"
        yield "# remove what is written below."
    yield "modified = int(Path(MODEL).stat().st_mtime)"
    for path in data[:_MAX_DATA_FILES]:
        yield f"modified = max(modified, int((Path(MODEL).parent / {path!r}).stat().st_mtime))"


def _save_once_lines(model: str, point: Point, data: Sequence[str], listed: bool) -> Iterator[str]:
    settings = {**point.session_options, **point.saved_options}
    yield ""
    yield "# The saved file fits these settings, one release of onnxruntime and one CPU: its name"
    yield "# has all three."
    yield 'info = Path("/proc/cpuinfo")'
    yield 'cpu = "" if info.exists() else platform.processor()'
    yield "for line in info.read_text().splitlines() if info.exists() else []:"
    yield '    if line.startswith(("flags", "Features")):'
    yield "        cpu = line"
    yield "        break"
    yield 'cpu = f"{zlib.crc32((platform.machine() + cpu).encode()):08x}"'
    settings_hash = zlib.crc32(repr((sorted(settings.items()), point.disabled_optimizers)).encode())
    optimized = f"{PurePath(model).with_suffix('')}.{settings_hash:08x}"
    yield f"OPTIMIZED = {optimized!r}"
    yield 'OPTIMIZED += f".{ort.__version__}-{cpu}.prepacked.onnx"'
    yield "saved = Path(OPTIMIZED)"
    yield from _modification_time_lines(data)
    yield ""
    yield "# Writing it may take more memory than the defaults, and this process may keep that:"
    yield "# let another process write it first, such as the build of an image."
    yield "if not saved.exists() or int(saved.stat().st_mtime) != modified:  # once for each model"
    yield "    import tempfile"
    yield ""
    # Written to another folder: no process ever reads a file that is half written.
    yield "    with tempfile.TemporaryDirectory(dir=saved.parent) as folder:"
    for line in session_option_lines("saving", settings):
        yield f"        {line}"
    yield "        saving.log_severity_level = 3  # it warns that the file fits one CPU, see above"
    yield '        saving.optimized_model_filepath = f"{folder}/{saved.name}"'
    yield "        saving.add_session_config_entry("
    yield f'            {EXTERNAL_DATA_OPTION!r}, f"{{saved.name}}.data"'
    yield "        )"
    creation = (
        f"ort.InferenceSession(MODEL, saving, {_CPU_PROVIDERS_ARGUMENT}{_disabled_argument(point)})"
    )
    if listed:
        yield "        import onnx"
        yield ""
        yield "        path = saving.optimized_model_filepath"
        yield f"        names = {{each.name for each in {creation}.get_inputs()}}"
        yield "        model = onnx.load(path, load_external_data=False)"
        yield "        inputs = [each for each in model.graph.input if each.name in names]"
        yield "        del model.graph.input[:]  # some were initializers that are folded away now"
        yield "        model.graph.input.extend(inputs)"
        yield f"        model.ir_version = {OVERRIDABLE_SINCE_IR}  # no longer lists initializers"
        yield "        onnx.save(model, path)"
    else:
        yield f"        {creation}"
    yield "        for part in sorted(Path(folder).iterdir(), reverse=True):  # the model last"
    yield "            os.utime(part, (modified, modified))"
    yield "            os.replace(part, saved.with_name(part.name))"


def _shared_arena_lines() -> Iterator[str]:
    yield "info = kinds.OrtMemoryInfo("
    yield '    "Cpu",'
    yield "    kinds.OrtAllocatorType.ORT_ARENA_ALLOCATOR,"
    yield "    0,"
    yield "    kinds.OrtMemType.DEFAULT,"
    yield ")"
    yield "ort.create_and_register_allocator(info, kinds.OrtArenaCfg(0, 1, -1, -1))"
    yield f'options.add_session_config_entry("{SHARED_ALLOCATORS_OPTION}", "1")'


def _session_creation_lines(point: Point) -> Iterator[str]:
    source = "OPTIMIZED" if point.saved_options else "MODEL"
    disabled = _disabled_argument(point).removeprefix(", ")
    if point.providers != DEFAULT_PROVIDERS:
        yield from _provider_lines(point)
    yield "session = ort.InferenceSession("
    yield f"    {source}, options, {_providers_argument(point)}{',' if disabled else ''}"
    if disabled:
        yield f"    {disabled},"
    yield ")"


def _providers_argument(point: Point) -> str:
    is_default = point.providers == DEFAULT_PROVIDERS
    return _CPU_PROVIDERS_ARGUMENT if is_default else "providers=providers"


def _provider_lines(point: Point) -> Iterator[str]:
    """Yield the list of execution providers, each with its options."""
    yield "providers = ["
    for name in point.providers:
        options = point.provider_options.get(name)
        if not options:
            yield f"    {name!r},"
            continue
        yield "    ("
        yield f"        {name!r},"
        yield "        {"
        yield from (f"            {key!r}: {value!r}," for key, value in options.items())
        yield "        },"
        yield "    ),"
    yield "]"


def _disabled_argument(point: Point) -> str:
    names = list(point.disabled_optimizers)
    return f", disabled_optimizers={names!r}" if names else ""

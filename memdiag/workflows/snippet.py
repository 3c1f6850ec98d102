"""Python that sets a session up as a point of a tuning says, ready to be pasted."""

from collections.abc import Iterator
from pathlib import PurePath

from memdiag.records.fix import Point

_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
}


def snippet(model: str, point: Point) -> str:
    """Return a program that creates the session of `point` for `model`, and runs it."""
    return "\n".join(_lines(model, point)) + "\n"


def saving(path: str) -> dict[str, str]:
    """Return the session options that have the runtime write its optimized model to `path`."""
    data = f"{PurePath(path).name}.data"
    return {
        "optimized_model_filepath": path,
        "session.optimized_model_external_initializers_file_name": data,
    }


def _lines(model: str, point: Point) -> Iterator[str]:
    if point.environment:
        yield "# Set before Python starts, for it is read once:"
        for name, value in point.environment.items():
            yield f"#   export {name}={value}"
    yield "import onnxruntime as ort"
    yield ""
    yield "options = ort.SessionOptions()"
    for name, value in point.session_options.items():
        yield from _setting("options", name, value)
    if point.shared_arena:
        yield "from onnxruntime.capi import onnxruntime_pybind11_state as kinds"
        yield "info = kinds.OrtMemoryInfo("
        yield '    "Cpu", kinds.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, kinds.OrtMemType.DEFAULT'
        yield ")"
        yield "ort.create_and_register_allocator(info, kinds.OrtArenaCfg(0, 1, -1, -1))"
        yield 'options.add_session_config_entry("session.use_env_allocators", "1")'
    if point.saved_options:
        optimized = f"{PurePath(model).with_suffix('')}.prepacked.onnx"
        yield "# Once, on the machine where it will run:"
        yield "saving = ort.SessionOptions()"
        for name, value in {**point.saved_options, **saving(optimized)}.items():
            yield from _setting("saving", name, value)
        yield f'ort.InferenceSession({model!r}, saving, providers=["CPUExecutionProvider"])'
        yield "# and from then on:"
        model = optimized
    yield "session = ort.InferenceSession("
    yield f"    {model!r},"
    yield "    options,"
    yield '    providers=["CPUExecutionProvider"],'
    if point.disabled_optimizers:
        yield f"    disabled_optimizers={list(point.disabled_optimizers)!r},"
    yield ")"
    if point.run_options:
        yield "run_options = ort.RunOptions()"
        for name, value in point.run_options.items():
            yield f"run_options.add_run_config_entry({name!r}, {value!r})"
        yield "# session.run(outputs, inputs, run_options)"


def _setting(options: str, name: str, value: str) -> Iterator[str]:
    if "." in name:
        yield f"{options}.add_session_config_entry({name!r}, {value!r})"
    elif name == "graph_optimization_level":
        yield f"{options}.graph_optimization_level = ort.GraphOptimizationLevel.{_LEVELS[value]}"
    else:
        yield f"{options}.{name} = {_value(value)}"


def _value(text: str) -> str:
    """Return an attribute's value as Python writes it."""
    if text in ("true", "false"):
        return text.capitalize()
    return text if text.lstrip("-").isdigit() else repr(text)

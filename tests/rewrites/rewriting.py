"""A model rewritten for one finding, saved, and run next to the original."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.model.model_file import open_model
from memdiag.records.finding import Finding
from memdiag.rewrites.model_editor import ModelEditor, TargetStorage, model_tensors
from memdiag.rewrites.saving import write_rewritten_model
from memdiag.runner.job import Feed, Job, SessionConfig
from memdiag.runner.session_server import SessionServer
from memdiag.verify.outputs import compare_outputs
from tests.model_text import Array, random

Feeds = Mapping[str, Array]


def finding(*weights: str, nodes: Sequence[str] = ()) -> Finding:
    """Return a finding about `weights` and `nodes`."""
    return Finding(
        model="model.onnx",
        rule="MD000",
        name="a-rule",
        message="",
        detail="",
        weights=weights,
        nodes=tuple(nodes),
        graph="",
        bytes=0,
        peak_bytes=0,
        phase=None,
        evidence="predicted",
        measured_bytes=None,
        expected=(),
        remedies=(),
    )


def rewrite(
    module: ModuleType,
    model: ModelProto | Path,
    of: Finding | str,
    folder: Path,
    *,
    storage: TargetStorage | None = "embedded",
    overridable: bool = False,
) -> Path:
    """Return the rewritten model, saved in `folder`; `model` becomes ``original.onnx`` there.

    `of` is a finding, or the names of its weights. The rewrite has to be possible, to be nothing
    the second time, and to leave the original alone. A `storage` of None is the one that the
    rewrite asks for. Programs see the same inputs and outputs, and initializers that they may set,
    unless the rewrite changes which ones are `overridable`.
    """
    of = finding(*of.split()) if isinstance(of, str) else of
    path = saved(model, folder)
    before = hashlib.sha256(path.read_bytes()).digest()
    with open_model(path) as file:
        editor = ModelEditor(file)
        first = editor.proto().SerializeToString(deterministic=True)
        assert module.check(editor, of) is None
        assert editor.proto().SerializeToString(deterministic=True) == first, "check changed it"
        assert module.apply(editor, of) is True
        done = editor.proto().SerializeToString(deterministic=True)
        assert module.apply(editor, of) is False
        assert module.check(editor, of) is not None
        assert editor.proto().SerializeToString(deterministic=True) == done
        target = folder / "rewritten.onnx"
        write_rewritten_model(editor, target, storage or editor.storage or "embedded")
    assert hashlib.sha256(path.read_bytes()).digest() == before
    onnx.checker.check_model(target, full_check=True)
    _assert_same_interface(path, target, overridable=overridable)
    return target


def refusal(module: ModuleType, model: ModelProto | Path, of: Finding | str, folder: Path) -> str:
    """Return why the rewrite cannot be done; applying it does nothing then."""
    of = finding(*of.split()) if isinstance(of, str) else of
    with open_model(saved(model, folder)) as file:
        editor = ModelEditor(file)
        before = editor.proto().SerializeToString(deterministic=True)
        reason = module.check(editor, of)
        assert module.apply(editor, of) is False
        assert editor.proto().SerializeToString(deterministic=True) == before
    assert isinstance(reason, str)
    assert reason
    assert not reason.endswith(".")
    return reason


def saved(model: ModelProto | Path, folder: Path) -> Path:
    """Return the path of `model`, saved in `folder` if it is none."""
    if isinstance(model, Path):
        return model
    path = folder / "original.onnx"
    onnx.save(model, path)
    return path


def rewritten(
    module: ModuleType,
    model: ModelProto | Path,
    of: Finding | str,
    folder: Path,
    *feeds: Feeds,
    bound: float = 0.0,
    storage: TargetStorage | None = "embedded",
    overridable: bool = False,
) -> Path:
    """Return the rewritten model, whose outputs are the original's.

    They are compared with `feeds`, or with made-up inputs, bit for bit unless a `bound` is given.
    """
    path = rewrite(module, model, of, folder, storage=storage, overridable=overridable)
    original = saved(model, folder)
    feeds = feeds or tuple(made_up_feeds(original))
    if bound:
        for inputs in feeds:
            assert largest_difference(original, path, inputs, folder) <= bound
    else:
        assert_same_outputs(original, path, *feeds)
    return path


def made_up_feeds(path: Path) -> list[Feeds]:
    """Return inputs of a model: with free sizes of 1 and of 5, and with all values of its flags."""
    inputs = _session(path).get_inputs()
    flags = [value.name for value in inputs if value.type == "tensor(bool)"]
    return [
        {value.name: _made_up(value, size) for value in inputs if value.name not in flags}
        | {name: np.array(chosen) for name, chosen in zip(flags, values, strict=True)}
        for size in (1, 5)
        for values in product((True, False), repeat=len(flags))
    ]


def _made_up(value: onnxruntime.NodeArg, size: int) -> Array:
    shape = [each if isinstance(each, int) else size for each in value.shape]
    if "int" in value.type:
        return np.arange(np.prod(shape, dtype=int)).reshape(shape) % 4 if shape else np.array(3)
    names = {"tensor(float16)": np.float16, "tensor(double)": np.float64}
    return random(shape, size, names.get(value.type, np.float32))


def run(path: Path, feeds: Feeds, level: str = "ORT_ENABLE_ALL") -> dict[str, Array]:
    """Return the outputs of a model."""
    return _outputs(_session(path, level), feeds)


def assert_same_outputs(original: Path, other: Path, *feeds: Feeds) -> None:
    """Run both models, with and without optimizations, and compare their outputs bit for bit."""
    for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL"):
        sessions = _session(original, level), _session(other, level)
        for inputs in feeds:
            before, after = (_outputs(session, inputs) for session in sessions)
            assert before.keys() == after.keys()
            for name in before:
                assert before[name].tobytes() == after[name].tobytes(), name
                assert before[name].shape == after[name].shape


def _session(path: Path, level: str = "ORT_DISABLE_ALL") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _outputs(session: onnxruntime.InferenceSession, feeds: Feeds) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def largest_difference(original: Path, other: Path, feeds: Feeds, folder: Path) -> float:
    """Return what the verification says of the outputs: the largest relative difference."""
    files: list[dict[str, list[Path]]] = []
    for number, path in enumerate((original, other)):
        files.append({})
        for name, array in run(path, feeds).items():
            file = folder / f"{number}-{name}.npy"
            np.save(file, array)
            files[-1][name] = [file]
    return max((one.relative for one in compare_outputs(*files)), default=inf)


def overridable(path: Path) -> list[str]:
    """Return the initializers that a caller could set."""
    return [value.name for value in _session(path).get_overridable_initializers()]


def operators(path: Path) -> list[str]:
    """Return the operators of a model's nodes, those of subgraphs included, in order of names."""
    return sorted(node.op_type for graph in _graphs(path) for node in graph.node)


def weights(path: Path) -> list[str]:
    """Return the names of the main graph's initializers."""
    return [tensor.name for tensor in onnx.load(path, load_external_data=False).graph.initializer]


def initializers(path: Path, kind: int) -> set[str]:
    """Return the names of the initializers of type `kind`, those of subgraphs included."""
    tensors = (tensor for graph in _graphs(path) for tensor in graph.initializer)
    return {tensor.name for tensor in tensors if tensor.data_type == kind}


def _graphs(path: Path) -> Iterator[onnx.GraphProto]:
    pending = [onnx.load(path, load_external_data=False).graph]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [one.g for node in graph.node for one in node.attribute if one.HasField("g")]


def stored(path: Path) -> list[TensorProto]:
    """Return the tensors of a model that hold 64 bytes and more, wherever they are."""
    return [
        tensor
        for tensor, _ in model_tensors(onnx.load(path))
        if numpy_helper.to_array(tensor).nbytes >= 64
    ]


class Taken(NamedTuple):
    """What a model took above the baseline, in bytes."""

    peak_bytes: int
    steady_bytes: int
    parse_peak_bytes: int


def taken(path: Path) -> Taken:
    """Return what a model takes in a fresh process, with one run."""
    profile = memdiag.profile(
        path,
        # Blocks of freed weights would otherwise stay in malloc's heap, more or less by chance.
        environment={"MALLOC_MMAP_THRESHOLD_": "131072"},
        session_options={"intra_op_num_threads": "1"},
        runs=1,
        xray="none",
    )
    assert profile.outcome.status == "completed", profile.outcome.message
    assert profile.steady_rss_bytes is not None
    base = profile.baseline_rss_bytes
    parse = profile.phase("parse")
    assert parse is not None
    return Taken(
        profile.peak_rss_bytes - base,
        profile.steady_rss_bytes - base,
        parse.peak_rss_bytes - base,
    )


def runs_on(version: str, path: Path) -> bool:
    """Return whether a release of onnxruntime runs a model with made-up inputs."""
    try:
        python = runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))
    return memdiag.profile(path, python=python, runs=1).outcome.status == "completed"


def difference_on(version: str, one: Path, other: Path, feeds: Feeds) -> float:
    """Return the largest relative difference of outputs, under a release of onnxruntime."""
    try:
        python = runtime(version)
    except ProvisionError as error:
        pytest.skip(str(error))
    scratch = Path(mkdtemp(dir=one.parent))
    sets = [[*_saved_feeds(feeds, scratch)]]
    outputs = []
    for number, path in enumerate((one, other)):
        with SessionServer(
            Job(model=path, session=SessionConfig(python=python), runs=None), sets
        ) as server:
            assert server.onnxruntime == version
            outputs.append(server.save(0, scratch / str(number)))
    return max(found.relative for found in compare_outputs(*outputs))


def _saved_feeds(feeds: Feeds, folder: Path) -> Iterator[Feed]:
    for name, array in feeds.items():
        file = folder / f"{name}.npy"
        np.save(file, array)
        yield Feed(name=name, files=(file,))


def _assert_same_interface(one: Path, other: Path, *, overridable: bool) -> None:
    sessions = [_session(path) for path in (one, other)]
    seen = [
        (
            [(each.name, each.type, each.shape) for each in session.get_inputs()],
            [(each.name, each.type, each.shape) for each in session.get_outputs()],
            [] if overridable else [each.name for each in session.get_overridable_initializers()],
            session.get_modelmeta().custom_metadata_map,
        )
        for session in sessions
    ]
    assert seen[0] == seen[1]

"""Optimizers of graphs on a small network of convolutions, recurrent and dense layers."""

import shutil
from collections.abc import Sequence
from math import isnan, nan
from pathlib import Path

import msgspec

from benchmarks.readme import table
from benchmarks.reproduced.claims import Claim, Part, Setting, quotient
from benchmarks.reproduced.versions import MB, in_words, peak, seconds, steady
from memdiag.api.compare import compare
from memdiag.comparison.run_optimizer import choose_optimizers, interpreter_for, run_optimizer
from memdiag.errors import MeasurementError, MemdiagError
from memdiag.model.model_file import open_model
from memdiag.records.comparison import ComparisonColumn
from sample_models import load_recipes

TITLE = "Optimizers on a convolutional recurrent network"
SOURCE = (
    "An [overview of optimization tools](https://github.com/K0mp0t/ONNXRuntimePythonOptimizations)"
    " takes a CRNN of 1.492 million parameters from TensorFlow to ONNX and runs ONNXOptimizer and"
    " ONNXSimplifier on it: 29.454 ms a batch became 28.541, with the same loss (0.293844) and as"
    " many parameters, in 5837 kB instead of 5835. Here: `crnn`, {parameters:.3f} million"
    " parameters, images of 32 by 128, one"
    " thread; both tools one after the other, and below each alone. For"
    " the loss we have the largest difference of an output, relative to its largest value."
)

MEGABYTES = 6.02
BOTH = ("onnxoptimizer", "onnxsim")
TOOLS = (*BOTH, "onnxslim", "onnxscript")
LEVELS = ("onnxruntime-basic", "onnxruntime-extended", "onnxruntime-all")
ITSELF = "the original again"
_ONE_THREAD = {"intra_op_num_threads": "1"}
"""More threads wait for each other when the machine does something else."""

_WORTH_SAYING = 0.01
_BATCH = 8
_RUNS = 10
_TIMEOUT_S = 300.0


def measure(setting: Setting) -> tuple[str, Part]:
    """Measure the original, what both tools in turn make of it, and what each one does."""
    path = setting.folder / "crnn.onnx"
    load_recipes()["crnn"].build(MEGABYTES * setting.scale, path, False)
    dims = {"batch": _BATCH}
    alone = compare(
        path,
        optimizers=[*TOOLS, *LEVELS],
        dims=dims,
        runs=_RUNS,
        repeats=setting.rounds,
        session_options=_ONE_THREAD,
        on_progress=lambda words: setting.say(f"crnn: {words}"),
    )
    columns = list(alone.columns)
    remarks = []
    both: ComparisonColumn | None = None
    try:
        between, target = _by_both(path, setting)
        again = setting.folder / "crnn-again.onnx"
        shutil.copyfile(path, again)
        together = compare(
            path,
            again,
            target,
            dims=dims,
            runs=_RUNS,
            repeats=setting.rounds,
            session_options=_ONE_THREAD,
            on_progress=lambda words: setting.say(f"crnn: {words}"),
        )
        itself, both = together.columns[1:]
        columns.insert(1, msgspec.structs.replace(itself, label=ITSELF))
        remarks += _constants(between)
        columns.append(msgspec.structs.replace(both, label=" + ".join(BOTH)))
    except MemdiagError as error:
        remarks.append(f"Both tools one after the other: {error}")
    original = columns[0]
    assert original.graph is not None
    part = Part(
        claims=_claims(original, both),
        remarks=[*remarks, *_remarks(columns)],
        tables=[f"`crnn`, batches of {_BATCH}, MB above the baseline:", _table(columns)],
    )
    return SOURCE.format(parameters=(original.graph.parameters or 0) / 1e6), part


def _by_both(path: Path, setting: Setting) -> list[Path]:
    """Return what the first tool makes of the model, and what the second one makes of that.

    Raises:
        MeasurementError: one of them wrote nothing.
        ProvisionError: one of them cannot be had.
    """
    made = []
    for name in choose_optimizers(BOTH):
        setting.say(f"crnn: {name} of {path.name}")
        done = run_optimizer(
            name,
            path,
            setting.folder / f"{path.stem}-{name}.onnx",
            python=interpreter_for(name),
            external=False,
            timeout_s=_TIMEOUT_S,
            memory_limit_bytes=None,
        )
        if done.path is None:
            raise MeasurementError(f"{name} {done.status}: {done.message}.")
        path = done.path
        made.append(path)
    return made


def _constants(path: Path) -> list[str]:
    """Say how many of the nodes that the first tool left are constants, where there are any."""
    with open_model(path) as file:
        count = sum(node.op_type == "Constant" for node in file.graph.nodes)
    if not count:
        return []
    return [f"{BOTH[0]} moves {count} constants into nodes of their own, which count as nodes."]


def _claims(original: ComparisonColumn, both: ComparisonColumn | None) -> list[Claim]:
    latency = both.latency if both else None
    ratio = latency.ratio if latency and latency.ratio else nan
    base = original.latency.median_s * 1e3 if original.latency else nan
    parameters = [_size(one, "parameters") / 1e6 for one in (original, both)]
    saved = [_size(one, "saved_bytes") / 1e3 for one in (original, both)]
    return [
        Claim(
            "inference time",
            "29.454 → 28.541 ms",
            28.541 / 29.454,
            "not measured" if isnan(ratio) else f"{base:.2f} → {base * ratio:.2f} ms",
            ratio,
            _interval(both),
        ),
        Claim(
            "parameters",
            "1.492 → 1.492 million",
            1.0,
            f"{parameters[0]:.4f} → {parameters[1]:.4f} million",
            quotient(parameters[1], parameters[0]),
        ),
        Claim(
            "saved size",
            "5835 → 5837 kB",
            5837 / 5835,
            in_words(saved[0], saved[1], "kB"),
            quotient(saved[1], saved[0]),
        ),
    ]


def _size(column: ComparisonColumn | None, of: str) -> float:
    graph = column.graph if column else None
    return nan if graph is None else getattr(graph, of) or nan


def _remarks(columns: Sequence[ComparisonColumn]) -> list[str]:
    original, *others = columns
    sentences = []
    for one in others:
        fewer = _size(original, "parameters") - _size(one, "parameters")
        nodes = _size(one, "nodes") - _size(original, "nodes")
        if fewer or nodes:
            sentences.append(f"{one.label}: {-fewer:+,.0f} parameters, {nodes:+,.0f} nodes.")
    alike = [one.label for one in others if _same_nodes(columns, one)]
    if alike:
        sentences.append(
            f"{LEVELS[0]}, which the runtime does at every load, leaves as many nodes as"
            f" {', '.join(alike)}: what they change is done at load anyway."
        )
    scatter = next((_interval(one) for one in others if one.label == ITSELF), None) or (1.0, 1.0)
    doubtless = [one.label for one in others if one.label != ITSELF and _differs(one, scatter)]
    sentences.append(
        f"Raced against itself the original's ratio is {scatter[0]:.2f} to {scatter[1]:.2f}; beyond"
        f" that the latency differs with {', '.join(doubtless) or 'no optimizer'}."
    )
    return sentences


def _same_nodes(columns: Sequence[ComparisonColumn], one: ComparisonColumn) -> bool:
    """Return whether `one` has as many nodes as the runtime's basic optimizations leave."""
    basic = next((each for each in columns if each.label == LEVELS[0]), None)
    return one.label not in LEVELS and _size(one, "nodes") == _size(basic, "nodes")


def _interval(one: ComparisonColumn | None) -> tuple[float, float] | None:
    """Return the 95 % interval of the latency's ratio to the original's."""
    found = one.latency if one else None
    if found is None or found.ratio_low is None or found.ratio_high is None:
        return None
    return found.ratio_low, found.ratio_high


def _differs(one: ComparisonColumn, scatter: tuple[float, float]) -> bool:
    """Return whether its interval is beyond 1 and the race of the original with itself."""
    interval = _interval(one)
    return interval is not None and (
        interval[1] < min(scatter[0], 1.0) - _WORTH_SAYING
        or interval[0] > max(scatter[1], 1.0) + _WORTH_SAYING
    )


def _table(columns: Sequence[ComparisonColumn]) -> str:
    rows = []
    for one in columns:
        if one.measured is None:
            rows.append([one.label, f"{one.status}: {one.message}", *[""] * 9])
            continue
        run, found = one.optimizer, one.latency
        between = _interval(one)
        ratio = ""
        if found and found.ratio and between:
            ratio = f"{found.ratio:.2f} ({between[0]:.2f}–{between[1]:.2f})"
        rows.append(
            [
                one.label,
                f"{_size(one, 'nodes'):.0f}",
                f"{_size(one, 'parameters'):,.0f}",
                f"{_size(one, 'saved_bytes') / 1e3:,.0f}",
                f"{run.duration_s:.2f}" if run else "",
                f"{run.peak_rss_bytes / MB:.0f}" if run else "",
                f"{found.median_s * 1e3:.1f}" if found else "",
                ratio,
                seconds(one.measured.load),
                f"{peak(one):.0f} / {steady(one):.0f}",
                "" if one.largest_difference is None else f"{one.largest_difference:.1e}",
            ]
        )
    head = ["", "nodes", "parameters", "saved, kB", "its own, s", "its peak RSS, MB", "latency, ms"]
    head += ["ratio, with 95 % interval", "load, s", "peak / steady", "output difference"]
    return table(head, rows)

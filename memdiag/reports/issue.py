"""Bug reports for onnxruntime's tracker: what was measured, how to repeat it, and on what."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath

from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.errors import UsageError
from memdiag.records.comparison import Comparison
from memdiag.records.growth import Growth
from memdiag.records.profile import Environment, Input, Profile
from memdiag.records.run import ProgramRun
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import markdown as md
from memdiag.reports.device import device_text
from memdiag.reports.text import plain
from memdiag.session_options import session_option_lines
from memdiag.units import counted, format_size

_MAX_REPRODUCED_RUNS = 1000
_NUMPY_TYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_NUMPY_NAMES = {"float": "float32", "double": "float64"}
"""NumPy's names for types that have another name in ONNX."""


def issue_markdown(record: ReportedRecord, report: str) -> str:
    """Return `record` as a bug report in Markdown.

    Profiles, recorded programs, growth and comparisons of releases have one.

    Args:
        record: the record.
        report: its report in Markdown, which describes the problem.

    Raises:
        UsageError: the record says nothing about onnxruntime.
    """
    environment: Environment | None = None
    gpu = ""
    if isinstance(record, Profile):
        gpu = "" if record.device is None else device_text(record.device.device)
        environment = record.environment
        command = record.command or ("memdiag", "profile", record.model.path)
        program = _reproduction_lines(record)
        versions = [environment.onnxruntime]
    elif isinstance(record, ProgramRun):
        environment = record.environment
        command, program = ("memdiag", "run", "--", *record.command), None
        versions = [process.onnxruntime for process in record.processes]
    elif isinstance(record, Growth):
        separator = ("--",) if record.kind == "program" else ()
        command, program = ("memdiag", "leak", *separator, record.subject), None
        versions = [record.onnxruntime]
    else:
        assert isinstance(record, Comparison), "other records have no such format"
        if record.kind in ("models", "optimizers"):
            raise UsageError(
                f"a comparison of {record.kind} is no report on onnxruntime. Give a comparison of"
                " releases or profiles."
            )
        profiles = [column.profile for column in record.columns if column.profile is not None]
        environment = profiles[0].environment if profiles else None
        command = ("memdiag", "compare", *dict.fromkeys(column.model for column in record.columns))
        program = _reproduction_lines(profiles[0]) if profiles else None
        has_release_labels = record.kind == "onnxruntime"
        versions = [
            column.label if has_release_labels else column.onnxruntime for column in record.columns
        ]
    releases = ", ".join(dict.fromkeys(plain(version) for version in versions if version))
    return md.document(
        (
            report,
            "## To reproduce",
            md.code_block([shlex.join(map(plain, command))], "sh"),
            "Without memdiag:" if program else "",
            md.code_block([*program], "python") if program else "",
            "## Platform",
            md.escape(_platform_text(environment, gpu)),
            "## ONNX Runtime Version or Commit ID",
            md.escape(releases or "unknown"),
            "## Model File",
            "<!-- Attach the model, or one that behaves alike. Say if you cannot. -->",
        )
    )


def _platform_text(environment: Environment | None, gpu: str = "") -> str:
    if environment is None:
        return "unknown"
    facts = [environment.platform, f"Python {environment.python}", environment.cpu]
    facts += [counted(environment.cpu_count, "CPU"), format_size(environment.memory_bytes)]
    return ", ".join(map(plain, filter(None, [*facts, gpu])))


def _reproduction_lines(profile: Profile) -> Iterator[str]:
    """Yield a program without memdiag that prints the largest resident set so far."""
    session = profile.session
    for name, text in session.environment.items():
        yield f"# export {shlex.quote(plain(name))}={shlex.quote(plain(text))}"
    yield "import resource, numpy as np, onnxruntime as ort"
    yield "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB"
    yield 'print("imported", peak())'
    yield from session_option_lines("options", session.options)
    providers = [
        (name, options) if (options := session.provider_options.get(name)) else name
        for name in session.providers or DEFAULT_PROVIDERS
    ]
    model = PurePath(profile.model.path).name if profile.model.path else "model.onnx"
    source = f'open({model!r}, "rb").read()' if session.load_from == "bytes" else repr(model)
    disabled_optimizers = [*session.disabled_optimizers]
    optimizers_argument = (
        f", disabled_optimizers={disabled_optimizers!r}" if disabled_optimizers else ""
    )
    arguments = f"{source}, options, providers={providers!r}{optimizers_argument}"
    yield f"session = ort.InferenceSession({arguments})"
    yield 'print("loaded", peak())'
    if session.runs is None:
        return
    yield "inputs = {"
    for model_input in profile.inputs:
        yield f"    {model_input.name!r}: {_input_array_code(model_input)},"
    yield "}"
    yield "run_options = ort.RunOptions()"
    for name, text in session.run_options.items():
        yield f"run_options.add_run_config_entry({name!r}, {text!r})"
    yield f"for _ in range({min(session.runs, _MAX_REPRODUCED_RUNS) + 1}):"
    yield "    session.run(None, inputs, run_options)"
    yield 'print("run", peak())'


def _input_array_code(model_input: Input) -> str:
    """Return code for an input with the right type and shape. The record lacks its values."""
    dtype = _NUMPY_NAMES.get(model_input.dtype, model_input.dtype)
    if model_input.shape is None or not _NUMPY_TYPES.fullmatch(dtype):
        return f"...  # {plain(model_input.dtype)}"
    return f"np.ones({[*model_input.shape]}, {dtype!r})"

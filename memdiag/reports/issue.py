"""Bug reports for onnxruntime's tracker, with the headings of its form for performance issues."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from memdiag.errors import UsageError
from memdiag.records.attribution import Attribution
from memdiag.records.comparison import Comparison
from memdiag.records.growth import Growth
from memdiag.records.profile import Environment, Input, Profile, Session
from memdiag.records.run import ProgramRun
from memdiag.records.schemas import Reported
from memdiag.reports import markdown as md
from memdiag.reports.comparison import sentences
from memdiag.reports.comparison.tables import comparison_tables
from memdiag.reports.findings import findings_markdown
from memdiag.reports.growth.blocks import block_table
from memdiag.reports.growth.headline import growth_headline
from memdiag.reports.growth.owners import owner_table
from memdiag.reports.phase_table import OPTIONAL_COLUMNS
from memdiag.reports.profile.facts import facts_table, session_facts
from memdiag.reports.profile.headline import profile_headline
from memdiag.reports.profile.phases import phase_table
from memdiag.reports.run.headline import finding_texts, run_headline
from memdiag.reports.run.sessions import session_table
from memdiag.reports.table import Table, markdown_table
from memdiag.reports.text import plain, shortened
from memdiag.units import counted, format_size

_MAX_TITLE = 110
_MAX_ROWS = 10
_MAX_RUNS = 1000
_FORM_SYSTEMS = {"Linux": "Linux", "Windows": "Windows", "macOS": "Mac", "Darwin": "Mac"}
_FORM_ARCHITECTURES = {
    "x86_64": "X64",
    "AMD64": "X64",
    "aarch64": "ARM64",
    "arm64": "ARM64",
    "i686": "X86",
}
_FORM_PROVIDERS = {"CPUExecutionProvider": "Default CPU", "DmlExecutionProvider": "DirectML"}
_UNKNOWN = "Other / Unknown"
_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_NUMPY_TYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_OTHER_NAMES = {"float": "float32", "double": "float64"}
"""NumPy's names of types that ONNX calls differently."""


def issue(record: Reported) -> str:
    """Return `record` as a bug report in Markdown.

    Profiles, recorded programs, growth and comparisons of releases have one.

    Raises:
        UsageError: the record says nothing about onnxruntime.
    """
    if isinstance(record, Profile):
        return _profile_issue(record)
    if isinstance(record, ProgramRun):
        return _run_issue(record)
    if isinstance(record, Growth):
        return _growth_issue(record)
    assert isinstance(record, Comparison), "other records have no such format"
    if record.kind in ("models", "optimizers"):
        raise UsageError(
            f"a comparison of {record.kind} is no report on onnxruntime. Give a comparison of"
            " releases or profiles."
        )
    return _comparison_issue(record)


def _profile_issue(profile: Profile) -> str:
    answer = profile_headline(profile)
    phases = phase_table(profile).fitted(100, OPTIONAL_COLUMNS)
    findings = [finding for finding in profile.findings if finding.evidence != "refuted"]
    return _document(
        title=answer.first,
        description=(
            f"**{md.escape(answer.first)}** {md.escape(answer.second)}",
            md.escape(answer.facts),
            markdown_table(phases),
            md.escape(phases.caption) if phases.rows else "",
            _owners(profile.attribution),
            *(findings_markdown(findings[:_MAX_ROWS]) if findings else ()),
        ),
        reproduce=(
            _memdiag(profile.command or ("memdiag", "profile", profile.model.path)),
            "Without memdiag:",
            md.code_block([*_program(profile)], "python"),
            markdown_table(facts_table(session_facts(profile))),
        ),
        environment=profile.environment,
        versions=[profile.environment.onnxruntime],
        providers=profile.session.providers,
        model=_model_text(profile),
    )


def _run_issue(run: ProgramRun) -> str:
    answer = run_headline(run)
    findings = "\n".join(f"- {md.escape(finding_texts(each)[0])}" for each in run.findings)
    errors = [
        f"session {session.number}: {plain(session.error)}"
        for session in run.sessions
        if session.error
    ]
    versions = [process.onnxruntime for process in run.processes if process.onnxruntime]
    return _document(
        title=answer.first,
        description=(
            f"**{md.escape(answer.first)}** {md.escape(answer.second)}".strip(),
            md.escape(answer.facts),
            markdown_table(session_table(run, limit=_MAX_ROWS)),
            md.bullets(errors),
            findings,
            *(_owners(xray.attribution) for xray in run.xrays[-1:]),
        ),
        reproduce=(
            _memdiag(("memdiag", "run", "--", *run.command)),
            "Settings of the sessions:" if run.sessions else "",
            md.bullets(
                f"session {session.number}: "
                + ", ".join(f"{key}={value}" for key, value in session.options.items())
                for session in run.sessions[:_MAX_ROWS]
                if session.options
            ),
        ),
        environment=run.environment,
        versions=versions or [run.environment.onnxruntime],
        providers=[name for session in run.sessions for name in session.providers],
        model="",
    )


def _growth_issue(growth: Growth) -> str:
    answer = growth_headline(growth)
    return _document(
        title=answer.first,
        description=(
            f"**{md.escape(answer.first)}**",
            f"Ended early: {md.escape(answer.ended)}" if answer.ended else "",
            md.escape(answer.facts),
            markdown_table(owner_table(growth)),
            *_titled("Blocks of malloc that came into use and stayed:", block_table(growth)),
        ),
        reproduce=_growth_reproduction(growth),
        environment=None,
        versions=[growth.onnxruntime],
        providers=(),
        model="",
    )


def _growth_reproduction(growth: Growth) -> tuple[str, ...]:
    if growth.kind == "model":
        sizes = [f"{name}={low}..{high}" for name, (low, high) in growth.dimensions.items()]
        options = [word for size in sizes for word in ("--dim", size)]
        if growth.callers > 1:
            options += ["--callers", str(growth.callers)]
        if growth.unit == "reload":
            options.append("--reload")
        runs = str(min(growth.runs, _MAX_RUNS) or _MAX_RUNS)
        return (_memdiag(("memdiag", "leak", growth.subject, "--runs", runs, *options)),)
    if growth.kind == "program":
        return (md.code_block([f"memdiag leak -- {plain(growth.subject)}"], "sh"),)
    return (md.escape(f"The process ({plain(growth.subject)}) was observed while it ran."),)


def _comparison_issue(comparison: Comparison) -> str:
    answer = sentences.answer(comparison)
    result = sentences.bisection_result(comparison)
    title = f"{sentences.title(comparison)}: {answer}"
    profiles = [column.profile for column in comparison.columns if column.profile is not None]
    by_label = comparison.kind == "onnxruntime"
    versions = [column.label if by_label else column.onnxruntime for column in comparison.columns]
    return _document(
        title=result or answer,
        description=(
            f"**{md.escape(title)}**",
            f"**{md.escape(result)}**" if result else "",
            md.bullets(
                sentences.change_sentence(comparison, change)
                for change in comparison.changes[:_MAX_ROWS]
            ),
            *(
                block
                for heading, table in comparison_tables(comparison)
                for block in _titled(heading, table)
            ),
            md.bullets(map(sentences.copies_sentence, comparison.copies[:_MAX_ROWS])),
            md.bullets(sentences.problems(comparison)),
        ),
        reproduce=_comparison_reproduction(comparison, profiles),
        environment=profiles[0].environment if profiles else None,
        versions=versions,
        providers=profiles[0].session.providers if profiles else (),
        model=_model_text(profiles[0]) if profiles else "",
    )


def _comparison_reproduction(
    comparison: Comparison, profiles: Sequence[Profile]
) -> tuple[str, ...]:
    models = dict.fromkeys(column.model for column in comparison.columns)
    command = ["memdiag", "compare", *models]
    versions = [column.label for column in comparison.columns]
    if comparison.kind == "onnxruntime":
        command += ["--onnxruntime", ",".join(versions)]
    for dimension in comparison.dimensions:
        command += ["--dim", f"{dimension.name}={dimension.size}"]
    program = md.code_block([*_program(profiles[0])], "python") if profiles else ""
    return (
        _memdiag(command) if comparison.kind != "profiles" else "",
        "Without memdiag, once for each column:" if program else "",
        program,
    )


def _document(
    *,
    title: str,
    description: Sequence[str],
    reproduce: Sequence[str],
    environment: Environment | None,
    versions: Sequence[str | None],
    providers: Sequence[str],
    model: str,
) -> str:
    """Return the report: a title, and the answers in the order of the form."""
    known = dict.fromkeys(plain(version) for version in versions if version)
    words = plain(environment.platform).split("-") if environment is not None else []
    system = next((_FORM_SYSTEMS[word] for word in words if word in _FORM_SYSTEMS), _UNKNOWN)
    architecture = next(
        (_FORM_ARCHITECTURES[word] for word in words if word in _FORM_ARCHITECTURES), _UNKNOWN
    )
    return md.document(
        (
            f"<!-- Title: {_comment(title)} -->",
            _answer("Describe the issue", *description),
            _answer("To reproduce", *reproduce),
            _answer("Urgency", "<!-- Is it a regression? Does it block a release? -->"),
            _answer("Platform", system),
            _answer("OS Version", _system(environment)),
            _answer("ONNX Runtime Installation", "Released Package"),
            _answer("ONNX Runtime Version or Commit ID", md.escape(", ".join(known)) or _UNKNOWN),
            _answer("ONNX Runtime API", "Python"),
            _answer("Architecture", architecture),
            _answer("Execution Provider", _providers(providers)),
            _answer(
                "Model File",
                md.escape(model),
                "<!-- Attach the model, or one that behaves alike. Say if you cannot. -->",
            ),
        )
    )


def _answer(heading: str, *blocks: str) -> str:
    return "\n\n".join((f"### {heading}", *filter(None, blocks)))


def _comment(text: str) -> str:
    """Return `text` as part of a comment of HTML, which it cannot end."""
    title = shortened(f"[Performance] {plain(text).rstrip('.')}", _MAX_TITLE)
    return title.replace("--", "—").replace("<", "").replace(">", "")


def _titled(title: str, table: Table) -> tuple[str, ...]:
    return (md.escape(title), markdown_table(table)) if table.rows else ()


def _memdiag(command: Sequence[str]) -> str:
    return md.code_block([shlex.join(map(plain, command))], "sh")


def _owners(attribution: Attribution | None) -> str:
    """Return the largest owners of memory and the copies of weights in a sentence each."""
    if attribution is None:
        return ""
    largest = sorted(attribution.owners, key=lambda owner: -owner.bytes)[:_MAX_ROWS]
    owners = ", ".join(
        f"{owner.kind} ({plain(owner.name)}) {format_size(owner.bytes)}" for owner in largest
    )
    copies = sorted(attribution.copies, key=lambda copy: -copy.resident_bytes)[:_MAX_ROWS]
    lines = [f"owners of the resident memory: {owners}"] if owners else []
    lines += [
        f"{plain(copy.weights[0]) if copy.weights else 'weight'}: {copy.kind},"
        f" {format_size(copy.resident_bytes)}"
        + (f", made by {plain(copy.made_by)}" if copy.made_by else "")
        for copy in copies
    ]
    return md.bullets(lines)


def _system(environment: Environment | None) -> str:
    if environment is None:
        return "<!-- The record does not have it. -->"
    facts = [environment.platform, f"Python {environment.python}", environment.cpu]
    facts += [counted(environment.cpu_count, "CPU"), format_size(environment.memory_bytes)]
    facts += [f"memdiag {environment.memdiag}"]
    return md.escape(", ".join(map(plain, facts)))


def _providers(names: Sequence[str]) -> str:
    texts = [
        _FORM_PROVIDERS.get(name, plain(name).removesuffix("ExecutionProvider"))
        for name in dict.fromkeys(names)
    ]
    return md.escape(", ".join(texts)) or _UNKNOWN


def _model_text(profile: Profile) -> str:
    model = profile.model
    parts = [format_size(model.file_bytes + model.external_bytes)]
    if model.weight_bytes is not None and model.weight_count is not None:
        parts.append(
            f"{format_size(model.weight_bytes)} in {counted(model.weight_count, 'weight')}"
        )
    if model.node_count is not None:
        parts.append(counted(model.node_count, "node"))
    if model.ir_version is not None:
        parts.append(f"IR version {model.ir_version}")
    domains = [f"{plain(name) or 'ai.onnx'} {number}" for name, number in model.opsets.items()]
    return f"{', '.join([*parts, *domains])}."


def _program(profile: Profile) -> Iterator[str]:
    """Yield a program with onnxruntime alone that prints the resident set of each phase."""
    session = profile.session
    for name, text in session.environment.items():
        yield f"# export {shlex.quote(plain(name))}={shlex.quote(plain(text))}"
    yield "import resource"
    yield ""
    yield "import numpy as np"
    yield "import onnxruntime as ort"
    yield ""
    yield ""
    yield "def peak():  # MiB"
    yield "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024"
    yield ""
    yield ""
    yield 'print("imported", peak())'
    yield from _options(session)
    yield f"providers = {_provider_list(session)}"
    model = PurePath(profile.model.path).name if profile.model.path else "model.onnx"
    disabled = ", disabled_optimizers=" + repr([*session.disabled_optimizers])
    end = disabled if session.disabled_optimizers else ""
    source = f'open({model!r}, "rb").read()' if session.load_from == "bytes" else repr(model)
    yield f"session = ort.InferenceSession({source}, options, providers=providers{end})"
    yield 'print("loaded", peak())'
    if session.runs is None:
        return
    yield "values = ["
    for value in profile.inputs:
        yield f"    {_array(value)}"
    yield "]"
    # By their order: the names in the record may be replaced.
    yield "names = [each.name for each in session.get_inputs()]"
    yield "inputs = dict(zip(names, values))"
    run_options = ""
    if session.run_options:
        run_options = ", run_options"
        yield "run_options = ort.RunOptions()"
    for name, text in session.run_options.items():
        yield f"run_options.add_run_config_entry({name!r}, {text!r})"
    yield f"for _ in range({min(session.runs, _MAX_RUNS) + 1}):"
    yield f"    session.run(None, inputs{run_options})"
    yield 'print("run", peak())'


def _options(session: Session) -> Iterator[str]:
    yield "options = ort.SessionOptions()"
    for name, value in session.options.items():
        if "." in name or not name.isidentifier():
            yield f"options.add_session_config_entry({name!r}, {value!r})"
        elif name == "graph_optimization_level" and value in _LEVELS:
            yield f"options.{name} = ort.GraphOptimizationLevel.{_LEVELS[value]}"
        elif name == "execution_mode":
            yield f"options.{name} = ort.ExecutionMode.ORT_{value.upper()}"
        elif name.startswith(("enable_", "use_")):
            yield f"options.{name} = {value.lower() in ('1', 'true', 'on')}"
        else:
            is_number = re.fullmatch(r"-?[0-9]{1,18}", value) is not None
            yield f"options.{name} = {int(value) if is_number else repr(value)}"


def _provider_list(session: Session) -> str:
    return repr(
        [
            (name, options) if (options := session.provider_options.get(name)) else name
            for name in session.providers or ("CPUExecutionProvider",)
        ]
    )


def _array(value: Input) -> str:
    """Return the code of an input of the right type and shape; its values are not in the record."""
    dtype = _OTHER_NAMES.get(value.dtype, value.dtype)
    if value.shape is None or not _NUMPY_TYPES.fullmatch(dtype):
        return f"...,  # {plain(value.dtype)}"
    return f"np.ones({[*value.shape]}, {dtype!r}),"

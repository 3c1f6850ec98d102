"""The use case of ``memdiag check``: findings in models that are not run."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from onnx import ValueInfoProto

from memdiag.api.arguments import check_dims, model_path
from memdiag.api.inputs import chosen_dimensions
from memdiag.defaults import DEFAULT_MIN_BYTES
from memdiag.errors import ModelError, UsageError, defect_reason, rule_defect_note
from memdiag.garbage import collection_disabled
from memdiag.model.axis_roles import check_dim_names, dims_by_name
from memdiag.model.count_inputs import free_axes
from memdiag.model.dimensions import axes_of, tensor_type
from memdiag.model.inputs import plan_inputs
from memdiag.model.model_file import ModelFile, open_model
from memdiag.model.native_memory import trim_heap
from memdiag.model.tensor_types import ELEMENT_TYPES
from memdiag.ort.activations import choose_dimensions
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.prepacking import NCHWC_BLOCK
from memdiag.ort.releases import newer_release_note, release_to_predict
from memdiag.ort.runtime import Runtime
from memdiag.ort.session_estimate import EstimatedSettings, SessionEstimate
from memdiag.paths import path_text
from memdiag.records.dimension import Dimension, ModelInput
from memdiag.records.finding import CHECK_SCHEMA, Check, CheckedModel, Finding, Findings
from memdiag.rules import find_detector, model_detectors
from memdiag.rules.rule import ModelDetector
from memdiag.rules.use_chains import findings_with_paths
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import format_size


@dataclass(frozen=True, kw_only=True)
class RuleSelection:
    """The rules to run, and the smallest finding to report.

    Attributes:
        select: rules by code, prefix of a code (``MD1``), or name; all if empty.
        ignore: rules to skip.
        min_bytes: findings that cost fewer bytes, both at steady state and at the peak, are
            skipped. Findings that cost no bytes are reported.
        chosen: the detectors of the rules to run.

    Raises:
        UsageError: there is no such rule, or `min_bytes` is negative.
    """

    select: Sequence[str] = ()
    ignore: Sequence[str] = ()
    min_bytes: int = DEFAULT_MIN_BYTES
    chosen: tuple[ModelDetector, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.min_bytes < 0:
            raise UsageError("min_bytes must be 0 or greater.")
        selected_codes = (
            _rule_codes(self.select)
            if self.select
            else {detector.rule.code for detector in model_detectors()}
        )
        selected_codes -= _rule_codes(self.ignore)
        chosen = tuple(
            detector for detector in model_detectors() if detector.rule.code in selected_codes
        )
        object.__setattr__(self, "chosen", chosen)

    def keeps(self, finding: Finding) -> bool:
        """Return whether the selection reports `finding`: it is large enough, or costs no bytes."""
        cost = max(finding.bytes, finding.peak_bytes)
        return cost == 0 or cost >= self.min_bytes


def check(
    model: str | Path,
    *,
    for_onnxruntime: str | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    min_bytes: int = DEFAULT_MIN_BYTES,
    dims: Mapping[str, int] | None = None,
) -> Findings:
    """Return the findings of wasted memory in `model`, the costliest first, without running it.

    Args:
        model: the ONNX file.
        for_onnxruntime: the release to predict for, such as ``1.24.4``; the installed one if None.
        select: codes, prefixes of codes, or names of rules to run; all if empty.
        ignore: codes, prefixes of codes, or names of rules to skip.
        min_bytes: skip findings that cost fewer bytes.
        dims: sizes of free dimensions by name, for rules about activations.

    Raises:
        ModelError: the file is missing, is not an ONNX model, or lacks its external data.
        UsageError: there is no such rule, version or dimension, or the release is older than 1.24.
    """
    path = model_path(model)
    check_dims(dims)
    selection = RuleSelection(select=select, ignore=ignore, min_bytes=min_bytes)
    # A collection would visit all nodes and weights of the model, none of which is garbage.
    with collection_disabled(), open_model(path) as model_file:
        check_dim_names(model_file.graph, model_file.functions, dims or ())
        ctx = analysis_context(model_file, release_to_predict(for_onnxruntime), dims=dims)
        return Findings(_estimated_waste(ctx, selection))


def check_models(
    models: Iterable[str | Path],
    *,
    selection: RuleSelection,
    for_onnxruntime: str | None = None,
    dims: Mapping[str, int] | None = None,
    on_model: Callable[[Path], None] | None = None,
) -> Check:
    """Return the findings in all `models`; `on_model` is called before each model is examined.

    A model that cannot be read is in the result with its error. For a model without a dimension
    that `dims` name, this dimension is ignored.

    Raises:
        UsageError: there is no such version, it is older than 1.24, or no model has a dimension
            that `dims` name.
    """
    started = time.perf_counter()
    runtime = release_to_predict(for_onnxruntime)
    checked_models: list[CheckedModel] = []
    error_by_name: dict[str, UsageError] = {}
    dim_names: set[str] = set()
    findings: list[Finding] = []
    for path in map(Path, models):
        if on_model is not None:
            on_model(path)
        try:
            with collection_disabled(), open_model(path) as model_file:
                for name in dims or ():
                    try:
                        check_dim_names(model_file.graph, model_file.functions, [name])
                        dim_names.add(name)
                    except UsageError as problem:
                        error_by_name.setdefault(name, problem)
                ctx = analysis_context(model_file, runtime, dims=dims)
                waste = _estimated_waste(ctx, selection)
                checked_models.append(
                    _checked_model(model_file, ctx.sizes, tuple(dict.fromkeys(ctx.notes)))
                )
        except ModelError as error:
            checked_models.append(CheckedModel(path=path_text(path), error=str(error)))
        else:
            findings += waste
    for name, name_error in error_by_name.items():
        if name not in dim_names:
            raise name_error
    return Check(
        schema=CHECK_SCHEMA,
        onnxruntime=str(runtime),
        models=tuple(checked_models),
        findings=tuple(findings),
        duration_s=round(time.perf_counter() - started, 6),
    )


def wastes_memory(check: Check) -> bool:
    """Return whether a finding of `check` costs memory: others cost only time, or are advice."""
    rules = [detector.rule for detector in model_detectors()]
    codes_without_memory = {rule.code for rule in rules if rule.costs == "time" or rule.is_advisory}
    return any(finding.rule not in codes_without_memory for finding in check.findings)


def analysis_context(
    model_file: ModelFile,
    runtime: Runtime,
    *,
    dims: Mapping[str, int] | None = None,
    max_read_bytes: int | None = None,
    block: int = NCHWC_BLOCK,
) -> AnalysisContext:
    """Return the context in which `find_waste` examines an open model under `runtime`.

    If the files of the model take more than `max_read_bytes` on disk, no weight is read. `block` is
    the number of channels of a block of convolutions.
    """
    stored_bytes = sum(map(_stored_bytes, model_file.files))
    reads_weights = max_read_bytes is None or stored_bytes <= max_read_bytes
    sizes = dims_by_name(model_file.graph, model_file.functions, dims or {})
    ctx = AnalysisContext(
        model_file, runtime, sizes=sizes, reads_weights=reads_weights, block=block
    )
    newer_release = newer_release_note(runtime)
    if newer_release:
        ctx.notes.append(newer_release)
    if not reads_weights:
        ctx.notes.append(
            f"the {format_size(stored_bytes)} of weights were not compared with each other or"
            " searched for denormals, as the run did not complete; memdiag check does so"
        )
    return ctx


def find_waste(
    ctx: AnalysisContext, selection: RuleSelection
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return the findings in an open model, the costliest first, and notes."""
    model_file = ctx.model_file
    findings: list[Finding] = []
    for detector in selection.chosen:
        try:
            findings_of_rule = list(detector.detect(ctx))
            model_file.release()
        except ModelError as error:  # the file changed, or a part that is read only now is damaged
            ctx.notes.append(f"rule {detector.rule.name} could not check this model: {error}")
        except (
            Exception
        ) as error:  # a defect of one rule must not lose other findings, or a profile
            ctx.notes.append(rule_defect_note(detector.rule.name, "model", error))
        else:
            findings += filter(selection.keeps, findings_of_rule)
        if model_file.has_shrunk:
            break
        trim_heap()
    if model_file.is_ort_format:
        findings = [*map(_ort_format_finding, findings)]
    findings.sort(key=_finding_cost_order)
    return findings_with_paths(findings, model_file, ctx.graphs), tuple(dict.fromkeys(ctx.notes))


def _estimated_waste(ctx: AnalysisContext, selection: RuleSelection) -> tuple[Finding, ...]:
    """Return the findings in an open model with their shares of the estimated peak.

    Raises:
        ModelError: the file became shorter.
    """
    waste, _ = find_waste(ctx, selection)
    waste = with_peak_shares(waste, _estimated_peak(ctx, waste))
    ctx.model_file.release()
    return waste


def _ort_format_finding(finding: Finding) -> Finding:
    """Return a finding in a model in ORT format, which only session options can remedy."""
    options = {option.name for option in tuning_options()}
    remedies = tuple(name for name in finding.remedies if name in options)
    return msgspec.structs.replace(finding, remedies=remedies)


def with_peak_shares(findings: Sequence[Finding], peak_bytes: int | None) -> tuple[Finding, ...]:
    """Return `findings` with their shares of the estimated peak `peak_bytes`; None if unknown."""
    if not peak_bytes:
        return tuple(findings)
    return tuple(
        msgspec.structs.replace(
            finding, peak_share=round(min(1.0, _bytes_at_peak(finding) / peak_bytes), 4)
        )
        if _bytes_at_peak(finding)
        else finding
        for finding in findings
    )


def _bytes_at_peak(finding: Finding) -> int:
    return finding.run_bytes or finding.peak_bytes


def _estimated_peak(ctx: AnalysisContext, findings: Sequence[Finding]) -> int | None:
    """Return the estimated peak in bytes, at the given or usual sizes; None if no finding needs
    it."""
    if not any(map(_bytes_at_peak, findings)):
        return None
    try:
        sizes = choose_dimensions(ctx.model_file, ctx.sizes).by_name
        return SessionEstimate(ctx, EstimatedSettings()).most_probable(sizes).peak_bytes
    except Exception as error:  # a defect of the estimate must not lose the findings
        ctx.notes.append(f"the peak could not be estimated ({defect_reason(error)})")
        return None


def _finding_cost_order(finding: Finding) -> tuple[int, int, str, tuple[str, ...]]:
    """Return the key that sorts the costliest finding first."""
    return (-finding.bytes, -finding.peak_bytes, finding.rule, finding.weights)


def _stored_bytes(path: Path) -> int:
    """Return the bytes that a file takes on disk, without holes; 0 if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return 0
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, 512 * blocks)


def _rule_codes(names: Iterable[str]) -> set[str]:
    """Return the codes of the rules that `names` select: names, codes or prefixes of codes.

    Raises:
        UsageError: there is no such rule.
    """
    codes: set[str] = set()
    rules = [detector.rule for detector in model_detectors()]
    for name in names:
        prefix = name.upper()
        codes_in_group = {rule.code for rule in rules if prefix and rule.code.startswith(prefix)}
        codes |= codes_in_group or {find_detector(name).rule.code}
    return codes


def _checked_model(
    model_file: ModelFile, dims: Mapping[str, int], notes: tuple[str, ...]
) -> CheckedModel:
    return CheckedModel(
        path=path_text(model_file.path),
        file_bytes=model_file.file_bytes,
        external_bytes=model_file.external_bytes,
        weight_bytes=model_file.weight_bytes,
        node_count=model_file.node_count,
        inputs=tuple(map(_model_input, model_file.graph.required_inputs)),
        dimensions=_model_dimensions(model_file, dims),
        notes=notes,
    )


def _model_input(value: ValueInfoProto) -> ModelInput:
    axes, tensor = axes_of(value), tensor_type(value.type)
    element = ELEMENT_TYPES.get(tensor.elem_type) if tensor is not None else None
    return ModelInput(
        name=value.name,
        dtype=element.name if element is not None else "unknown",
        shape=None
        if axes is None
        else tuple(axis.symbol or "?" if axis.size is None else axis.size for axis in axes),
    )


def _model_dimensions(model_file: ModelFile, dims: Mapping[str, int]) -> tuple[Dimension, ...]:
    axes = [
        axis
        for axes_of_input in free_axes(model_file.graph).values()
        for axis in axes_of_input or ()
    ]
    # The other sizes in `dims` belong to other models.
    dims_of_model = {axis.key: dims[axis.key] for axis in axes if axis.key in dims}
    try:
        plans = plan_inputs(model_file, dims=dims_of_model, given={})
    except UsageError:
        return ()  # an input that cannot be generated, such as a map
    return chosen_dimensions(model_file, plans, dims_of_model, {})

"""Make a model take less memory: rewrites, optimizers and session options, in one search."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Unpack

import msgspec

from memdiag.api.arguments import (
    OnProgress,
    check_dims,
    check_names,
    deadline_after,
    ignore_progress,
    model_path,
)
from memdiag.api.check import RuleSelection, analysis_context, find_waste
from memdiag.api.fix_scope import REWRITES, FixScope
from memdiag.api.inputs import GivenInputs, choose_inputs, read_given_arrays
from memdiag.api.new_models import NewModels
from memdiag.api.optimizer_outputs import OptimizerOutputs
from memdiag.api.option_estimates import estimated_savings
from memdiag.api.options import FixOptions, options_with_defaults, takes_options
from memdiag.api.original_model import OriginalModel, measured_original
from memdiag.api.profile_config import check_provider_options
from memdiag.defaults import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    DEFAULT_MAX_SLOWDOWN,
    DEFAULT_PROVIDERS,
)
from memdiag.errors import ArgumentError, ModelError, UsageError
from memdiag.fixing.changes import Change, changes_by_rule
from memdiag.fixing.model_writer import ModelWriter
from memdiag.fixing.state import FixState
from memdiag.model.axis_roles import check_dim_names
from memdiag.model.file_state import FileStates
from memdiag.model.model_file import ModelFile, open_model
from memdiag.ort.cuda import prefers_cuda, require_cuda
from memdiag.ort.releases import release_to_predict
from memdiag.ort.runtime import Runtime, require_runtime
from memdiag.paths import ORT_SUFFIX, path_text
from memdiag.records.fix import FIX_SCHEMA, Fix
from memdiag.runner.job import (
    Deadline,
    InputConfig,
    Job,
    Limits,
    SessionConfig,
    TimeLimitReached,
)
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.point_evaluator import PointEvaluator
from memdiag.tuning.points import BUDGET_FIGURES
from memdiag.tuning.record import Publication, fix_record
from memdiag.verify.model_bound import reordered_bound
from memdiag.verify.outputs import Bound

_SHARE_OF_REWRITING, _SHARE_OF_REWRITING_ALONE = 0.5, 0.75
"""The shares of the time after the first measurements that rewriting may take: if options are
tried, too, and if only the model is rewritten."""

_UNOPTIMIZED, _WHOLLY_OPTIMIZED = "optimization-off", "onnxruntime-all"
_FIRST_TRIAL = 1.5
"""If a rewrite is expected to save most, rewriting gets at least the expected duration of a trial
times this factor, since durations vary."""


@takes_options(FixOptions)
def fix(
    model: str | Path,
    output: str | Path | None = None,
    *,
    only: Sequence[str] = (),
    budget: Mapping[str, int] | None = None,
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN,
    max_difference: float | None = None,
    sizes: Sequence[int] | None = None,
    time_limit_s: float | None = None,
    on_progress: OnProgress | None = None,
    **options: Unpack[FixOptions],
) -> Fix:
    """Search for changes with which `model` takes less memory, and return the record.

    Session options that usually cost no time are compared with the defaults first, all together. If
    time is limited and a rewrite is expected to save more, rewrites come first.
    Then each rewrite that answers a finding is built, and every optimizer that is installed
    (onnxsim, onnxslim, onnxoptimizer, onnxscript, and onnxruntime's own) writes a model. These
    models and all options are measured in processes of their own and combined. Their outputs are
    compared with the original's, and their latency in alternating runs. The chosen combination is
    measured once more, thoroughly. Ctrl-C, or a time limit, ends the search with the best result
    so far.

    With the CUDA provider the memory is that on the GPU, and the options are those that change it.

    The original is never changed. If a new model is a part of the result, it is written to
    `output`, and may refer to weights in the original's files.

    Args:
        model: the ONNX file; for a model in ORT format only options are tried.
        output: path of the new model; ``NAME.fixed.onnx`` next to the original if None.
        only: what to try: ``rewrites`` (optimizers are among them), ``options``, or names of
            rewrites, optimizers, options and rules; everything if empty.
        budget: bytes above the baseline by ``peak``, ``steady`` or ``anonymous``: the fastest
            combination that fits is chosen. None to search for the least memory.
        max_slowdown: the largest accepted ratio of the latency with all changes to the original's.
        max_difference: the difference of an output that is accepted, as a share of its largest
            value. Changes of values are then tried, too, such as weights of 8 and 4 bits
            (``quantize-int8`` and ``quantize-int4``). None to accept only sums in another order.
        sizes: further sizes of free dimensions with which the model runs: outputs and latency are
            compared at each size, and memory is measured after all of them. By default 1 and 4,
            but no further sizes if `dims` are given.
        time_limit_s: seconds for everything; rewrites get at most half of what the first
            measurements leave (three quarters if no options are tried, and more if the most
            promising rewrite needs it), and optimizers at most a quarter of the rest.
        on_progress: called with a few words about the current step and about what is verified.
        options: see `takes_options`.

    Raises:
        ModelError: the file is missing, isn't an ONNX model, lacks its external data, or changed
            during the search.
        UsageError: an argument is invalid, the output would overwrite the original, or onnxruntime
            is older than 1.24, or lacks the CUDA provider that is asked for.
        MeasurementError: the model does not run here.
        ReportError: the folder of the new model cannot be written. If that is noticed at the end,
            it is the `write_problem` of the record instead.
    """
    started = time.perf_counter()
    deadline = deadline_after(time_limit_s)
    values = options_with_defaults(FixOptions, options)
    config = FixConfig(
        scope=FixScope(only, changes_values=max_difference is not None),
        budget=dict(budget or {}),
        max_slowdown=max_slowdown,
        max_difference=max_difference,
        dims=dict(values["dims"]),
        inputs=values["inputs"],
        sizes=sizes,
        providers=values["providers"],
        provider_options=values["provider_options"],
    )
    config.check()
    require_runtime("run memdiag in an environment that has it")
    release_to_predict(None, "Run memdiag in an environment with a newer release")
    if config.is_for_device:
        require_cuda()
    path = model_path(model)
    job = config.job(path, deadline)
    config.scope.check_usable(job)
    progress = _FixProgress(on_progress or ignore_progress, started)
    with open_model(path) as model_file, FileStates(path, model_file.files), ExitStack() as exits:
        check_dim_names(model_file.graph, model_file.functions, config.dims)
        new_models = _new_models(model_file, job, config, output, progress)
        if new_models is not None:
            new_models.writer.check_writable()
            exits.callback(new_models.writer.discard_staged)
        inputs = InputConfig(dims=config.dims, arrays=read_given_arrays(config.inputs))
        try:
            original = measured_original(
                exits,
                model_file,
                job,
                inputs,
                sizes=config.sizes,
                report_progress=progress,
            )
        except TimeLimitReached:
            if new_models is not None:
                reason = "the time limit passed before the original was measured"
                new_models.state.record_untried(new_models.rules, reason)
            record = _unsearched_record(model_file, job, config, new_models, started)
            dimensions = choose_inputs(model_file, inputs).dimensions
            return msgspec.structs.replace(record, ended_by="time_limit", dimensions=dimensions)
        return _FixSearch(original, config, new_models, progress, started).run()


@dataclass(frozen=True, kw_only=True)
class FixConfig:
    """The goal of the search, and how the model is run: arguments of `memdiag.fix`.

    Attributes:
        scope: what is tried.
    """

    scope: FixScope = field(default_factory=FixScope)
    budget: Mapping[str, int] = field(default_factory=dict)
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN
    max_difference: float | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: GivenInputs = field(default_factory=dict)
    sizes: Sequence[int] | None = None
    providers: Sequence[str] = DEFAULT_PROVIDERS
    provider_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def is_for_device(self) -> bool:
        """Whether the memory on a GPU is to be saved."""
        return prefers_cuda(self.providers)

    def check(self) -> None:
        """Check the values.

        Raises:
            UsageError: a budget, a name or a dimension is unknown, or a number is out of range.
        """
        unknown_figures = sorted(self.budget.keys() - {*BUDGET_FIGURES})
        if unknown_figures:
            raise UsageError(
                f"unknown budget {unknown_figures[0]!r}. Use one of {', '.join(BUDGET_FIGURES)}."
            )
        if not 0 < self.max_slowdown < inf:
            raise ArgumentError("{max_slowdown} must be a number greater than 0.")
        if self.max_difference is not None and not 0 < self.max_difference < 1:
            raise ArgumentError("{max_difference} must be between 0 and 1.")
        check_dims(self.dims)
        self.scope.check()
        self._check_providers()

    def _check_providers(self) -> None:
        check_names("providers", self.providers, CPU_PROVIDER)
        check_provider_options(self.provider_options, self.providers)
        if not self.is_for_device and tuple(self.providers) != DEFAULT_PROVIDERS:
            raise ArgumentError(
                "{providers}: memory is judged of a session on the CPU, or on a GPU with"
                f" {CUDA_PROVIDER} as the preferred provider. Name one of these."
            )
        if self.is_for_device and "anonymous" in self.budget:
            raise ArgumentError(
                "{budget}: memory on a GPU is not divided into anonymous and mapped memory. Limit"
                " peak or steady."
            )

    def job(self, model: Path, deadline: Deadline) -> Job:
        """Return the job of the original, without inputs."""
        session = SessionConfig(
            providers=tuple(self.providers),
            provider_options={name: dict(values) for name, values in self.provider_options.items()},
        )
        return Job(
            model=model,
            session=session,
            runs=None,
            limits=Limits(deadline=deadline),
            records_device=self.is_for_device,
        )


class _FixProgress:
    """Reports steps, with the duration and the best verified result so far.

    Args:
        report: receives the text.
        started: when the command began, by `time.perf_counter`.

    Attributes:
        verified: the best result so far, in a few words; empty if there is none.
    """

    def __init__(self, report: OnProgress, started: float) -> None:
        self._report, self._started = report, started
        self.verified = ""

    def __call__(self, step: str) -> None:
        elapsed = f"{time.perf_counter() - self._started:.0f} s"
        verified = f" · verified: {self.verified} (Ctrl-C keeps this)" if self.verified else ""
        self._report(f"{elapsed} · {step}{verified}")


def _new_models(
    model_file: ModelFile,
    job: Job,
    config: FixConfig,
    output: str | Path | None,
    report_progress: OnProgress,
) -> NewModels | None:
    """Return the rewrites and optimizers that are tried; None if only options are tried.

    Raises:
        UsageError: models in ORT format cannot be rewritten, or nothing would be written to
            `output`.
        ReportError: the target exists and isn't a regular file.
    """
    if model_file.is_ort_format and REWRITES in config.scope.names:
        raise UsageError(
            f"{model_file.path}: models in ORT format cannot be rewritten. Fix the ONNX model, and"
            " convert the result."
        )
    if model_file.is_ort_format or not config.scope.needs_new_models:
        if output is not None:
            raise UsageError(f"{output}: only options are tried, so no model is written.")
        return None
    path = model_file.path
    target = Path(output) if output is not None else path.with_name(f"{path.stem}.fixed.onnx")
    if target.suffix.lower() == ORT_SUFFIX:
        raise UsageError(f"{target}: the new model is in ONNX format. Choose a name with .onnx.")
    state = FixState(
        writer=ModelWriter(model_file, target),
        max_difference=config.max_difference,
        deadline=job.limits.deadline,
    )
    report_progress("searching for findings")
    context = analysis_context(model_file, Runtime.installed(), dims=config.dims)
    findings, notes = find_waste(context, RuleSelection(min_bytes=0))
    state.notes += notes
    allowed_changes = (
        filter(config.scope.has_change, changes) for changes in changes_by_rule(findings)
    )
    rules: list[tuple[Change, ...]] = [
        changes for change_list in allowed_changes if (changes := tuple(change_list))
    ]
    for rewrite in config.scope.rewrites():
        if not any(change.name == rewrite.name for changes in rules for change in changes):
            state.record_needless(rewrite)
    optimizers = OptimizerOutputs(
        config.scope.optimizers(), changes_values=config.max_difference is not None
    )
    return NewModels(writer=state.writer, state=state, rules=rules, optimizers=optimizers)


def _unsearched_record(
    model_file: ModelFile, job: Job, config: FixConfig, new_models: NewModels | None, started: float
) -> Fix:
    """Return the record of a search that measured nothing."""
    runtime = Runtime.installed()
    optimizers = new_models.optimizers.untried if new_models is not None else ()
    options = (option.name for option in config.scope.options(job, runtime))
    return Fix(
        schema=FIX_SCHEMA,
        model=path_text(model_file.path),
        onnxruntime=str(runtime),
        duration_s=round(time.perf_counter() - started, 6),
        notes=tuple(new_models.notes) if new_models is not None else (),
        remedies=new_models.state.outcomes if new_models is not None else (),
        only=config.scope.asked(),
        untried=(*optimizers, *options),
        budget=dict(config.budget),
        max_slowdown=config.max_slowdown,
    )


class _FixSearch:
    """The search of `fix`, from the measured original to the record.

    Raises:
        MeasurementError: the original has no evaluator, since it does not run.
    """

    def __init__(
        self,
        original: OriginalModel,
        config: FixConfig,
        new_models: NewModels | None,
        progress: _FixProgress,
        started: float,
    ) -> None:
        if original.evaluator is None:
            raise original.not_runnable()
        self._original, self._config, self._new_models = original, config, new_models
        self._progress, self._started = progress, started
        self._evaluator = original.evaluator
        self._runtime = Runtime.parse(original.evaluator.onnxruntime)
        self._notes: list[str] = []
        self._points = PointEvaluator(
            model_evaluator=original.evaluator,
            bound=original.evaluator.applicable_bound(_outputs_bound(original.file, config)),
            scratch=original.scratch,
            max_slowdown=config.max_slowdown,
            budget=dict(config.budget),
        )
        if new_models is not None:
            self._points.without_hidden_names = new_models.writer.without_hidden_names
        self._search = OptionSearch(
            point_evaluator=self._points,
            usable=config.scope.options(original.job, self._runtime),
            together=config.scope.together(),
            budget=dict(config.budget),
            max_slowdown=config.max_slowdown,
            report_progress=progress,
            report_verified=self._show_verified,
            end=original.job.limits.deadline.at,
            setup_s=time.perf_counter() - started,
        )

    def run(self) -> Fix:
        """Search, publish the new model if it is a part of the result, and return the record."""
        new_models = self._new_models
        try:
            self._explore_changes()
            return self._publish_result()
        except ModelError:  # the original changed
            raise
        except BaseException as error:
            if new_models is None:
                raise
            writer = new_models.writer
            if writer.has_published:
                error.add_note(f"The new model is at {writer.target}.")
            elif writer.staged_targets and not new_models.publish_rewritten().problem:
                error.add_note(f"The rewritten model is at {writer.target}.")
            raise

    def _explore_changes(self) -> None:
        """Try quick options, rewrites, optimizers and all options, in this order.

        If time is limited and a rewrite is expected to save more than the quick options, rewrites
        come first: there may be time for one trial only.
        """
        search, new_models = self._search, self._new_models
        try:
            search.expected = self._estimated_savings()
            is_rewrite_first = new_models is not None and self._promises_most(new_models)
            if not is_rewrite_first:
                search.combine_quick_options()
            if new_models is not None:
                self._rewrite_model(new_models, is_first=is_rewrite_first)
                if is_rewrite_first and search.ended_by == "completion":
                    search.combine_quick_options()
                self._run_optimizers(new_models)
        except KeyboardInterrupt:
            search.ended_by = "interrupt"
        if search.ended_by != "interrupt":
            search.run()

    def _promises_most(self, new_models: NewModels) -> bool:
        """Return whether a rewrite is expected to save more than all quick options, if time is
        limited."""
        search = self._search
        if self._original.job.records_device:  # what rewrites are expected to save is on the host
            return False
        quick = (option.name for option in search.usable if not option.costs_time)
        option_bytes = sum(search.expected.get(name, 0) for name in quick)
        return search.end < inf and new_models.saved_bytes > option_bytes

    def _rewrite_model(self, new_models: NewModels, *, is_first: bool) -> None:
        """Offer the rewritten model as an option."""
        deadline = self._original.job.limits.deadline
        deadline.at = self._search.end
        share = _SHARE_OF_REWRITING if self._search.usable else _SHARE_OF_REWRITING_ALONE
        if is_first:
            trial_s = self._points.measuring_s + self._points.comparing_s
            share = min(1.0, max(share, _FIRST_TRIAL * trial_s / deadline.remaining_s))
        with deadline.at_most(share):
            point_and_option = new_models.rewrite(self._points, self._progress)
        if point_and_option is not None:
            self._search.add_compared(*point_and_option)
        if new_models.state.ended_by == "interrupt":
            self._search.ended_by = "interrupt"

    def _run_optimizers(self, new_models: NewModels) -> None:
        """Offer the models of optimizers as options."""
        if self._search.ended_by == "interrupt":
            return
        job, folder = self._original.job, self._original.scratch / "optimizers"
        search = self._search
        search.usable[:0] = new_models.write_with_optimizers(
            job.model, folder, job.limits.deadline, self._progress
        )
        # A model that onnxruntime has optimized wholly is loaded as without optimization, but its
        # kernels are those of the defaults. So in little time it comes before that option.
        if _UNOPTIMIZED in search.expected:
            search.expected[_WHOLLY_OPTIMIZED] = search.expected[_UNOPTIMIZED]

    def _estimated_savings(self) -> dict[str, int]:
        """Return the estimated saving of each option, in bytes by name.

        Nothing is estimated without a time limit, as all options are measured then, nor for the
        memory on a GPU.
        """
        original = self._original
        if original.job.limits.deadline.at == inf or original.job.records_device:
            return {}
        self._progress("estimating what options save")
        sizes = {dimension.name: dimension.size for dimension in original.inputs.dimensions}
        try:
            return estimated_savings(
                original.file, self._runtime, original.job, sizes, self._search.usable
            )
        except Exception as error:  # a defect of the estimate must not lose the search
            self._notes.append(f"what options save could not be estimated ({type(error).__name__})")
            return {}

    def _publish_result(self) -> Fix:
        """Publish the chosen model, if it is a new one, and return the record."""
        config, new_models = self._config, self._new_models
        if config.max_difference is not None and not config.inputs:
            self._notes.append(
                "outputs were compared for generated inputs; give real ones with --input NAME=FILE"
            )
        self._progress("writing the result")
        publication = Publication()
        if new_models is not None:
            publication = new_models.publish(self._search.chosen.option_names)
        try:
            return self._result_record(publication)
        except KeyboardInterrupt:  # everything is measured and written: only a second one loses it
            return self._result_record(publication)

    def _result_record(self, publication: Publication) -> Fix:
        original, config, new_models = self._original, self._config, self._new_models
        return fix_record(
            original.file,
            self._search,
            publication,
            only=config.scope.asked(),
            untried=new_models.optimizers.untried if new_models is not None else (),
            failed_optimizers=new_models.optimizers.failures if new_models is not None else {},
            is_cut_short=new_models is not None and new_models.is_cut_short,
            notes=(
                *(new_models.notes if new_models is not None else ()),
                *self._notes,
                *original.inputs.notes,
                *self._evaluator.notes,
            ),
            dimensions=original.inputs.dimensions,
            duration_s=round(time.perf_counter() - self._started, 6),
        )

    def _show_verified(self, text: str) -> None:
        self._progress.verified = text


def _outputs_bound(model_file: ModelFile, config: FixConfig) -> Bound:
    """Return how far outputs may differ."""
    if config.max_difference is not None:
        return Bound.given(config.max_difference)
    return replace(reordered_bound(model_file), may_be_given=True)

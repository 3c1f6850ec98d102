"""The table of options: settings of a session or its environment that can save memory.

An option is added by adding a row to `_tuning_option_table`, and to `_EXCLUSIVE_GROUPS` if others
cannot be combined with it. A search tries options that usually cost no time first, and within these
in the order of the rows: those that saved the most memory on real models come first.
`memdiag.tuning.program` writes each setting as Python.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from memdiag.defaults import CUDA_PROVIDER, PINNED_ENVIRONMENT
from memdiag.ort.releases import FOLDING_LIMITED_SINCE, ORT_FILE_MAPPED_SINCE
from memdiag.ort.runtime import Runtime
from memdiag.paths import ORT_SUFFIX
from memdiag.runner.job import Job
from memdiag.session_options import (
    ARENA_OPTION,
    ARENA_STRATEGY_OPTION,
    DENORMAL_OPTION,
    FOLDING_LIMIT_OPTION,
    LEVEL_OPTION,
    ORT_IN_PLACE_OPTION,
    ORT_MAPPED_OPTION,
    OWN_WEIGHTS_OPTION,
    PATTERN_OPTION,
    PREPACKED_FILE_OPTION,
    PREPACKING_OPTION,
    SHRINKAGE_OPTION,
    SMALL_CUBLAS_WORKSPACE,
    THREADS_OPTION,
)

_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)

_EXCLUSIVE_GROUPS = (
    {"arena-off", "arena-shrinkage"},
    {"arena-off", "mmap-threshold"},
    {"arena-off", "same-as-requested"},
    {"disable-constant-folding", "folding-size-limit", "optimization-off"},
    {"disable-nchwc", "optimization-basic", "optimization-extended", "optimization-off"},
    {"disable-prepacking", "save-prepacked"},
    {"device-shrinkage", "device-weights-apart"},
    {"jemalloc", "malloc-arenas", "mimalloc"},
    {"jemalloc", "mimalloc", "mmap-threshold"},
)
"""Options of which at most one makes sense in a session."""


def _is_always_available(runtime: Runtime) -> bool:
    return True


def _is_always_relevant(job: Job) -> bool:
    return True


def _is_device_job(job: Job) -> bool:
    """Return whether memory on a GPU is to be saved."""
    return job.records_device


def _is_host_job(job: Job) -> bool:
    """Return whether the memory of the CPU provider is to be saved."""
    return not job.records_device


def _is_device_job_with_convolutions(job: Job) -> bool:
    return job.records_device and _has_convolutions(job.model)


def _has_convolutions(model: Path) -> bool:
    """Return whether a graph of `model` has a Conv; True if its graphs cannot be read."""
    # Late: what lists the options needs no model.
    from memdiag.model.graph_index import GraphIndex
    from memdiag.model.model_file import open_model

    with open_model(model) as model_file:
        if model_file.is_ort_format:
            return True
        scopes = (scope for _, scope in GraphIndex(model_file))
        return any(node.op_type == "Conv" for scope in scopes for node in scope.nodes)


def _is_ort_format_job(job: Job) -> bool:
    return _is_host_job(job) and job.model.suffix.lower() == ORT_SUFFIX


def _is_onnx_format_job(job: Job) -> bool:
    """Return whether the graph is still to be optimized, and can be saved again."""
    return job.model.suffix.lower() != ORT_SUFFIX


def _is_onnx_host_job(job: Job) -> bool:
    return _is_host_job(job) and _is_onnx_format_job(job)


@dataclass(frozen=True, kw_only=True)
class TuningOption:
    """Settings of a session or its environment under one name.

    Attributes:
        name: the name in kebab case.
        does: a sentence that describes the effect.
        hurts: a sentence that describes the cost.
        caveat: where it must not be used, as a sentence for the program; empty for everywhere.
        session_options: SessionOptions attributes and config entries.
        environment: variables that must be set before the process starts.
        run_options: config entries of RunOptions.
        provider_options: options of the CUDA provider.
        disabled_optimizers: names of graph transformers to disable.
        shared_arena: whether to use an arena of the environment (see `Job`).
        model: another model file to load; None for the original.
        save_options: config entries with which the runtime writes its optimized model once, which
            is then loaded.
        excludes: names of options that cannot be combined with this one.
        costs_time: whether runs usually take longer: it is tried after the others.
        same_kernels: whether the same kernels run on the same shapes, so that only chance makes
            runs longer.
        changes_values: whether outputs may change beyond the order of sums.
        is_available: whether a release of onnxruntime, and this machine, have the option.
        is_relevant: whether the option can make a difference to a job: by default, to any that is
            not for the memory on a GPU.
        needs: requirements on the machine and the job, in a few words; empty if they are obvious.
    """

    name: str
    does: str
    hurts: str
    caveat: str = ""
    session_options: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    run_options: dict[str, str] = field(default_factory=dict)
    provider_options: dict[str, str] = field(default_factory=dict)
    disabled_optimizers: tuple[str, ...] = ()
    shared_arena: bool = False
    model: Path | None = None
    save_options: dict[str, str] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()
    costs_time: bool = False
    same_kernels: bool = False
    changes_values: bool = False
    is_available: Callable[[Runtime], bool] = _is_always_available
    is_relevant: Callable[[Job], bool] = _is_host_job
    needs: str = ""

    def added_to(self, job: Job) -> Job:
        """Return `job` with this option, without the file for `save_options`."""
        before = job.session
        disabled = dict.fromkeys((*before.disabled_optimizers, *self.disabled_optimizers))
        session = replace(
            before,
            options={**before.options, **self.session_options},
            environment={**before.environment, **self.environment},
            run_options={**before.run_options, **self.run_options},
            provider_options=self._added_provider_options(before.provider_options),
            disabled_optimizers=tuple(disabled),
            shared_arena=before.shared_arena or self.shared_arena,
        )
        return replace(job, model=self.model or job.model, session=session)

    def _added_provider_options(
        self, before: Mapping[str, Mapping[str, str]]
    ) -> Mapping[str, Mapping[str, str]]:
        """Return the options of providers with those of this option."""
        if not self.provider_options:
            return before
        return {
            **before,
            CUDA_PROVIDER: {**before.get(CUDA_PROVIDER, {}), **self.provider_options},
        }


@cache
def tuning_options() -> tuple[TuningOption, ...]:
    """Return all options in the order in which they are tried."""
    return tuple(
        replace(option, excludes=_excluded_names(option.name)) for option in _tuning_option_table()
    )


def _excluded_names(name: str) -> tuple[str, ...]:
    names = {other for group in _EXCLUSIVE_GROUPS if name in group for other in group}
    return tuple(sorted(names - {name}))


def _tuning_option_table() -> list[TuningOption]:
    jemalloc = _installed_library("libjemalloc.so.2")
    mimalloc = _installed_library("libmimalloc.so.2", "libmimalloc.so.2.0")
    return [
        TuningOption(
            name="save-prepacked",
            does="Packed weights are written to a file once, and mapped from it by every session.",
            same_kernels=True,
            hurts="Writing the file at the first start may take more memory than the defaults, and"
            " malloc may keep that memory until the process ends: write the file in another"
            " process, for example in the build of a container image. The file is valid only for"
            " this release of onnxruntime and this machine's instruction set. Mapped pages count"
            " only while they are resident: the measured memory falls when the system evicts pages,"
            " and rises when they are read again.",
            save_options={PREPACKED_FILE_OPTION: "1"},
            is_relevant=_is_onnx_host_job,
        ),
        TuningOption(
            name="map-ort-file",
            does="The file in ORT format is mapped, and its weights are used where they are in it.",
            same_kernels=True,
            hurts="The file must not change while the session exists. Weights that kernels pack"
            " stay mapped with their packed copies; mapped pages count only while they are"
            " resident.",
            session_options={
                ORT_MAPPED_OPTION: "1",
                ORT_IN_PLACE_OPTION: "1",
            },
            is_available=lambda runtime: runtime >= ORT_FILE_MAPPED_SINCE,
            is_relevant=_is_ort_format_job,
            needs="a model in ORT format",
        ),
        TuningOption(
            name="mmap-threshold",
            does="malloc maps blocks of 128 KiB and more, and returns them to the system as soon as"
            " they are freed.",
            same_kernels=True,
            hurts="Each block of 128 KiB and more costs a system call and fresh pages, in the rest"
            " of the program too. Measured on three models: 0.94 to 1.02 times the CPU time.",
            environment=PINNED_ENVIRONMENT,
        ),
        TuningOption(
            name="folding-size-limit",
            does="Constants above 1 MiB are not folded.",
            costs_time=True,
            hurts="What is not folded is computed in every run.",
            session_options={FOLDING_LIMIT_OPTION: str(1 << 20)},
            is_available=lambda runtime: runtime >= FOLDING_LIMITED_SINCE,
            is_relevant=_is_onnx_format_job,
        ),
        TuningOption(
            name="jemalloc",
            does="Memory comes from jemalloc, which returns freed pages after some seconds.",
            same_kernels=True,
            hurts="It must be installed where the model runs; small blocks take more at first.",
            environment={"LD_PRELOAD": jemalloc} if jemalloc else {},
            is_available=lambda runtime: jemalloc is not None,
            needs="the library libjemalloc.so.2",
        ),
        TuningOption(
            name="mimalloc",
            does="Memory comes from mimalloc, which is fast and returns freed pages.",
            same_kernels=True,
            hurts="It must be installed where the model runs; it reserves address space ahead.",
            environment={"LD_PRELOAD": mimalloc} if mimalloc else {},
            is_available=lambda runtime: mimalloc is not None,
            needs="the library libmimalloc.so.2",
        ),
        TuningOption(
            name="disable-constant-folding",
            does="Nothing is computed ahead: no folded copies of weights, and no peak of folding.",
            costs_time=True,
            hurts="What would have been folded is computed in every run, and fusions after it are"
            " missed.",
            disabled_optimizers=("ConstantFolding",),
            is_relevant=_is_onnx_format_job,
        ),
        TuningOption(
            name="disable-nchwc",
            does="Weights of convolutions are not reordered into blocks of channels.",
            costs_time=True,
            hurts="Convolutions are slower.",
            disabled_optimizers=("NchwcTransformer",),
            is_relevant=_is_onnx_host_job,
        ),
        TuningOption(
            name="disable-prepacking",
            does="Weights stay as they are: no packed copies, and external ones stay mapped.",
            costs_time=True,
            hurts="Matrix products pack their operand in every run: slower, most of all with few"
            " rows.",
            session_options={PREPACKING_OPTION: "1"},
        ),
        TuningOption(
            name="patterns-off",
            does="onnxruntime no longer plans and caches a block of memory for each new combination"
            " of input shapes.",
            same_kernels=True,
            hurts="Tensors of a run are allocated one by one.",
            session_options={PATTERN_OPTION: "false"},
            is_relevant=_is_always_relevant,
        ),
        TuningOption(
            name="arena-off",
            does="Tensors are allocated and freed one by one, and malloc returns blocks of 128 KiB"
            " and more to the system: nothing is kept between runs.",
            costs_time=True,
            hurts="Every run allocates again: a text detector with alternating sizes took 1.4 times"
            " the CPU time. In a process without MALLOC_MMAP_THRESHOLD_, malloc"
            " may keep more than the arena when sizes of inputs alternate.",
            session_options={ARENA_OPTION: "false"},
            environment=PINNED_ENVIRONMENT,
        ),
        TuningOption(
            name="arena-shrinkage",
            does="The arena releases unused regions after every run.",
            costs_time=True,
            hurts="The next run requests the released regions from the system again.",
            run_options={SHRINKAGE_OPTION: "cpu:0"},
        ),
        TuningOption(
            name="denormal-as-zero",
            does="Denormal values count as zero, which some processors multiply far faster.",
            hurts="Values below 1.2e-38 are lost.",
            session_options={DENORMAL_OPTION: "1"},
            changes_values=True,
        ),
        TuningOption(
            name="malloc-arenas",
            does="All threads share one arena of malloc instead of keeping freed memory in many.",
            same_kernels=True,
            hurts="Threads wait for each other when they allocate.",
            environment={"MALLOC_ARENA_MAX": "1"},
        ),
        TuningOption(
            name="one-thread",
            does="Kernels run in the calling thread: no scratch memory and stack for each thread.",
            costs_time=True,
            hurts="Large operators take up to N times as long, where N threads ran them before.",
            session_options={THREADS_OPTION: "1"},
        ),
        TuningOption(
            name="optimization-basic",
            does="Graph optimization stops at basic: folding, dropping and simple fusions.",
            costs_time=True,
            hurts="No fused and no blocked kernels: runs are usually slower.",
            session_options={LEVEL_OPTION: "basic"},
            is_relevant=_is_onnx_host_job,
        ),
        TuningOption(
            name="optimization-extended",
            does="Graph optimization stops at extended: no convolution is blocked.",
            costs_time=True,
            hurts="Convolutions are slower.",
            session_options={LEVEL_OPTION: "extended"},
            is_relevant=_is_onnx_host_job,
        ),
        TuningOption(
            name="optimization-off",
            does="The graph is not optimized at all: nothing is folded, fused or reordered.",
            costs_time=True,
            hurts="Creating the session optimizes nothing: runs are usually much slower, unless the"
            " model was optimized when its file was written.",
            session_options={LEVEL_OPTION: "disable_all"},
            is_relevant=_is_onnx_host_job,
        ),
        TuningOption(
            name="same-as-requested",
            does="All sessions share one arena, which grows by what is requested only"
            " (kSameAsRequested).",
            same_kernels=True,
            hurts="The arena grows by what is requested instead of doubling, in more and smaller"
            " regions.",
            shared_arena=True,
        ),
        *_device_option_rows(),
    ]


def _device_option_rows() -> list[TuningOption]:
    """Return the options for the memory on a GPU.

    The figures are of recorded sessions of onnxruntime 1.31.1 on an H100.
    """
    return [
        TuningOption(
            name="device-same-as-requested",
            does="The arena on the GPU grows by what is requested instead of doubling"
            " (kSameAsRequested).",
            same_kernels=True,
            hurts="Pieces that are as large as one request may not fit later ones: where the sizes"
            " of inputs go up and come down again, the arena may end larger than with doubling.",
            provider_options={ARENA_STRATEGY_OPTION: "kSameAsRequested"},
            is_relevant=_is_device_job,
            needs="a session on CUDA",
        ),
        TuningOption(
            name="cublas-small-workspace",
            does="Each handle of cuBLAS takes 128 KiB, and not 64 MiB, the default on an H100.",
            hurts="Some matrix products may get a slower kernel. The variable is for all of the"
            " process, other libraries that use cuBLAS included.",
            environment=dict([SMALL_CUBLAS_WORKSPACE.split("=")]),
            is_relevant=_is_device_job,
            needs="a session on CUDA",
        ),
        TuningOption(
            name="device-weights-apart",
            does="Each weight is an allocation of its own, outside of the arena: its size does not"
            " double when a run needs more.",
            same_kernels=True,
            hurts="The driver gives out pages of 2 MiB: many small weights take more.",
            session_options={OWN_WEIGHTS_OPTION: "1"},
            is_relevant=_is_device_job,
            needs="a session on CUDA",
        ),
        TuningOption(
            name="device-nhwc",
            does="Convolutions run on values with the channels last, and need no copies of them in"
            " another layout.",
            # It may be faster as well. But other kernels may round differently, which must not
            # spoil the first combination.
            costs_time=True,
            hurts="Other kernels run: outputs are rounded differently, filters are transposed, and"
            " nodes that need the other layout get a Transpose.",
            provider_options={"prefer_nhwc": "1"},
            is_relevant=_is_device_job_with_convolutions,
            needs="a session on CUDA, and a Conv node",
        ),
        TuningOption(
            name="device-shrinkage",
            does="The arena on the GPU returns its unused regions after every run. Weights are"
            " outside of it, as they would keep regions in use.",
            costs_time=True,
            hurts="The peak of a run stays, and the next run asks the driver for the regions again:"
            " 1.2 to 1.6 times the latency in a model of convolutions.",
            session_options={OWN_WEIGHTS_OPTION: "1"},
            run_options={SHRINKAGE_OPTION: "gpu:0"},
            is_relevant=_is_device_job,
            needs="a session on CUDA",
        ),
        TuningOption(
            name="cudnn-small-workspace",
            does="cuDNN chooses among algorithms of convolutions that take little working memory.",
            costs_time=True,
            hurts="These may be slower. It saved nothing in a model of convolutions.",
            provider_options={"cudnn_conv_use_max_workspace": "0"},
            is_relevant=_is_device_job_with_convolutions,
            needs="a session on CUDA, and a Conv node",
        ),
        TuningOption(
            name="cudnn-heuristic",
            does="cuDNN chooses algorithms of convolutions by a rule, without trying them.",
            costs_time=True,
            hurts="The rule may choose a slower one. It saved nothing in a model of convolutions.",
            provider_options={"cudnn_conv_algo_search": "HEURISTIC"},
            is_relevant=_is_device_job_with_convolutions,
            needs="a session on CUDA, and a Conv node",
        ),
    ]


def _installed_library(*names: str) -> str | None:
    """Return the path of the first shared library of `names` that is installed; None if none is."""
    paths = (Path(folder, name) for name in names for folder in _LIBRARY_FOLDERS)
    return next((str(path) for path in paths if path.exists()), None)

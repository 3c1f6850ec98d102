"""Options of a session: their names, how their values are read from text, and Python to set them.

The values are those of onnxruntime's SessionOptions and config entries. The hook and the script of
the child have no access to this module and read texts in the same way.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, get_args

from memdiag.errors import UsageError

OptimizationLevel = Literal["disable_all", "basic", "extended", "layout", "all"]
"""The levels of graph optimizations, each of which includes those before it."""

ARENA_OPTION: Final = "enable_cpu_mem_arena"
PATTERN_OPTION: Final = "enable_mem_pattern"
LEVEL_OPTION: Final = "graph_optimization_level"
THREADS_OPTION: Final = "intra_op_num_threads"
PREPACKING_OPTION: Final = "session.disable_prepacking"
SHARED_ALLOCATORS_OPTION: Final = "session.use_env_allocators"
ORT_BYTES_OPTION: Final = "session.use_ort_model_bytes_directly"
ORT_MAPPED_OPTION: Final = "session.use_memory_mapped_ort_model"
ORT_IN_PLACE_OPTION: Final = "session.use_ort_model_bytes_for_initializers"
PREPACKED_FILE_OPTION: Final = "session.save_external_prepacked_constant_initializers"
DENORMAL_OPTION: Final = "session.set_denormal_as_zero"
DISABLED_OPTIMIZERS_OPTION: Final = "optimization.disable_specified_optimizers"
FOLDING_LIMIT_OPTION: Final = "optimization.constant_folding_max_output_size_in_bytes"
OWN_WEIGHTS_OPTION: Final = "session.use_device_allocator_for_initializers"
SHRINKAGE_OPTION: Final = "memory.enable_memory_arena_shrinkage"
"""An entry of the options of a run."""

ARENA_STRATEGY_OPTION: Final = "arena_extend_strategy"
"""An option of the CUDA provider."""

DEVICE_LIMIT_OPTION: Final = "gpu_mem_limit"
"""An option of the CUDA provider: the most bytes that its arena takes; 0 for no limit."""

SMALL_CUBLAS_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG=:16:8"
"""A variable of the environment: the workspace of a handle of cuBLAS is 8 buffers of 16 KiB."""

CUDA_PROVIDER_OPTIONS: Final = frozenset(
    {
        ARENA_STRATEGY_OPTION,
        "cudnn_conv1d_pad_to_nc1d",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "device_id",
        "do_copy_in_default_stream",
        "enable_cuda_graph",
        "enable_cudnn",
        "external_data_loader_reading_threads",
        "fuse_conv_bias",
        "gpu_external_alloc",
        "gpu_external_empty_cache",
        "gpu_external_free",
        DEVICE_LIMIT_OPTION,
        "has_user_compute_stream",
        "prefer_nhwc",
        "sdpa_kernel",
        "tunable_op_enable",
        "tunable_op_max_tuning_duration_ms",
        "tunable_op_tuning_enable",
        "use_ep_level_unified_stream",
        "use_tf32",
        "user_compute_stream",
    }
)
"""Options of the CUDA provider in onnxruntime 1.31.1. No session option has one of these names."""

_TRUTH_BY_TEXT = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_MAX_CODE_LINE_LENGTH = 71  # of 79, since calls may be indented by 8


def is_on(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether the option `name` is on; `default` if it is not set.

    Raises:
        UsageError: its value is neither true nor false.
    """
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in _TRUTH_BY_TEXT:
        raise UsageError(f"session option {name} must be true or false, not {text!r}.")
    return _TRUTH_BY_TEXT[text.lower()]


def optimization_level(text: str) -> OptimizationLevel:
    """Return the level that `text` names, by our name or by onnxruntime's.

    Raises:
        UsageError: there is no such level.
    """
    levels: tuple[OptimizationLevel, ...] = get_args(OptimizationLevel)
    for level in levels:
        runtime_name = _runtime_level(level)
        if text.lower() in (level, runtime_name, f"ort_{runtime_name}"):
            return level
    raise UsageError(f"there is no optimization level {text!r}. Choose from {', '.join(levels)}.")


def _runtime_level(level: OptimizationLevel) -> str:
    return level if level == "disable_all" else f"enable_{level}"


def session_option_lines(variable: str, options: Mapping[str, str]) -> Iterator[str]:
    """Yield lines of Python that assign SessionOptions with `options` to `variable`.

    The code expects that onnxruntime is imported as ``ort``.

    Raises:
        UsageError: there is no such optimization level.
    """
    yield f"{variable} = ort.SessionOptions()"
    for name, value in options.items():
        if "." in name or not name.isidentifier():
            yield from call_lines(f"{variable}.add_session_config_entry", repr(name), repr(value))
        elif name == LEVEL_OPTION:
            yield "levels = ort.GraphOptimizationLevel"
            member = _runtime_level(optimization_level(value)).upper()
            yield f"{variable}.{name} = levels.ORT_{member}"
        elif name == "execution_mode":
            yield f"{variable}.{name} = ort.ExecutionMode.ORT_{value.upper()}"
        else:
            yield f"{variable}.{name} = {_attribute_code(name, value)}"


def _attribute_code(name: str, text: str) -> str:
    if name.startswith(("enable_", "use_")) and text.lower() in _TRUTH_BY_TEXT:
        return str(_TRUTH_BY_TEXT[text.lower()])
    is_number = re.fullmatch(r"-?[0-9]{1,18}", text) is not None
    return str(int(text)) if is_number else repr(text)


def call_lines(function: str, *arguments: str) -> Iterator[str]:
    """Yield a call on one line; if that is too long, with each argument on a line of its own."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= _MAX_CODE_LINE_LENGTH:
        yield line
        return
    yield f"{function}("
    yield from (f"    {argument}," for argument in arguments)
    yield ")"

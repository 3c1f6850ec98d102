"""Defaults and choices of options that the Python API and the command line share."""

from typing import Literal

LoadFrom = Literal["path", "bytes"]
"""What a session is created from."""

XrayTime = Literal["steady", "phases", "none"]
"""When the owners of resident bytes are identified: at steady state, also at the ends of all
phases, or never."""

BisectedMetric = Literal["peak", "steady", "growth", "load", "latency"]
"""The figures for which the version that changed them is searched for."""

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
NVIDIA_PROVIDERS = (
    CUDA_PROVIDER,
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
)
"""The execution providers for NVIDIA's devices. The script of the child has a copy."""

DEFAULT_PROVIDERS = (CPU_PROVIDER,)
DEFAULT_RUNS = 10
"""Number of runs after the first one."""

DEFAULT_PREFILL_TOKENS = 128
DEFAULT_STEPS = 32
"""Tokens of the prompt of a generation, and calls of one token after it."""

DEFAULT_LIMIT_RUNS = 5
"""Number of runs after the first one under each memory limit. About 15 limits are tried."""

DEFAULT_TIMEOUT_S: float = 1800
"""Seconds after which a child process is ended."""

LOCAL_EXECUTION = "local"
"""Where the jobs of a sweep run by default: on this machine."""

DEFAULT_MIN_BYTES = 4 << 10
"""Findings that cost fewer bytes are skipped."""

BUDGET_REPEATS = 3
"""Number of processes whose figures are aggregated for a budget or a baseline."""

COMPARISON_REPEATS = 5
"""Number of processes for each column of a comparison: their spread decides whether a
difference is a change."""

DEFAULT_MAX_SLOWDOWN = 1.05
"""Largest acceptable latency of a changed model, relative to the original."""

DEFAULT_SIZES = (1, 4)
"""Sizes of free dimensions at which models are compared, besides the realistic ones."""

DEFAULT_LEAK_RUNS = 1000
DEFAULT_LEAK_DURATION_S = 60.0
"""Runs of a model that is examined for leaks: this many, or fewer within these seconds."""

MIN_LEAK_RUNS = 40
"""Fewer runs leave too few between two readings of the memory."""

MMAP_THRESHOLD_VARIABLE = "MALLOC_MMAP_THRESHOLD_"
PINNED_ENVIRONMENT = {MMAP_THRESHOLD_VARIABLE: str(128 << 10)}
PINNED_TEXT = f"{MMAP_THRESHOLD_VARIABLE}={PINNED_ENVIRONMENT[MMAP_THRESHOLD_VARIABLE]}"
"""The environment variable with which glibc's malloc returns blocks of this size and more as soon
as they are freed. By default it keeps some of them by chance, and figures vary by several per cent.
Estimates are for a malloc with this setting."""

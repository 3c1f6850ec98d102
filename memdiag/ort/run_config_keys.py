"""Run config entries that onnxruntime knows, for a note on keys that it does not know."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.ort.session_config_keys import TABLE_RELEASE

# The keys in include/onnxruntime/core/session/onnxruntime_run_options_config_keys.h that are not
# those of one provider, all of which are strings in the library for the CPU of 1.32.0.
RUN_CONFIG_KEYS = frozenset(
    {
        "disable_synchronize_execution_providers",
        "gpu_graph_id",
        "memory.enable_memory_arena_shrinkage",
    }
)


def unknown_run_key_notes(options: Iterable[str], providers: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each run config entry among `options` that onnxruntime does not know.

    With other `providers` than the CPU's nothing is checked: they have entries of their own.
    """
    if tuple(providers) != DEFAULT_PROVIDERS:
        return
    for name in options:
        if name in RUN_CONFIG_KEYS:
            continue
        nearest = get_close_matches(name, RUN_CONFIG_KEYS, n=1)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        yield (
            f"run option {name}: onnxruntime {TABLE_RELEASE} does not know this config entry and"
            f" ignores it.{hint}"
        )

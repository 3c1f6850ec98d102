"""The configuration of a session, as far as an estimate considers it."""

from collections.abc import Iterator, Mapping

from memdiag.errors import UsageError
from memdiag.ort.loading import OrtFile
from memdiag.ort.session_estimate import EstimateOptions
from memdiag.records.profile import Session
from memdiag.runner.job import SessionConfig
from memdiag.units import some_of

FOLDING_OPTIMIZER = "ConstantFolding"

_BOOLEAN_WORDS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
_ORT_BYTES_DIRECTLY = "session.use_ort_model_bytes_directly"
_ORT_FILE_MAPPED = "session.use_memory_mapped_ort_model"
_ORT_IN_PLACE = "session.use_ort_model_bytes_for_initializers"
_ESTIMATED_OPTIONS = (
    "session.disable_prepacking",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "graph_optimization_level",
    _ORT_BYTES_DIRECTLY,
    _ORT_FILE_MAPPED,
    _ORT_IN_PLACE,
)


def estimate_options(session: SessionConfig | Session, runs: int | None) -> EstimateOptions:
    """Return the part of the session's configuration that the estimate considers.

    Args:
        session: the configuration, or that of a profile.
        runs: number of runs after the first one with other contents; None if the session is only
            created.

    Raises:
        UsageError: a value is neither true nor false.
    """
    given = session.options
    level = given.get("graph_optimization_level", "all").lower()
    level = level.removeprefix("ort_").removeprefix("enable_")
    return EstimateOptions(
        prepacks=not _is_on(given, "session.disable_prepacking", default=False),
        folds=FOLDING_OPTIMIZER not in session.disabled_optimizers,
        level=level,  # type: ignore[arg-type] # checked by check_session_options
        has_arena=_is_on(given, "enable_cpu_mem_arena", default=True),
        has_pattern=_is_on(given, "enable_mem_pattern", default=True),
        load_from=session.load_from,
        ort_file=OrtFile(
            is_copied=not _is_on(given, _ORT_BYTES_DIRECTLY, default=False),
            in_place=session.load_from == "path"
            and _is_on(given, _ORT_FILE_MAPPED, default=False)
            and _is_on(given, _ORT_IN_PLACE, default=False),
        ),
        runs=runs,
    )


def ignored_option_notes(session: SessionConfig | Session) -> Iterator[str]:
    """Yield a note on the options that do not change an estimate; none if there are none."""
    others = [name for name in session.options if name not in _ESTIMATED_OPTIONS]
    others += [name for name in session.disabled_optimizers if name != FOLDING_OPTIMIZER]
    if others:
        is_one = len(others) == 1
        yield (
            f"{some_of(others)} {'is' if is_one else 'are'} not considered: the estimate is the"
            f" same without {'it' if is_one else 'them'}"
        )


def _is_on(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLEAN_WORDS:
        raise UsageError(f"session option {name} must be true or false, not {text!r}.")
    return _BOOLEAN_WORDS[text.lower()]

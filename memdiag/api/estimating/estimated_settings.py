"""The part of a session's configuration that an estimate considers."""

from collections.abc import Iterator, Sequence

from memdiag.ort.loading import OrtFile
from memdiag.ort.session_estimate import EstimatedSettings
from memdiag.records.profile import Session
from memdiag.runner.job import SessionConfig
from memdiag.session_options import (
    ARENA_OPTION,
    LEVEL_OPTION,
    ORT_BYTES_OPTION,
    ORT_IN_PLACE_OPTION,
    ORT_MAPPED_OPTION,
    PATTERN_OPTION,
    PREPACKING_OPTION,
    is_on,
    optimization_level,
)
from memdiag.units import some_of

FOLDING_OPTIMIZER = "ConstantFolding"

_ESTIMATED_OPTIONS = (
    PREPACKING_OPTION,
    ARENA_OPTION,
    PATTERN_OPTION,
    LEVEL_OPTION,
    ORT_BYTES_OPTION,
    ORT_MAPPED_OPTION,
    ORT_IN_PLACE_OPTION,
)


def estimated_settings(session: SessionConfig | Session, runs: int | None) -> EstimatedSettings:
    """Return the part of the session's configuration that the estimate considers.

    Args:
        session: the configuration, or that of a profile.
        runs: number of runs with other contents after the first one; None if the session is only
            created.

    Raises:
        UsageError: a value is neither true nor false, or there is no such level.
    """
    options = session.options
    return EstimatedSettings(
        prepacks=not is_on(options, PREPACKING_OPTION, default=False),
        folds=FOLDING_OPTIMIZER not in session.disabled_optimizers,
        level=optimization_level(options.get(LEVEL_OPTION, "all")),
        has_arena=is_on(options, ARENA_OPTION, default=True),
        has_pattern=is_on(options, PATTERN_OPTION, default=True),
        load_from=session.load_from,
        ort_file=OrtFile(
            is_copied=not is_on(options, ORT_BYTES_OPTION, default=False),
            in_place=session.load_from == "path"
            and is_on(options, ORT_MAPPED_OPTION, default=False)
            and is_on(options, ORT_IN_PLACE_OPTION, default=False),
        ),
        runs=runs,
    )


def ignored_option_notes(session: SessionConfig | Session) -> Iterator[str]:
    """Yield a note on the options that do not change an estimate; none if there are none."""
    ignored_options = [name for name in session.options if name not in _ESTIMATED_OPTIONS]
    ignored_options += [name for name in session.disabled_optimizers if name != FOLDING_OPTIMIZER]
    yield from not_considered_notes(ignored_options)


def not_considered_notes(names: Sequence[str]) -> Iterator[str]:
    """Yield a note that the options `names` do not change an estimate; none without names."""
    if names:
        is_one = len(names) == 1
        yield (
            f"{some_of(names)} {'is' if is_one else 'are'} not considered: the estimate is the"
            f" same without {'it' if is_one else 'them'}"
        )

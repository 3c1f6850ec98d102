"""Growth over many runs as a figure of a column, measured as `memdiag leak` does."""

import msgspec

from memdiag.api.leak import LeakConfig, observe_model
from memdiag.errors import MemdiagError
from memdiag.growth.model_observation import INTERRUPTED_WORD
from memdiag.records.comparison import ColumnGrowth, ComparisonColumn
from memdiag.runner.job import InputConfig, Job


def with_growth(
    column: ComparisonColumn, job: Job, inputs: InputConfig, runs: int | None
) -> ComparisonColumn:
    """Return `column` with the growth of the model of `job`, or with the reason if it is unknown.

    Args:
        column: the column.
        job: the model and the session.
        inputs: sizes and arrays of the inputs.
        runs: the number of runs; None for the default of `memdiag leak`.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the runs.
    """
    config = LeakConfig(session=job.session, inputs=inputs, limits=job.limits, runs=runs)
    try:
        growth = observe_model(job.model, config)
    except MemdiagError as error:
        return _column_without_growth(column, str(error))
    if growth.message.startswith(INTERRUPTED_WORD):
        raise KeyboardInterrupt
    if growth.message:
        return _column_without_growth(column, growth.message)
    is_steady = growth.is_leak_or_kept
    column_growth = ColumnGrowth(
        verdict=growth.verdict,
        owner=growth.owner if is_steady else None,
        slope=growth.slope if is_steady else None,
        runs=growth.runs,
    )
    return msgspec.structs.replace(column, growth=column_growth)


def _column_without_growth(column: ComparisonColumn, reason: str) -> ComparisonColumn:
    messages = filter(None, (column.message, f"its growth is not known: {reason}"))
    return msgspec.structs.replace(column, message="; ".join(messages))

"""Parsing of budgets: ``peak=1.2GB``, ``"800 MB"``, ``tolerance="2%"``."""

from collections.abc import Collection, Iterable, Mapping

from memdiag.budgets.figures import FIGURES_BY_NAME
from memdiag.errors import UsageError
from memdiag.records.budget import Budget
from memdiag.units import parse_size

TOLERANCE_NAME = "tolerance"


def parse_budget(
    values: Mapping[str, object], *, where: str, other_names: Iterable[str] = ()
) -> Budget:
    """Return the budget with the limits `values` by the name of the figure, or ``tolerance``.

    Args:
        values: sizes as texts with a unit or as numbers of bytes; counts.
        where: the subject of errors.
        other_names: further names that are valid in this place, for errors.

    Raises:
        UsageError: a name or a value is not valid; the message names the alternatives.
    """
    limits = {}
    for name, value in values.items():
        if name == TOLERANCE_NAME:
            continue
        if name not in FIGURES_BY_NAME:
            also = f"; {', '.join(other_names)} can be set too" if other_names else ""
            raise UsageError(
                f"{where}: unknown figure {name!r}. Use one of {', '.join(FIGURES_BY_NAME)},"
                f" or {TOLERANCE_NAME}{also}."
            )
        limits[name] = _parsed_limit(name, value, where)
    tolerance = (
        parse_tolerance(values[TOLERANCE_NAME], where=where) if TOLERANCE_NAME in values else None
    )
    return Budget(limits=limits, tolerance=tolerance)


def parse_sizes(
    values: Mapping[str, object], names: Collection[str], *, where: str
) -> dict[str, int]:
    """Return the sizes in `values` in bytes, by name.

    Raises:
        UsageError: a name is not among `names`, or a value is not a size with a unit.
    """
    for name in values:
        if name not in names:
            raise UsageError(f"{where}: unknown figure {name!r}. Use one of {', '.join(names)}.")
    return {name: _parsed_size(name, value, where) for name, value in values.items()}


def parse_tolerance(value: object, *, where: str) -> float:
    """Return the share of ``"2%"`` or ``0.02``.

    Raises:
        UsageError: `value` is not a share from 0 up to 1.
    """
    share: float | None = None
    if isinstance(value, str) and value.strip().endswith("%"):
        share = _scaled_number(value.strip()[:-1], 100)
    elif isinstance(value, str):
        share = _scaled_number(value, 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    if share is None or not 0 <= share < 1:
        raise UsageError(
            f"{where}: {value!r} is not a tolerance. Write it like 2%, or as a share below 1."
        )
    return share


def merged_budgets(first: Budget, second: Budget) -> Budget:
    """Return both budgets as one; limits of `second` override limits of `first`."""
    return Budget(
        limits={**first.limits, **second.limits},
        tolerance=first.tolerance if second.tolerance is None else second.tolerance,
    )


def _parsed_limit(name: str, value: object, where: str) -> int:
    if FIGURES_BY_NAME[name].unit == "bytes":
        return _parsed_size(name, value, where)
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        raise UsageError(f"{where}: {name} must be a whole number, not {value!r}.")
    return int(text)


def _parsed_size(name: str, value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if not isinstance(value, str):
        raise UsageError(f"{where}: {name} must be a size such as 800MB, not {value!r}.")
    if value.strip().replace(".", "", 1).isdigit():
        number = value.strip()
        raise UsageError(
            f"{where}: {name}={number} has no unit. Write {number}MB, {number}MiB or {number}B."
        )
    try:
        return parse_size(value)
    except UsageError as error:
        raise UsageError(f"{where}: {name}: {error}") from error


def _scaled_number(text: str, divisor: float) -> float | None:
    try:
        return float(text) / divisor
    except ValueError:
        return None

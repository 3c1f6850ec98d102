"""Reading the command line: its ``NAME=VALUE`` options, and what it was as a whole."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from memdiag.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from memdiag.api.inputs import Given
    from memdiag.records.budget import Budget


def pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """Return the ``NAME=VALUE`` texts given to `option` as a mapping.

    Raises:
        UsageError: one has no ``=`` or no name, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option}: {text!r} is not NAME=VALUE.")
        if name in found:
            raise UsageError(f"{option}: {name} is given twice. Give it once.")
        found[name] = value
    return found


def given_inputs(input: Sequence[str], inputs: Path | None) -> Given:
    """Return what ``--input NAME=FILE.npy`` and ``--inputs FILE.npz`` give, by input name.

    Raises:
        UsageError: as `pairs`, the archive cannot be read, or an input is given by both.
    """
    given: dict[str, np.ndarray | str | Path] = dict(pairs("--input", input))
    if inputs is None:
        return given
    from memdiag.api.inputs import read_archive

    archive = read_archive(inputs)
    twice = sorted(given.keys() & archive.keys())
    if twice:
        raise UsageError(f"input {twice[0]} is given by both --input and --inputs. Give it once.")
    return given | archive


def dimension_sizes(option: str, values: Sequence[str]) -> dict[str, int]:
    """Return the ``NAME=N`` texts given to `option`, several in one after commas, as sizes by name.

    Raises:
        UsageError: as `pairs`, or a value is no whole number.
    """
    # A name may contain commas itself, so a comma separates only after a number.
    texts = [part.strip() for text in values for part in re.split(r"(?<=\d),", text.rstrip(","))]
    numbers: dict[str, int] = {}
    for name, value in pairs(option, texts).items():
        if not value.isascii() or not value.isdigit():
            raise UsageError(f"{option} {name}: {value!r} is not a whole number. Use NAME=N.")
        numbers[name] = int(value)
    return numbers


def budget(option: str, text: str | None) -> Budget | None:
    """Return the budget of the ``NAME=SIZE,NAME=SIZE`` text given to `option`; None without one.

    Raises:
        UsageError: as `pairs`, or there is no such figure, no such size, or no figure at all.
    """
    from memdiag.budgets.parsing import parse_budget

    if text is None:
        return None
    found = parse_budget(_comma_pairs(option, text), where=option)
    if not found.limits:
        raise UsageError(f"{option}: no figure was given. Write it like peak=1.2GB,steady=800MB.")
    return found


def sizes_by_name(option: str, text: str | None, names: Collection[str]) -> dict[str, int]:
    """Return the ``NAME=SIZE,NAME=SIZE`` text given to `option` as bytes by name, of `names`.

    Raises:
        UsageError: as `pairs`, or a name that is not one of `names`, or a value that is no size.
    """
    from memdiag.budgets.parsing import parse_sizes

    return parse_sizes(_comma_pairs(option, text or ""), names, where=option)


def _comma_pairs(option: str, text: str) -> dict[str, str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return pairs(option, parts)


def sizes_of(option: str, text: str) -> tuple[int, ...]:
    """Return the ``N,N`` text given to `option` as positive whole numbers, in order.

    Raises:
        UsageError: one is no such number, or there is none.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"{option} must be whole numbers from 1, such as 1,16, not {text!r}.")
    return tuple(sorted({int(part) for part in parts}))


class TrialArguments(TypedDict):
    """What fixing and tuning are told of the inputs that models are compared on."""

    dims: dict[str, int]
    inputs: Given
    sizes: tuple[int, ...]


def trial_arguments(
    dim: Sequence[str] | None, input: Sequence[str] | None, inputs: Path | None, sizes: str
) -> TrialArguments:
    """Return what ``--dim``, ``--input``, ``--inputs`` and ``--sizes`` give.

    Raises:
        UsageError: as `dimension_sizes`, `given_inputs` and `sizes_of`.
    """
    return {
        "dims": dimension_sizes("--dim", dim or ()),
        "inputs": given_inputs(input or (), inputs),
        "sizes": sizes_of("--sizes", sizes),
    }


def seconds_left(limit_s: float | None, began: float) -> float | None:
    """Return what is left of a time limit for work that began at `began`, loading our code.

    Raises:
        UsageError: the limit itself leaves no time.
    """
    if limit_s is None:
        return None
    if limit_s <= 0:
        raise UsageError("--time-limit must be greater than 0.")
    return max(limit_s - (time.monotonic() - began), 1e-3)


def command_line() -> tuple[str, ...]:
    """Return the command that is running, word by word; bytes that are no text are spelt out."""
    words = (word.encode(errors="backslashreplace").decode() for word in sys.argv[1:])
    return ("memdiag", *words)

"""Texts of reports: names from models without control characters, counts, sizes and lists."""

import shlex
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from math import ceil
from pathlib import Path

from memdiag.errors import UsageError
from memdiag.records.dimension import Dimension, dimensions_text, typed_names
from memdiag.records.profile import PeakKind
from memdiag.units import MIB, format_duration, format_size, parse_duration, some_of

MAX_HINTED_DIMENSIONS = 3
"""Maximum dimensions that the hint ``--dim a=N,b=N`` names."""

MAX_DECIMAL_BYTES = 200 * MIB
"""Tables whose largest size is below this print tenths of MiB."""

_MAX_SHORT_LIMIT_S = 120
_REORDERING_CHARACTERS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_BLANK_REPLACEMENTS = str.maketrans(dict.fromkeys("\t\n\r\v\f\u2028\u2029", " "))
_UNPRINTABLE_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_ROLES_BY_INTEREST = (
    *("sequence", "samples", "height", "width", "past", "frames", "size"),
    *("iterations", "count"),
    *("batch", "channels", "features"),
)


def plain(text: str) -> str:
    r"""Return `text` on one line, without control characters of terminals and pages.

    White space becomes single blanks. Control characters, lone surrogates and characters that
    reorder text are escaped (``\x1b``, ``\u202e``).
    """
    with_blanks = text.translate(_BLANK_REPLACEMENTS)
    return _escaped_characters(" ".join(part for part in with_blanks.split(" ") if part))


def plain_lines(text: str) -> tuple[str, ...]:
    """Return the lines of `text`, escaped as `plain` does, with their blanks unchanged."""
    return tuple(map(_escaped_characters, text.splitlines()))


def _escaped_characters(text: str) -> str:
    if text.isascii() and text.isprintable():  # most names
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if character in _REORDERING_CHARACTERS
        or unicodedata.category(character) in _UNPRINTABLE_CATEGORIES
        else character
        for character in text
    )


def shortened(text: str, length: int) -> str:
    """Return `text` in at most `length` characters. A longer text loses its middle."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def capitalized(text: str) -> str:
    """Return `text` with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]


def lowered(text: str) -> str:
    """Return `text` with its first letter in lower case and the rest unchanged."""
    return text[:1].lower() + text[1:]


def listed_names(names: Sequence[str], *, limit: int, separator: str = ", ") -> str:
    """Return the first `limit` distinct `names`, and how many more there are."""
    return some_of(list(dict.fromkeys(map(plain, names))), limit, separator)


def mebibytes_text(size: int, decimals: int, *, signed: bool = False) -> str:
    """Return `size` bytes in MiB without the unit. A signed zero is plain 0."""
    text = f"{size / MIB:{'+' if signed else ''},.{decimals}f}"
    return f"{0:.{decimals}f}" if float(text.replace(",", "")) == 0 else text


def known_mebibytes_text(size: int | None, decimals: int = 0, *, signed: bool = False) -> str:
    """Return `size` bytes in MiB without the unit; empty if it is not known."""
    return "" if size is None else mebibytes_text(size, decimals, signed=signed)


def mebibyte_decimals(largest: int) -> int:
    """Return the decimals of a column in MiB whose largest size is `largest` bytes."""
    return 1 if largest < MAX_DECIMAL_BYTES else 0


def baseline_difference_text(size: int) -> str:
    """Return ``5 MiB above baseline`` for a `size` relative to the baseline."""
    if size == 0:
        return "at the baseline"
    return f"{format_size(abs(size))} {'above' if size > 0 else 'below'} baseline"


def sampled_peak_word(kind: PeakKind) -> str:
    """Return ``sampled`` for a sampled peak, and an empty text for an exact peak."""
    return "" if kind == "exact" else "sampled"


def model_file_name(path: str) -> str:
    """Return the file name of a model's `path`."""
    return plain(Path(path).name) or "model"


def time_limit_text(command: Sequence[str]) -> str:
    """Return the time limit that `command` sets, in words: ``the time limit of 60 s``."""
    for option, value in pairwise([*" ".join(command).replace("=", " ").split(" "), ""]):
        if option == "--time-limit":
            with suppress(UsageError):
                return f"the time limit of {format_duration(parse_duration(value))}"
    return "the time limit"


def repeat_with_time_advice(sufficient_s: float | None) -> str:
    """Return the advice to repeat a search that a time limit ended.

    `sufficient_s` is a time limit that is expected to suffice; None if none is known.
    """
    if sufficient_s is None:
        return "run it again with a longer --time-limit, or none"
    step_s = 10 if sufficient_s < _MAX_SHORT_LIMIT_S else 60
    limit_s = step_s * ceil(sufficient_s / step_s)
    return f"run it again with --time-limit {limit_s}, which is expected to suffice, or without"


def sizes_clause(dimensions: Sequence[Dimension], further_sizes: Sequence[str] = ()) -> str:
    """Return the sizes: ``at batch 1 × sequence 128``; empty if all sizes are fixed.

    `further_sizes` follow in the same process: ``after runs at batch 1 and batch 4``.
    """
    if not dimensions:
        return ""
    text = f"at {plain(dimensions_text(dimensions))}"
    if further_sizes:
        *earlier_sizes, last_size = (dimensions_text(dimensions), *further_sizes)
        text = f"after runs at {plain(', '.join(earlier_sizes))} and {plain(last_size)}"
    return text


def dim_hint(dimensions: Sequence[Dimension]) -> str:
    """Return the option that changes sizes: ``--dim sequence=N,batch=N``.

    Empty if the user gave all sizes, or all are fixed.
    """
    chosen_dimensions = [
        axis for axis in dimensions if axis.source == "chosen" and axis.role != "sum"
    ]
    if not chosen_dimensions:
        return ""
    # The sort is stable, so dimensions of one role stay in the order of the model.
    chosen_dimensions.sort(key=lambda axis: _role_interest(axis.role))
    names = typed_names(dimensions)
    hints = [f"{plain(names[axis.name])}=N" for axis in chosen_dimensions]
    return f"other sizes: --dim {some_of(hints, MAX_HINTED_DIMENSIONS, ',')}"


def _role_interest(role: str) -> int:
    order = _ROLES_BY_INTEREST
    return order.index(role) if role in order else len(order)


def dim_option(dimensions: Sequence[Dimension]) -> str:
    """Return the option for the sizes that the user gave: `` --dim batch=4,tokens=512``.

    Empty if the user gave none.
    """
    given_sizes = [
        f"{plain(axis.name)}={axis.size}" for axis in dimensions if axis.source == "given"
    ]
    return f" --dim {shlex.quote(','.join(given_sizes))}" if given_sizes else ""


def input_option(command: Sequence[str]) -> str:
    """Return the options of `command` for the data of inputs: `` --input ids=ids.npy``."""
    words = [*command, ""]
    input_texts = [
        next_word if word == "--input" else word.removeprefix("--input=")
        for word, next_word in pairwise(words)
        if word == "--input" or word.startswith("--input=")
    ]
    return "".join(f" --input {shlex.quote(plain(text))}" for text in input_texts)

"""Untrusted text made plain, and the few words for figures that every view shares."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from memdiag.records.profile import PeakKind, Profile
from memdiag.units import format_duration, format_size

_REORDERING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def plain(text: str) -> str:
    r"""Return `text` on one line with nothing in it that a terminal or page would obey.

    White space becomes single blanks; control characters, lone surrogates and characters that
    reorder text are spelt out (``\x1b``, ``\u202e``).
    """
    blanks = "".join(" " if c in "\t\n\r\v\f\u2028\u2029" else c for c in text)
    return _spelt_out(" ".join(part for part in blanks.split(" ") if part))


def plain_lines(text: str) -> tuple[str, ...]:
    """Return the lines of `text`, such as a program's, each as `plain` but with its blanks kept."""
    return tuple(map(_spelt_out, text.splitlines()))


def _spelt_out(text: str) -> str:
    return "".join(
        c.encode("unicode_escape").decode("ascii")
        if c in _REORDERING or unicodedata.category(c) in _UNPRINTABLE
        else c
        for c in text
    )


def shortened(text: str, length: int) -> str:
    """Return `text` in at most `length` characters, its middle left out where it is longer."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[len(text) - tail :]}"


def model_file(path: str) -> str:
    """Return the file name of a model's `path` as plain text."""
    return plain(Path(path).name) or "model"


def model_name(profile: Profile) -> str:
    """Return the model's file name as plain text."""
    return model_file(profile.model.path)


def time_limit(command: Sequence[str]) -> str:
    """Return the time limit of `command` in words: ``the time limit of 60 s``."""
    for option, value in pairwise([*" ".join(command).replace("=", " ").split(" "), ""]):
        if option == "--time-limit" and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
            return f"the time limit of {format_duration(float(value))}"
    return "the time limit"


def beside_baseline(size: int) -> str:
    """Return in words where `size` bytes, relative to the baseline, lie."""
    if size == 0:
        return "at the baseline"
    return f"{format_size(abs(size))} {'above' if size > 0 else 'below'} baseline"


def and_kind(kind: PeakKind) -> str:
    """Return the mark that a peak carries in a sentence: nothing where it is exact."""
    return "" if kind == "exact" else "sampled"


def runtime(profile: Profile) -> str:
    """Return the runtime, its providers and threads: ``onnxruntime 1.31.1, CPU, 2 threads``."""
    version = profile.environment.onnxruntime
    parts = [f"onnxruntime {plain(version)}" if version else "onnxruntime (version unknown)"]
    parts += [plain(name).removesuffix("ExecutionProvider") for name in profile.session.providers]
    threads = profile.session.options.get("intra_op_num_threads", "0")
    if threads.isdecimal() and int(threads) > 0:
        parts.append(f"{int(threads)} thread{'s' if int(threads) > 1 else ''}")
    return ", ".join(part for part in parts if part)

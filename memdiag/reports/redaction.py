"""Records without a user's names of models, files, tensors, nodes, dimensions and programs.

Each name has one replacement (``model-1.onnx``, ``tensor-7``) in the whole record. Two rules find
the names:

- `NAMES` lists the fields that contain a name.
- All other texts may contain names as well: sentences, commands, values of options. In them each
  word is replaced that is a known name, or that the source code of memdiag does not contain: what
  memdiag wrote itself consists of words of its source code, everything else was inserted. A field
  that is new is therefore redacted without an entry in a table.

Names that are ordinary words, such as ``input`` or ``x``, and numbers are replaced in their fields
and between quotes only: in sentences they would hide what memdiag says, and they tell nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from memdiag.records import attribution, comparison, estimate, finding, fix, profile, run, sweep
from memdiag.records.base import Record
from memdiag.records.baseline import CopyTotal
from memdiag.records.budget import Judgement, Suspect
from memdiag.records.dimension import Dimension
from memdiag.records.growth import Growth
from memdiag.records.limit import MemoryLimit
from memdiag.records.tuning import Point, Tuning

R = TypeVar("R", bound=Record)

Kind = Literal[
    "model",
    "file",
    "tensor",
    "node",
    "dimension",
    "function",
    "package",
    "digest",
    "job",
    "name",
    # Treatments of a field that are no kinds of names:
    "public",
    "subject",
    "maker",
    "sizes",
]
"""The kind of name in a field.

``name`` is any other word that was inserted. Of the treatments, ``public`` texts stay as they are;
a ``subject`` is a model or a command; a ``maker`` is a step, with nodes; ``sizes`` are dimensions
with their sizes, such as ``batch=4,seq=16``.
"""

NAMES: Mapping[type[Record], Mapping[str, Kind]] = {
    profile.Model: {"path": "model"},
    profile.Environment: dict.fromkeys(
        ("memdiag", "onnxruntime", "python", "platform", "cpu", "machine"), "public"
    ),
    profile.Session: {
        "options.keys": "public",
        "environment.keys": "public",
        "providers": "public",
        "disabled_optimizers": "public",
        "provider_options.keys": "public",
        "run_options.keys": "public",
    },
    profile.Input: {"name": "tensor", "dtype": "public"},
    profile.Span: {"name": "public"},
    profile.DeviceMemory: {"name": "public"},
    profile.ReleaseRemedy: {"name": "public", "setting": "public"},
    profile.PeakNode: {"node": "node", "estimated_node": "node"},
    Dimension: {"name": "dimension", "role": "public"},
    finding.Finding: {
        "model": "model",
        "rule": "public",
        "name": "public",
        "weights": "tensor",
        "nodes": "node",
        "graph": "node",
        "remedies": "public",
        "rewrites": "public",
    },
    finding.ExpectedCopies: {"weights": "tensor"},
    attribution.Owner: {"name": "public"},
    attribution.Backing: {"file": "file"},
    attribution.SearchedModel: {"name": "model"},
    attribution.Copy: {
        "weights": "tensor",
        "layout": "public",
        "parameters": "public",
        "parameters.keys": "public",
        "made_by": "maker",
    },
    attribution.DeviceArena: {"device": "public"},
    attribution.Unidentifiable: {"weights": "tensor"},
    attribution.Attribution: {"allocator": "public"},
    estimate.EstimatedTerm: {"largest": "tensor"},
    estimate.EstimatedPhase: {"cause": "tensor"},
    estimate.LiveTensor: {
        "name": "tensor",
        "form": "public",
        "dtype": "public",
        "producer": "node",
        "last_use": "node",
        "growth.keys": "dimension",
    },
    estimate.RunBlock: {"name": "tensor", "first_node": "node", "last_node": "node"},
    estimate.EstimatedPoint: {"dims.keys": "dimension"},
    estimate.Fit: {"dim": "dimension", "dims.keys": "dimension"},
    estimate.FormulaTerm: {"powers.keys": "dimension"},
    estimate.Calibration: {"dims.keys": "dimension"},
    estimate.Estimate: {
        "model": "model",
        "onnxruntime": "public",
        "options.keys": "public",
        "disabled_optimizers": "public",
    },
    fix.Fix: {
        "model": "model",
        "onnxruntime": "public",
        "output": "model",
        "output_files": "file",
        "kept_files": "file",
        "further_sizes": "public",
        "verified_on": "public",
        "oldest_onnxruntime": "public",
    },
    fix.Remedy: {"name": "public", "rule": "public", "weights": "tensor"},
    Tuning: {
        "model": "model",
        "onnxruntime": "public",
        "untried": "public",
        "chosen": "public",
        "further_sizes": "public",
    },
    Point: {
        "options": "public",
        "session_options.keys": "public",
        "environment.keys": "public",
        "run_options.keys": "public",
        "disabled_optimizers": "public",
        "saved_options.keys": "public",
    },
    comparison.OptimizerRun: {"version": "public"},
    comparison.ComparisonColumn: {"model": "model", "onnxruntime": "public"},
    comparison.CopyChange: {"weights": "tensor", "made_by": "maker"},
    CopyTotal: {"weight": "tensor", "made_by": "maker"},
    Judgement: {
        "model": "model",
        "onnxruntime": "public",
        "baseline_onnxruntime": "public",
        "figures.keys": "public",
        "baseline.keys": "public",
    },
    Suspect: {"rule": "public"},
    run.Caller: {"file": "file", "function": "function"},
    run.SessionModel: {"path": "model", "same_file": "model", "digest": "digest"},
    run.InputShapes: {"shapes.keys": "tensor"},
    run.HighWaterRun: {"shapes.keys": "tensor"},
    run.ProgramSession: {
        "library": "package",
        "created_at": "file",
        "called_from": "file",
        "options.keys": "public",
        "providers": "public",
    },
    run.ProgramProcess: {"onnxruntime": "public", "build": "public", "python": "public"},
    run.ProgramFinding: {"rule": "public"},
    Growth: {
        "subject": "subject",
        "dimensions.keys": "dimension",
        "onnxruntime": "public",
    },
    MemoryLimit: {"subject": "subject", "onnxruntime": "public"},
    sweep.SweepPoint: {
        "key": "job",
        "digest": "digest",
        "onnxruntime": "public",
        "status": "public",
        "peak_phase": "public",
    },
    sweep.SweepStep: {"before_key": "job", "key": "job", "phase": "public"},
    sweep.SweepSeries: {
        "model": "model",
        "address": "model",
        "machine": "public",
        "dims": "sizes",
    },
    sweep.WastingModel: {"model": "model", "address": "model", "key": "job"},
    sweep.FindingGroup: {"rule": "public"},
    sweep.ExceededBudget: {"key": "job"},
    sweep.PlacedModel: {"model": "model", "key": "job"},
    sweep.Sweep: {"store": "file", "against": "file", "releases": "public"},
}
"""The kinds of names in fields of records; ``field.keys`` are the keys of a dictionary."""

_ROLES = frozenset({"batch", "sequence", "height", "width", "channels", "size"})
"""Names of dimensions that are the same in all models."""

_WORD = re.compile(r"[^\s'\"`(){}\[\],;=<>|]+")
_ENDS = ".:!?…"  # of words: the marks that end a sentence or a part of it
_QUOTED = re.compile(r"(['\"`])([^'\"`\n]+)\1")
_LINE = re.compile(r"(.+?)((?::\d+)+)")  # app.py:12, or the output 0 of a node
_QUANTITY = re.compile(r"[-+~≈×]?\d[\d.,×x:]*(?:[a-z%°]{0,3}|[KMGT]i?B|Hz)(?:/s)?", re.IGNORECASE)
_ADDRESS = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)
_PATH = re.compile(r"(?:[/~\\]|\.\.?[/\\]|[A-Za-z]:[/\\]|[a-z0-9]+://).*")
_NAMED = (
    re.compile(r"(?:in|out)puts? ['\"`]([^'\"`\n]+)['\"`]"),
    re.compile(
        r"\b(?:initializer|weight|tensor|value|node|graph|function|dimension)s? ['\"`]([^'\"`\n]+)"
    ),
    # As onnxruntime names nodes, inputs and files in its errors.
    re.compile(r"\b[Nn]ode ?\(([^()\s]+)\)"),
    re.compile(r"\b[Nn](?:ode_n)?ame: ?'?([^'\s]+)"),
    re.compile(r"\b(?:[Ii]n|[Oo]ut)put: ?([^\s']+)"),
    re.compile(r"\bmodel from (\S+) failed"),
    re.compile(r"\bnot compared: ([^\s,]+)"),
)
"""Texts in which a word is a name whatever it looks like."""

_MODEL_ENDS = (".onnx", ".ort")
_FILE_ENDS = (
    *(".py", ".npy", ".npz", ".json", ".data", ".bin", ".pb", ".so", ".dll", ".dylib", ".toml"),
    *(".yaml", ".yml", ".txt", ".log", ".cfg", ".ini", ".html", ".md", ".png", ".svg", ".csv"),
)
_KNOWN_ENDS = (*_MODEL_ENDS, *_FILE_ENDS)
_INTERPRETER = re.compile(r"python[0-9.]*")
_MIN_FILES = 5
"""A word in this many files of memdiag's source code is an ordinary word."""

_RUNTIME_WORDS = frozenset(
    """
    attempting axis bound broadcast could deserialize development doesn't domain during either
    engine_error ep_fail exception exist expected external fail failed feed find fix got
    implementation index inference initialization invalid invalid_argument invalid_graph
    invalid_protobuf ir_version limited load mismatch missing no_model no_suchfile node non-zero
    not_implemented official onnxruntimeerror opset optype parameter parsing please protobuf rank
    registered requested required returned runtime_exception shape status supported unexpected
    """.split()  # noqa: SIM905 - as a list they would be fifty lines
)
"""Words of onnxruntime's errors; memdiag's source code has the others."""


def redact(record: R) -> R:
    """Return `record` with a replacement for each name of a model, file, tensor, node or program.

    The same name has the same replacement in the whole record.
    """
    return _Redaction().of(record)


class _Redaction:
    """The replacements of one record."""

    def __init__(self) -> None:
        self._replacements: dict[str, str] = {}
        self._paths: list[tuple[tuple[str, ...], str]] = []
        self._counts: Counter[str] = Counter()
        self._irregular: re.Pattern[str] | None = None

    def of(self, record: R) -> R:
        """Return `record` with the replacements."""
        self._visit(record, self._collect)
        irregular = [
            re.escape(name)
            for name in sorted(self._replacements, key=len, reverse=True)
            if not _is_ordinary(name) and not _is_word(name)
        ]
        if irregular:
            self._irregular = re.compile(rf"(?<!\w)(?:{'|'.join(irregular)})(?!\w)")
        return cast("R", self._visit(record, self._replaced))

    def _visit(self, value: Any, change: Callable[[str, Kind | None], str]) -> Any:
        """Return `value` with the result of `change` for each text and its kind of name."""
        if not isinstance(value, Record):
            return value
        kinds: dict[str, Kind] = dict(NAMES.get(type(value), {}))
        for name, kind in kinds.items():
            if kind == "subject":
                kinds[name] = "model" if getattr(value, "kind", "") == "model" else "name"
        fields = {
            field: self._visit_field(
                getattr(value, field), change, kinds.get(field), kinds.get(f"{field}.keys")
            )
            for field in value.__struct_fields__
            if field not in _fixed_fields(type(value))
        }
        return msgspec.structs.replace(value, **fields)

    def _visit_field(
        self,
        value: Any,
        change: Callable[[str, Kind | None], str],
        kind: Kind | None,
        keys: Kind | None,
    ) -> Any:
        if isinstance(value, str):
            return change(value, kind)
        if isinstance(value, tuple):
            return tuple(self._visit_field(each, change, kind, keys) for each in value)
        if isinstance(value, dict):
            # Options of a provider are a dictionary in a dictionary.
            return {
                change(key, keys): self._visit_field(each, change, kind, keys)
                for key, each in value.items()
            }
        return self._visit(value, change)

    def _collect(self, text: str, kind: Kind | None) -> str:
        """Find the names in a field, and in sentences the words that are names by their place."""
        if kind == "sizes":
            for part in text.split(","):
                self._name(part.partition("=")[0], "dimension")
        elif kind is None or kind in ("name", "maker"):
            for pattern in _NAMED:
                for found in pattern.findall(text):
                    name = found.rstrip(_ENDS)
                    if not name.startswith("-"):  # an option of a command
                        self._name(name, "file" if _is_path(name) else "tensor")
        elif kind != "public":
            self._name(text, kind)
        return text

    def _replaced(self, text: str, kind: Kind | None) -> str:
        if kind == "public":
            return text
        if kind is None or kind in ("name", "maker"):
            return self._sentence(text, "node" if kind == "maker" else "name")
        if kind == "sizes":
            pairs = (part.partition("=") for part in text.split(","))
            return ",".join(
                f"{self._name(name, 'dimension')}{sign}{size}" for name, sign, size in pairs
            )
        return self._name(text, kind)

    def _name(self, name: str, kind: Kind) -> str:
        """Return the replacement of `name`, the same as before if it has one."""
        if name in ("", attribution.MODEL_FILE) or (kind == "dimension" and name in _ROLES):
            return name
        if name in self._replacements:
            return self._replacements[name]
        if kind in ("model", "file"):
            return self._path(name, kind)
        tensor, _, axis = name.rpartition(":")
        if kind == "dimension" and tensor and axis.isdecimal():
            return f"{self._name(tensor, 'tensor')}:{axis}"
        return self._new(name, kind)

    def _path(self, path: str, kind: Kind) -> str:
        """Return the replacement of a path: a file name without folders.

        A path that is the end of an earlier one, or has an earlier one as its end, is that file.
        """
        line = _LINE.fullmatch(path)
        if line:
            return self._name(line[1], kind) + line[2]
        parts = PurePosixPath(path.replace("\\", "/")).parts
        end = PurePosixPath(parts[-1]).suffix.lower() if parts else ""
        is_model = kind == "model" or end in _MODEL_ENDS
        for earlier, replacement in self._paths:
            length = min(len(earlier), len(parts))
            if length and earlier[-length:] == parts[-length:]:
                self._replacements[path] = replacement
                return replacement
        end = end if end in _KNOWN_ENDS else ""
        if parts and _INTERPRETER.fullmatch(parts[-1]):
            return parts[-1]
        new = self._new(path, "model" if is_model else "file", end=end)
        self._paths.append((parts, new))
        if is_model and parts:
            self._replacements.setdefault(PurePosixPath(parts[-1]).stem, new.removesuffix(end))
        return new

    def _new(self, name: str, kind: Kind, *, end: str = "") -> str:
        self._counts[kind] += 1
        replacement = f"{kind}-{self._counts[kind]}{end}"
        self._replacements[name] = replacement
        return replacement

    def _sentence(self, text: str, kind: Kind) -> str:
        """Return a text with replacements for the names in it; `kind` is that of unknown words."""
        return "".join(
            part if is_replacement else self._words(part, kind)
            for part, is_replacement in self._split(text)
        )

    def _split(self, text: str) -> Sequence[tuple[str, bool]]:
        """Return the parts of `text`, each with whether it is the replacement of a name.

        Replaced are quoted names, and names that are no single words.
        """
        parts: list[tuple[str, bool]] = []
        for part, quoted in _parts(_QUOTED, text):
            content = part[1:-1]
            if quoted and content in self._replacements:
                parts.append((f"{part[0]}{self._replacements[content]}{part[0]}", True))
            elif self._irregular is not None:
                parts += (
                    (self._replacements[each], True) if found else (each, False)
                    for each, found in _parts(self._irregular, part)
                )
            else:
                parts.append((part, False))
        return parts

    def _words(self, text: str, kind: Kind) -> str:
        return _WORD.sub(lambda found: self._word(found[0], kind), text)

    def _word(self, text: str, kind: Kind) -> str:
        word = text.rstrip(_ENDS)
        end = text[len(word) :]
        for name in (text, word):
            if name in self._replacements and not _is_ordinary(name):
                return self._replacements[name] + text[len(name) :]
        if _is_public(word):
            return text
        line = _LINE.fullmatch(word)
        if line and not _PATH.fullmatch(word):
            return self._word(line[1], kind) + line[2] + end
        if _is_path(word):
            return self._name(word, "file") + end
        is_node = kind == "name" and "/" in word
        return self._name(word, "node" if is_node else kind) + end


def _parts(pattern: re.Pattern[str], text: str) -> Sequence[tuple[str, bool]]:
    """Return the parts of `text`, each with whether `pattern` matches it."""
    parts: list[tuple[str, bool]] = []
    position = 0
    for found in pattern.finditer(text):
        parts += [(text[position : found.start()], False), (found[0], True)]
        position = found.end()
    return [*parts, (text[position:], False)]


def _is_word(name: str) -> bool:
    """Return whether a sentence has `name` as one word, and not as several or a part."""
    return _WORD.fullmatch(name) is not None and name.rstrip(_ENDS) == name


def _is_path(word: str) -> bool:
    return _PATH.fullmatch(word) is not None or PurePosixPath(word.lower()).suffix in _KNOWN_ENDS


def _is_ordinary(name: str) -> bool:
    """Return whether `name` is a number, or a word that memdiag's own sentences use."""
    if not any(letter.isalpha() for letter in name):
        return True
    return name.isascii() and name.isalpha() and _vocabulary()[name.lower()] >= _MIN_FILES


def _is_public(word: str) -> bool:
    """Return whether `word` is a number or quantity, or is in the source code of memdiag."""
    low = word.lower()
    if not any(letter.isalpha() for letter in low) or low in _RUNTIME_WORDS:
        return True
    if _QUANTITY.fullmatch(low) or _ADDRESS.fullmatch(low):
        return True
    words = _vocabulary()
    if low in words or (low.endswith("s") and low[:-1] in words):
        return True
    parts = low.split("-")
    numbers = [part for part in parts if part.isdecimal()]
    return bool(numbers) and all(part in numbers or part in words for part in parts)


@cache
def _vocabulary() -> Counter[str]:
    """Return the words of memdiag's source code in lower case, each with its number of files."""
    counts: Counter[str] = Counter()
    folders: list[Traversable] = [resources.files("memdiag")]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.is_dir():
                folders.append(entry)
            elif entry.name.endswith(".py"):
                text = entry.read_text("utf-8").lower()
                counts.update({word.strip(_ENDS) for word in _WORD.findall(text)})
    return counts


@cache
def _fixed_fields(kind: type[Record]) -> frozenset[str]:
    """Return the fields of records of type `kind` whose texts are fixed values, not free texts."""
    hints = get_type_hints(kind)
    return frozenset(
        field for field in kind.__struct_fields__ if field in hints and _is_fixed(hints[field])
    )


def _is_fixed(hint: Any) -> bool:
    """Return whether values of type `hint` have no text, or only texts of a ``Literal``."""
    if hint in (int, float, bool, type(None), Ellipsis) or get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (tuple, Union, UnionType):
        return all(_is_fixed(each) for each in get_args(hint))
    return False

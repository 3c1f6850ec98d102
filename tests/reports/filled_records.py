"""Records in which every text that can be a name, or can contain one, is unmistakable."""

from collections.abc import Iterator
from itertools import count
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from memdiag.records.base import Record

NAME = "zebra"

_REFERENCES = {
    "key": "job",
    "before_key": "job",
    "label": "column",
    "from_": "column",
    "to": "column",
}
"""Fields that refer to each other, so that their texts must be equal."""


def filled(kind: type[Record], public: dict[type[Record], set[str]]) -> Record:
    """Return a record of type `kind` with one element in each collection.

    Texts contain `NAME`, except for the fields in `public`. Numbers are 0.
    """
    return _Filling(public).record(kind)


class _Filling:
    def __init__(self, public: dict[type[Record], set[str]]) -> None:
        self._public = public
        self._numbers: Iterator[int] = count(1)

    def record(self, kind: type[Record]) -> Record:
        hints = get_type_hints(kind, include_extras=True)
        public = self._public.get(kind, set())
        return kind(
            **{field: self._value(hints[field], field, public) for field in kind.__struct_fields__}
        )

    def _value(self, hint: Any, field: str, public: set[str]) -> Any:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._value(arguments[0], field, public)
        if origin in (Union, UnionType):
            known = [each for each in arguments if each is not type(None)]
            return self._value(known[0], field, public)
        if origin is Literal:
            return arguments[0]
        if origin is tuple:
            each = [argument for argument in arguments if argument is not Ellipsis]
            return tuple(self._value(argument, field, public) for argument in each)
        if origin is dict:
            key = self._value(arguments[0], f"{field}.keys", public)
            return {key: self._value(arguments[1], field, public)}
        if hint is str:
            return "public" if field in public else self._text(field)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            assert issubclass(hint, Record)
            return self.record(hint)
        return None if hint is Any else hint(0)

    def _text(self, field: str) -> str:
        """Return a name, a path or a sentence with both."""
        if field in _REFERENCES:
            return f"{NAME}_{_REFERENCES[field]}"
        number = next(self._numbers)
        texts = (
            f"{NAME}_{number}.weight",
            f"/home/{NAME}/{NAME} {number}.onnx",
            f"{NAME}{number} (4 MiB) is used by {NAME}/{number}/MatMul: '{NAME}', see {NAME}.py:3.",
        )
        return texts[number % len(texts)]

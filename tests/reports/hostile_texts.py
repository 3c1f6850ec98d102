"""Records with something hostile behind each of their texts."""

from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from tests.reports.profiles import HOSTILE

EVIL = f"\x1b[31m\n\u202e{HOSTILE}{'界' * 30} {'m' * 300}"
_FORMAL = {"schema", "metric"}


def hostile(value: Any, evil: str = EVIL, *, hint: Any = str) -> Any:
    """Return `value`, of type `hint`, with `evil` behind each text that may be any.

    Names that refer to each other stay equal.
    """
    if isinstance(value, msgspec.Struct):
        hints = get_type_hints(type(value))
        fields = [name for name in value.__struct_fields__ if name not in _FORMAL]
        changes = {name: hostile(getattr(value, name), evil, hint=hints[name]) for name in fields}
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(hostile(item, evil, hint=hint) for item in value)
    if isinstance(value, dict):
        items = value.items()
        return {hostile(key, evil): hostile(item, evil, hint=hint) for key, item in items}
    if isinstance(value, str) and value and not _has_choices(hint):
        return value + evil
    return value


def _has_choices(hint: Any) -> bool:
    return get_origin(hint) is Literal or any(map(_has_choices, get_args(hint)))

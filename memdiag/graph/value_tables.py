"""What is known of very many values: by their places in their graphs, not by their names."""

from array import array
from collections import defaultdict

from memdiag.graph.scopes import Scope
from memdiag.graph.tensor_types import TensorType

MOST_KINDS = 20_000
"""Different types of values in one model; no real one was seen to have a tenth."""


class ValueTypes:
    """The types of values, each with the scope that defines it: four bytes a value.

    Most values of a model have one of a few types: each is kept once. `is_full` says that there
    were more than `MOST_KINDS`, and that those of the others are not known.
    """

    def __init__(self) -> None:
        self.is_full = False
        self._kinds: list[TensorType | None] = [None]
        self._numbers: dict[TensorType, int] = {}
        self._tables: dict[Scope, array[int]] = {}
        self._others: dict[Scope, dict[str, TensorType]] = defaultdict(dict)

    def get(self, scope: Scope, name: str) -> TensorType | None:
        """Return the type of a value; None where it is not known."""
        table = self._tables.get(scope)
        if table is None:
            return None
        place = scope.place(name)
        return self._others[scope].get(name) if place is None else self._kinds[table[place]]

    def set(self, scope: Scope, name: str, kind: TensorType) -> None:
        """Note the type of a value, also of a name that `scope` only passes on."""
        if kind not in self._numbers and len(self._kinds) > MOST_KINDS:
            self.is_full = True
            return
        if scope not in self._tables:
            self._tables[scope] = array("I", bytes(4 * scope.value_count))
        place = scope.place(name)
        if place is None:
            self._others[scope][name] = kind
        else:
            self._tables[scope][place] = self._number(kind)

    def _number(self, kind: TensorType) -> int:
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return number


class ValueSet:
    """A set of values, each with the scope that defines it: a byte for each value of the graph."""

    def __init__(self) -> None:
        self._flags: dict[Scope, bytearray] = {}

    def __contains__(self, value: tuple[Scope, str]) -> bool:
        scope, name = value
        flags = self._flags.get(scope)
        place = scope.place(name) if flags is not None else None
        return flags is not None and place is not None and bool(flags[place])

    def add(self, scope: Scope, name: str) -> bool:
        """Add a value that `scope` defines, and return whether it is new."""
        if scope not in self._flags:
            self._flags[scope] = bytearray(scope.value_count)
        flags, place = self._flags[scope], scope.place(name)
        if place is None or flags[place]:
            return False
        flags[place] = 1
        return True


class ValueCounts:
    """A count for each value that is seen from a scope: four bytes for each of its own values."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._own = array("I", bytes(4 * scope.value_count))
        self._outer: dict[str, int] = defaultdict(int)

    def add(self, name: str, number: int) -> int:
        """Change the count of a value by `number`, and return it."""
        place = self._scope.place(name)
        if place is None:
            self._outer[name] += number
            return self._outer[name]
        self._own[place] += number
        return self._own[place]

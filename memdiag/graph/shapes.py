"""Types and shapes of values, inferred without running the model or reading its weights."""

from collections.abc import Mapping
from typing import NamedTuple

from memdiag.graph.element_types import ELEMENT_TYPES_BY_NAME
from memdiag.graph.graphs import Graphs
from memdiag.graph.reader import ModelFile
from memdiag.graph.scopes import Scope


class TensorType(NamedTuple):
    """A tensor's element type by ONNX's name, and its shape; None where it is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def nbytes(self) -> int | None:
        """Its bytes, where the whole shape is known."""
        if self.shape is None or None in self.shape:
            return None
        return ELEMENT_TYPES_BY_NAME[self.dtype].nbytes(tuple(size or 0 for size in self.shape))


class Shapes:
    """The types of a model's values."""

    def __init__(self, types: Mapping[tuple[Scope, str], TensorType]) -> None:
        self._types = types

    def of(self, scope: Scope, name: str) -> TensorType | None:
        """Return the type of the value that `name` is, seen from `scope`; None if not known."""
        home = scope.home(name)
        return self._types.get((home, name)) if home is not None else None


def infer_shapes(
    model: ModelFile, graphs: Graphs, sizes: Mapping[str, int], notes: list[str]
) -> Shapes:
    """Return the types of the values of `model`; `sizes` are those of free dimensions, by name.

    What could not be inferred is missing, and a sentence is appended to `notes`.
    """
    return Shapes({})

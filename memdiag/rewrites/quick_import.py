"""Import onnx_ir without sympy, which would double the duration of the import.

onnx_ir needs sympy for arithmetic on symbolic dimensions, which no rewrite does. The modules in
`_LAZY_MODULES` are executed at the first access to one of their attributes, so that programs can
still use sympy.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_LAZY_MODULES = ("sympy", "onnx_ir._symbolic_shapes")


class _LazyFinder:
    """A finder of `sys.meta_path` whose modules are executed at their first use."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that is to be executed late; None for any other."""
        spec = PathFinder.find_spec(name, path, target) if name in _LAZY_MODULES else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _LazyFinder)
try:
    import onnx_ir  # noqa: F401
finally:
    sys.meta_path.remove(_LazyFinder)

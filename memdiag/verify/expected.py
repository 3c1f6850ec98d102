"""What a model must give to be as good as the original: interface and outputs."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from memdiag.runner.session_server import SessionServer
from memdiag.verify.outputs import Bound, Difference, Saved, compare, unstable


class Expected:
    """What the original's session, `server`, computes with inputs 0 to `count` - 1.

    Outputs are saved below `folder`. `unstable` are those that are random.

    Raises:
        MeasurementError: it does not run.
    """

    def __init__(self, server: SessionServer, count: int, folder: Path) -> None:
        self._count, self._folder = count, folder
        self._signature = server.signature
        self._outputs = self._save(server, "original")
        self.unstable = unstable(self._outputs, self._save(server, "other"))

    def met(self, server: SessionServer, bound: Bound) -> tuple[str | None, Difference | None]:
        """Return what is wrong with another session, and its largest difference of any output.

        Raises:
            MeasurementError: it does not run.
        """
        changed = interface_change(self._signature, server.signature)
        if changed is not None:
            return changed, None
        differences = [
            difference
            for before, after in zip(self._outputs, self._save(server, "other"), strict=True)
            for difference in compare(before, after)
            if difference.output not in self.unstable
        ]
        worst = max(differences, key=lambda one: one.relative, default=None)
        wrong = worst is not None and worst.relative > bound.relative
        return _problem(worst, bound) if worst is not None and wrong else None, worst

    def _save(self, server: SessionServer, name: str) -> list[Saved]:
        return [
            server.save(index, self._folder / f"{name}-{index}") for index in range(self._count)
        ]


def interface_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return the first difference between two session signatures; None if a program sees none.

    Names, their order, element types and metadata have to be equal. Ranks and sizes are compared
    where both signatures state them: where a model states no shape the runtime infers one, which
    differs between models that compute the same.
    """
    for kind in ("input", "output"):
        one, other = before[f"{kind}s"], after[f"{kind}s"]
        had, has = [value[0] for value in one], [value[0] for value in other]
        if missing := [name for name in had if name not in has]:
            return f"{kind} {missing[0]!r} is missing"
        if added := [name for name in has if name not in had]:
            return f"{kind} {added[0]!r} was added"
        if had != has:
            return f"{kind}s changed their order from {', '.join(had)} to {', '.join(has)}"
        for (name, type_before, shape_before), (_, type_after, shape_after) in zip(
            one, other, strict=True
        ):
            if type_before != type_after or not _compatible(shape_before, shape_after):
                change = f"{_typed(type_before, shape_before)} to {_typed(type_after, shape_after)}"
                return f"{kind} {name!r} changed from {change}"
    old, new = before["metadata"], after["metadata"]
    changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return f"metadata {changed[0]!r} changed" if changed else None


def _compatible(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether two shapes as the runtime states them can be those of one value.

    The runtime gives an empty shape for scalars and for values of unknown rank.
    """
    if not before or not after:
        return True
    return len(before) == len(after) and all(
        one == other
        for one, other in zip(before, after, strict=True)
        if isinstance(one, int) and isinstance(other, int)
    )


def _typed(type_name: str, shape: Sequence[Any]) -> str:
    """Return a type and shape as ``float32[?, 512]``; names of dimensions are kept."""
    is_tensor = type_name.startswith("tensor(")
    element = type_name[len("tensor(") : -1] if is_tensor else type_name
    element = {"float": "float32", "double": "float64"}.get(element, element)
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return f"{element}[{sizes}]" if shape else element


def _problem(worst: Difference, bound: Bound) -> str:
    if worst.relative == inf:
        return f"output {worst.output} {worst.reason or 'differs from zeros'}"
    if not bound.relative:
        allowed = f"no difference is allowed, because {bound.why}"
    else:
        allowed = f"at most {bound.relative:.1e} is allowed: {bound.why}"
    return (
        f"output {worst.output} differs by {worst.relative:.1e} of its largest value; {allowed}."
        " No option accepts it"
    )

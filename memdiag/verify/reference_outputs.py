"""The original's interface and outputs, which a changed model has to reproduce."""

import time
from collections.abc import Mapping, Sequence
from math import ceil, inf
from pathlib import Path
from typing import Any

from memdiag.runner.session_server import SessionServer
from memdiag.verify.outputs import (
    Bound,
    Difference,
    SavedOutputs,
    compare_outputs,
    unstable_outputs,
)


class ReferenceOutputs:
    """Outputs of the original's session for several sets of inputs, saved to files.

    Args:
        server: the original's session.
        count: number of sets of inputs.
        folder: where the outputs are saved.

    Attributes:
        unstable: names of outputs that differ between two runs of the original.
        run_s: duration of a run with each set of inputs, saving of the outputs included.

    Raises:
        MeasurementError: the original does not run.
    """

    def __init__(self, server: SessionServer, count: int, folder: Path) -> None:
        self._count, self._folder = count, folder
        self._signature = server.signature
        self._outputs = self._save_outputs_by_set(server, "original")
        second_outputs = []
        run_s = []
        for index in range(count):
            started = time.monotonic()
            second_outputs.append(server.save(index, folder / f"other-{index}"))
            run_s.append(time.monotonic() - started)
        self.run_s = tuple(run_s)
        self.unstable = unstable_outputs(self._outputs, second_outputs)

    def check(self, server: SessionServer, bound: Bound) -> tuple[str | None, Difference | None]:
        """Return the problem with another session, and its largest difference of any output.

        Raises:
            MeasurementError: the session does not run.
        """
        change = interface_change(self._signature, server.signature)
        if change is not None:
            return change, None
        differences = [
            difference
            for before, after in zip(
                self._outputs, self._save_outputs_by_set(server, "other"), strict=True
            )
            for difference in compare_outputs(before, after)
            if difference.output not in self.unstable
        ]
        worst = max(differences, key=lambda difference: difference.relative, default=None)
        if worst is None or worst.relative <= bound.relative:
            return None, worst
        return _difference_problem(worst, bound), worst

    def _save_outputs_by_set(self, server: SessionServer, name: str) -> list[SavedOutputs]:
        return [
            server.save(index, self._folder / f"{name}-{index}") for index in range(self._count)
        ]


def interface_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return the first difference between two session signatures that a program could notice.

    Names, their order and element types have to be equal, and so does the metadata of the model
    before. Ranks and sizes are compared if both signatures declare them: if a model declares no
    shape, the runtime infers one, which differs between models that compute the same.
    """
    for kind in ("input", "output"):
        old_values, new_values = before[f"{kind}s"], after[f"{kind}s"]
        old_names = [value[0] for value in old_values]
        new_names = [value[0] for value in new_values]
        if missing := [name for name in old_names if name not in new_names]:
            return f"{kind} {missing[0]!r} is missing"
        if added := [name for name in new_names if name not in old_names]:
            return f"{kind} {added[0]!r} was added"
        if old_names != new_names:
            return (
                f"{kind}s changed their order from {', '.join(old_names)} to {', '.join(new_names)}"
            )
        for (name, type_before, shape_before), (_, type_after, shape_after) in zip(
            old_values, new_values, strict=True
        ):
            if type_before != type_after or not _is_compatible_shape(shape_before, shape_after):
                old, new = (
                    _type_text(type_before, shape_before),
                    _type_text(type_after, shape_after),
                )
                return f"{kind} {name!r} changed from {old} to {new}"
    old_metadata, new_metadata = before["metadata"], after["metadata"]
    changed = sorted(key for key, value in old_metadata.items() if new_metadata.get(key) != value)
    return f"metadata {changed[0]!r} changed" if changed else None


def _is_compatible_shape(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether two shapes that the runtime reports can belong to one value.

    The runtime reports an empty shape for scalars and for values of unknown rank.
    """
    if not before or not after:
        return True
    return len(before) == len(after) and all(
        old == new
        for old, new in zip(before, after, strict=True)
        if isinstance(old, int) and isinstance(new, int)
    )


def _type_text(type_name: str, shape: Sequence[Any]) -> str:
    """Return a type and shape as ``float32[?, 512]``; names of dimensions are kept."""
    is_tensor = type_name.startswith("tensor(")
    element = type_name[len("tensor(") : -1] if is_tensor else type_name
    element = {"float": "float32", "double": "float64"}.get(element, element)
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return f"{element}[{sizes}]" if shape else element


def _difference_problem(worst: Difference, bound: Bound) -> str:
    if worst.relative == inf:
        return f"output {worst.output} {worst.reason or 'is all zeros in the original only'}"
    if not bound.relative:
        allowed = f"no difference is allowed, because {bound.why}"
    else:
        allowed = f"at most {bound.relative:.2g} is allowed ({bound.why})"
    accepting = ceil(1000 * worst.relative) / 1000
    advice = "No option of the command accepts it"
    if bound.may_be_given and accepting < 1:
        advice = f"--max-difference {accepting} accepts it"
    return (
        f"output {worst.output} differs by {worst.relative:.2g} of its largest value; {allowed}."
        f" {advice}"
    )

"""Checking that a changed model is as valid as the original and needs no newer runtime."""

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from onnx import ModelProto, NodeProto, OperatorSetIdProto

from memdiag.errors import MeasurementError
from memdiag.model.graph_index import subgraphs_of_node
from memdiag.runner.job import Deadline
from memdiag.runner.temporary import DIE_WITH_PARENT

_CHECKER_TIMEOUT_S = 120.0
_MAX_ERROR_LENGTH = 200
_CHECKER_PROGRAM = f"""{DIE_WITH_PARENT}
import onnx
try:
    onnx.checker.check_model(sys.argv[2])
except onnx.checker.ValidationError as error:
    sys.stdout.buffer.write(str(error).encode("utf-8", "backslashreplace"))
"""


class Validity(NamedTuple):
    """Result of `onnx.checker` for a changed model.

    Attributes:
        error: the first error; empty if there is none.
        is_new: whether the original has no error, or another one.
    """

    error: str
    is_new: bool


class ValidityChecker:
    """Runs `onnx.checker` on changed versions of the model at `original`.

    Of operators in other domains than ONNX's own, only the import of the domain is checked.

    Args:
        original: the original model.
        timeout_s: when to stop a check; a model that takes longer counts as invalid.
        deadline: when to stop altogether.
    """

    def __init__(
        self,
        original: Path,
        timeout_s: float = _CHECKER_TIMEOUT_S,
        deadline: Deadline | None = None,
    ) -> None:
        self._original = original
        self._timeout_s = timeout_s
        self._deadline = deadline or Deadline()

    @cached_property
    def original_error(self) -> str:
        """The first error in the original; empty if there is none."""
        return checker_error(self._original, self._timeout_s, self._deadline)

    def check(self, model: Path) -> Validity:
        """Return the first error in `model`, at which the checker stops."""
        error = checker_error(model, self._timeout_s, self._deadline)
        return Validity(error, bool(error) and error != self.original_error)


def checker_error(
    model: Path, timeout_s: float = _CHECKER_TIMEOUT_S, deadline: Deadline | None = None
) -> str:
    """Return the first error that `onnx.checker` reports for a model; empty if there is none.

    It runs in a separate process because some models crash it. External data is not read.

    Raises:
        MeasurementError: the process cannot be started.
        TimeLimitReached: the deadline passed.
    """
    deadline = deadline or Deadline()
    deadline.check()
    try:
        process = subprocess.run(
            # Without -P a module of the working directory could be taken for onnx.
            [sys.executable, "-P", "-c", _CHECKER_PROGRAM, str(os.getpid()), str(model)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=min(timeout_s, deadline.remaining_s),
            check=False,
        )
    except subprocess.TimeoutExpired:
        deadline.check()
        return f"the checker does not finish within {timeout_s:g} s"
    except OSError as error:
        raise MeasurementError(
            f"{sys.executable}: cannot be started to check a model ({error.strerror})."
        ) from error
    if process.returncode < 0:
        return f"the checker crashes (signal {-process.returncode})"
    message = (
        process.stdout if not process.returncode else process.stderr.strip().rpartition(b"\n")[2]
    )
    # The lines after the first give the location, which differs with every change.
    first_line = message.decode("utf-8", "replace").strip().partition("\n")[0]
    return first_line.replace(f"{model.parent}/", "")[:_MAX_ERROR_LENGTH].rstrip(" .")


def newer_declaration(before: ModelProto, after: ModelProto) -> str | None:
    """Return the declaration of `after` that needs a newer runtime than `before`; None if none.

    The versions of the IR and of operator sets must not change. A domain that a node uses may be
    added.
    """
    if after.ir_version > before.ir_version:
        return f"version {after.ir_version} of the IR instead of {before.ir_version}"
    old, new = _opset_versions(before.opset_import), _opset_versions(after.opset_import)
    for domain, version in new.items():
        name = domain or "ai.onnx"
        if domain not in old and domain not in _node_domains(after):
            return f"an import of {name}, which no node uses"
        if old.get(domain, version) != version:
            return f"opset {version} of {name} instead of {old[domain]}"
    return None


def _opset_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    return {_canonical_domain(entry.domain): entry.version for entry in imports}


def _node_domains(model: ModelProto) -> set[str]:
    """Return the domains of all nodes, subgraphs and functions included."""
    domains: set[str] = set()
    pending: list[Iterable[NodeProto]] = [
        model.graph.node,
        *(function.node for function in model.functions),
    ]
    while pending:
        for node in pending.pop():
            domains.add(_canonical_domain(node.domain))
            pending += [subgraph.node for _, subgraph in subgraphs_of_node(node)]
    return domains


def _canonical_domain(name: str) -> str:
    return "" if name == "ai.onnx" else name

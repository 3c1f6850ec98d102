"""A project with a small model, and pytest run on it."""

import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest

# What the plugin imports when it measures. pytester forgets the modules that a run of pytest
# imports, which takes time in each run, and numpy and others cannot be imported twice.
for each in (
    "memdiag.api.profile",
    "memdiag.fixing.applicable",
    "memdiag.programs.assemble",
    "memdiag.pytest_plugin.fixture",
    "memdiag.pytest_plugin.marker",
    "memdiag.pytest_plugin.sessions",
    "onnxruntime",
):
    importlib.import_module(each)

RunPytest = Callable[..., pytest.RunResult]
Marked = Callable[..., None]


@pytest.fixture
def model(pytester: pytest.Pytester, sample_model: Callable[..., Path]) -> Path:
    """The path of a model of one megabyte in the project, ``model.onnx``."""
    path = pytester.path / "model.onnx"
    path.symlink_to(sample_model("tied_if", 1.0))
    return path


@pytest.fixture
def tiny_model(pytester: pytest.Pytester) -> Path:
    """The path of a model of one node in the project, ``tiny.onnx``."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        " tiny (float[n] x) => (float[n] y) { y = Add(x, x) }"
    )
    path = pytester.path / "tiny.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def marked(pytester: pytest.Pytester) -> Marked:
    """A function that writes a module ``test_budget`` with marked tests.

    Each is the arguments of its marker, and its body if it has one: ``sessions=1 | create()``.
    """

    def write(*tests: str, before: str = "import pytest\n", fixtures: str = "") -> None:
        functions = []
        for number, test in enumerate(tests):
            arguments, _, body = test.partition(" | ")
            functions.append(
                f"@pytest.mark.memory_budget({arguments})\n"
                f"def test_{number}({fixtures}):\n    {body or '...'}\n"
            )
        pytester.makepyfile(test_budget=before + "\n".join(functions))

    return write


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunPytest:
    """A function that runs pytest with the words given in the project's folder.

    It runs in this process, which saves the seconds that another one takes to import everything,
    except where the test asks for a `process` of its own. The standard output must have `lines` in
    this order, and the numbers of passed and other tests must be `outcomes`, if they are stated.
    """
    # Its turn is its own: what else measures on this machine does not hold it up.
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(
        *words: object, process: bool = False, lines: Sequence[str] = (), **outcomes: int
    ) -> pytest.RunResult:
        # Hypothesis takes longer to import than all else that a process of pytest imports.
        given = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *map(str, words))
        if process:
            result = pytester.runpytest_subprocess(*given, timeout=110)
        else:
            result = pytester.runpytest_inprocess(*given)
        if outcomes:
            result.assert_outcomes(**outcomes)
        result.stdout.fnmatch_lines(lines)
        return result

    return run

"""memdiag next to onnxruntime-openvino, and where there is no onnxruntime: real environments."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.comparison.environments import provided_interpreter
from memdiag.errors import ProvisionError
from memdiag.records.codec import decode
from memdiag.records.profile import Profile
from tests.end_to_end.conftest import SampleModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
OPENVINO = "OpenVINOExecutionProvider"
Finished = subprocess.CompletedProcess[str]
Run = Callable[..., Finished]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Return a function that makes an environment with memdiag, and returns its memdiag."""
    folder = tmp_path_factory.mktemp("environments")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")

    def make(name: str, *packages: str) -> Run:
        try:
            python = provided_interpreter(folder / name, (str(wheel), *packages))
        except ProvisionError as error:
            pytest.skip(str(error))

        def run(*words: object) -> Finished:
            return subprocess.run(
                [python, *map(str, words)],
                cwd=folder,
                env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
                capture_output=True,
                text=True,
                timeout=300,
            )

        return run

    return make


@pytest.fixture(scope="module")
def beside_openvino(make: Callable[..., Run]) -> Run:
    return make("openvino", "onnxruntime-openvino==1.24.1")


def test_memdiag_does_not_install_another_build(beside_openvino: Run) -> None:
    ask = (
        "import importlib.metadata as m, json, onnxruntime as o; print(json.dumps([o.__version__,"
        " o.get_available_providers()[0], [d.name for d in m.distributions()]]))"
    )
    version, provider, names = json.loads(beside_openvino("-c", ask).stdout)
    assert (version, provider) == ("1.24.1", OPENVINO)
    assert "memdiag" in names
    assert "onnxruntime" not in names


def test_openvinos_provider_is_profiled(beside_openvino: Run, sample_model: SampleModel) -> None:
    model = sample_model("plain_mlp", 32.0)
    option = f"{OPENVINO}:num_of_threads=1"
    words = ("--provider", OPENVINO, "--provider-option", option, "--format", "json")
    done = beside_openvino("-m", "memdiag", "profile", model, *words)
    assert done.returncode == 0, done.stderr
    profile = decode(done.stdout.encode(), Profile)
    assert profile.session.providers == (OPENVINO, "CPUExecutionProvider")
    assert profile.session.provider_options == {OPENVINO: {"num_of_threads": "1"}}
    names = [span.name for span in profile.spans]
    steps = [f"{step} (OpenVINO)" for step in ("partition the graph", "copy a subgraph", "compile")]
    assert [name for name in names if "OpenVINO" in name] == steps
    found = profile.attribution
    assert found is not None
    assert found.bytes_of("provider_libraries") > 20 << 20
    assert found.named_share > 0.98
    layouts: dict[str, set[str]] = {}
    for copy in found.copies:
        if copy.in_use and copy.bytes > 1 << 20:
            assert copy.made_by is not None
            assert copy.made_by.startswith("OpenVINO")
            layouts.setdefault(copy.weights[0], set()).add(copy.layout)
    assert len(layouts) == 16
    blocked = {"original", "reordered_onednn"} if "avx512" in profile.environment.machine else None
    assert all(each == blocked if blocked else "original" in each for each in layouts.values())


def test_a_provider_that_fails_is_not_replaced(
    beside_openvino: Run, sample_model: SampleModel
) -> None:
    option = f"{OPENVINO}:nonsense=1"
    words = ("--provider", OPENVINO, "--provider-option", option)
    done = beside_openvino("-m", "memdiag", "profile", sample_model("plain_mlp", 32.0), *words)
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_without_onnxruntime_a_sentence_says_what_to_install(
    make: Callable[..., Run], sample_model: SampleModel
) -> None:
    without = make("none")
    model = sample_model("plain_mlp", 32.0)
    for words in (("--version",), ("--help",), ("explain",)):
        assert without("-m", "memdiag", *words).returncode == 0
    for command in ("profile", "check", "estimate", "fix", "leak"):
        done = without("-m", "memdiag", command, model)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "Install it with pip install 'memdiag[cpu]'" in done.stderr
    call = f"import memdiag; memdiag.profile({str(model)!r})"
    raised = without("-c", call).stderr.splitlines()[-1]
    assert raised.startswith("memdiag.errors.UsageError: onnxruntime is not installed")

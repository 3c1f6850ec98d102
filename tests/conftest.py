"""What tests in several rooms share: sample models, real models, and Hypothesis' settings."""

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from benchmarks.real_models import FetchError
from benchmarks.real_models import real_models as fetch_real_models
from memdiag.verify.latency import LatencyComparison
from memdiag.verify.latency_ratio import LatencyRatio
from sample_models import load_recipes
from tests.fork_server import forking_subprocess

if TYPE_CHECKING:
    from memdiag.api.profile_config import ProfileConfig
    from memdiag.records.profile import Profile
    from memdiag.records.sweep_job import JobResult
    from memdiag.sweeps.job_process import JobRequest

# Before any test imports onnxruntime; children of tests inherit it.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# numpy starts a thread for each CPU when it is imported, in each of hundreds of children.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Tests start hundreds of processes. Without bytecode each of them would compile memdiag again,
# which takes longer than most of what is tested.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that runs the tests in the background has them ignore Ctrl-C, `nohup` the end of the
# terminal, and their children too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# No deadline: the time an example takes says more about the machine than about the code.
SETTINGS = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("quick", SETTINGS, max_examples=15)
settings.register_profile("thorough", SETTINGS, max_examples=200)  # make test-all
settings.load_profile("quick")


def pytest_collection_finish() -> None:
    """Spare the garbage collector the modules and the tests, which all stay until the end.

    It would walk through millions of objects again and again, which is 7 % of the CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


# Where one of these is set, onnxruntime turns its telemetry off by itself.
CI_VARIABLES = (
    "CI",
    "TF_BUILD",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "CIRCLECI",
    "TRAVIS",
    "JENKINS_URL",
)


_ROOMS_OF_FIGURES = {"attribution", "growth", "ort", "rules", "runner"}
"""The folders of tests that compare the memory of children with what was predicted or written."""


@pytest.fixture(autouse=True)
def forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the children of measurements where a test does not need them as users start them."""
    marks = {mark.name for mark in request.node.iter_markers()}
    room = request.node.path.relative_to(Path(__file__).parent).parts[0]
    needs_real = marks & {"slow", "measures"} or room in _ROOMS_OF_FIGURES
    if "MEMDIAG_REAL_CHILDREN" not in os.environ and not needs_real:
        monkeypatch.setattr("memdiag.runner.child.subprocess", forking_subprocess())


@pytest.fixture
def user_environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with an empty home, where telemetry is on by default."""
    import matplotlib

    home = tmp_path / "home"
    home.mkdir()
    removed = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", *CI_VARIABLES}
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    # The list of all fonts takes matplotlib seconds to make.
    return {**kept, "HOME": str(home), "MPLCONFIGDIR": matplotlib.get_cachedir()}


@pytest.fixture(scope="session")
def sample_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function (name, megabytes=1.0, external=False) that builds a sample once a session."""
    built: dict[tuple[str, float, bool], Path] = {}

    def build(name: str, megabytes: float = 1.0, external: bool = False) -> Path:
        key = (name, megabytes, external)
        if key not in built:
            path = tmp_path_factory.mktemp("sample") / f"{name}.onnx"
            load_recipes()[name].build(megabytes, path, external)
            built[key] = path
        return built[key]

    return build


@pytest.fixture(scope="session")
def real_models() -> dict[str, Path]:
    """The path of each real model by its short name; for tests that are marked slow."""
    try:
        return fetch_real_models()
    except FetchError as error:
        pytest.skip(str(error))


@pytest.fixture
def file_size_limit() -> Callable[[int], AbstractContextManager[None]]:
    """A function (nbytes) to a block in which no file becomes larger, as on a full disk."""
    import resource

    @contextmanager
    def limit(nbytes: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit


@pytest.fixture
def equal_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two models be equally fast: to compare them takes seconds of alternate runs."""

    def compared(*arguments: object, **options: object) -> LatencyComparison:
        return LatencyComparison(1e-3, 1e-3, LatencyRatio(1.0, 1.0, 1.0, 15))

    monkeypatch.setattr("memdiag.verify.model_evaluator.compare_latency", compared)
    monkeypatch.setattr("memdiag.comparison.reference.compare_latency", compared)


@pytest.fixture
def one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory be measured in one process, where several would make the figures more precise."""
    monkeypatch.setattr("memdiag.verify.model_evaluator._ORIGINAL_PROCESSES", 1)
    monkeypatch.setattr("memdiag.tuning.point_evaluator._FINAL_PROCESSES", 1)


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Have children heed SIGINT, which a job in the background is started to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def known_profiles() -> dict[tuple[Path, int, str], "Profile"]:
    return {}


@pytest.fixture
def measured_once(
    known_profiles: dict[tuple[Path, int, str], "Profile"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a model be measured once a session with each configuration.

    It is for tests of what is made of a profile: budgets, baselines, formats, exit codes. A child
    with an interpreter that a test made itself is started every time.
    """
    module = import_module("memdiag.api.profile")
    measure: Callable[..., Profile] = module.profile_model

    def profile_model(model: Path, config: "ProfileConfig", **options: Any) -> "Profile":
        if not model.exists() or str(config.session.python) != sys.executable:
            return measure(model, config, **options)
        file = model.resolve()
        key = (file, file.stat().st_mtime_ns, repr(replace(config, command=())))
        if key not in known_profiles:
            known_profiles[key] = measure(model, config, **options)
        found = known_profiles[key]
        named = msgspec.structs.replace(found.model, path=str(model))
        return msgspec.structs.replace(found, model=named, command=config.command)

    monkeypatch.setattr(module, "profile_model", profile_model)


@pytest.fixture
def records_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands write the record alone: to render pages and pictures takes seconds."""
    monkeypatch.setattr("memdiag.reports.report._DEFAULT_FORMATS", ("json",))


@pytest.fixture
def jobs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a sweep run its jobs one after another in this process, in place of one of their own."""
    import threading

    from memdiag.api.sweep_job import estimated_job_bytes, run_job
    from memdiag.sweeps.local_execution import LocalExecution

    one_at_a_time = threading.Lock()

    class Worker:
        def measure(self, request: "JobRequest") -> "JobResult":
            with one_at_a_time:
                return run_job(request)

        def estimate(self, request: "JobRequest") -> int | None:
            with one_at_a_time:
                return estimated_job_bytes(request)

        def close(self) -> None:
            """Nothing runs between two requests."""

    defaults = LocalExecution.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "start", Worker)

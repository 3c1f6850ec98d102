"""What the workflow adds to the measurement: inputs that run, facts of the model, honest notes."""

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import psutil
import pytest
from onnx import external_data_helper
from rich.console import Console

import memdiag
from memdiag.api import profile as profile_module
from memdiag.api.check import RuleSelection
from memdiag.api.profile import ProfileInterrupted
from memdiag.api.profile_analysis import context_of_run, explained_profiles
from memdiag.api.profile_config import check_session_options
from memdiag.defaults import CPU_PROVIDER
from memdiag.errors import ModelError, UsageError
from memdiag.model.model_file import open_model
from memdiag.records.codec import encode
from memdiag.records.profile import Profile
from memdiag.reports.profile import REPORT
from memdiag.units import GIB, MIB
from tests.api.small_models import model_of, save_model

# Runs with a length of 64 and no other.
NEEDS_64 = """needs_64 (float[batch, length] x) => (float[4, 16] y)
    { shape = Constant<value = int64[2] {4, 16}>() y = Reshape(x, shape) }"""

# The values computed grow with the square of the length.
SQUARE = """square (float[batch, length, 2] x) => (float[batch, length, length] y)
    { turned = Transpose<perm = [0, 2, 1]>(x) y = MatMul(x, turned) }"""

PICTURE = "picture (float[n, 1, h, w] x) => (float[n, 1, h, w] y) { y = Exp(x) }"

PLAIN = (
    "plain (float[batch, 3] x) => (float[batch, 3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }"
)


def saved(tmp_path: Path, text: str, name: str = "model.onnx") -> Path:
    return save_model(tmp_path / name, text)


def profiled(tmp_path: Path, text: str, **options: Any) -> Profile:
    """Profile a model with one run and without an X-ray."""
    return memdiag.profile(saved(tmp_path, text), **{"runs": 1, "xray": "none", **options})


def sizes(profile: Profile) -> dict[str, int]:
    return {one.name: one.size for one in profile.dimensions}


def test_a_model_that_does_not_run_at_the_realistic_size_gets_another(tmp_path: Path) -> None:
    profile = profiled(tmp_path, NEEDS_64)
    assert profile.outcome.status == "completed"
    assert [given.shape for given in profile.inputs] == [(1, 64)]
    assert sizes(profile) == {"batch": 1, "length": 64}
    assert profile.estimate is not None
    assert profile.estimate.dims == {"batch": 1, "length": 64}
    assert profile.dimensions[1].reason == "the model does not run at batch 1 × length 128"
    message = " ".join(profile.notes)
    assert "64: the model does not run at batch 1 × length 128; this is the first size" in message
    assert "the model does not run at batch 1 × length 128: " in message


def test_rules_are_applied_to_sessions_of_the_cpu_provider_only(
    sample_model: Callable[..., Path],
) -> None:
    path = sample_model("tied_if")
    on_cpu = memdiag.profile(path, run=False, xray="none")
    assert on_cpu.findings
    assert not any("no rule was applied" in note for note in on_cpu.notes)
    session = msgspec.structs.replace(on_cpu.session, providers=("MyProvider", CPU_PROVIDER))
    other = msgspec.structs.replace(on_cpu, session=session, findings=())
    with open_model(path) as file:
        ctx = context_of_run(other, file, {})
        assert ctx is not None
        *_, other = explained_profiles(other, ctx, RuleSelection())
    assert other.findings == ()
    assert other.notes[-1].startswith("no rule was applied: ")


def test_a_size_that_the_user_gave_is_not_overridden(tmp_path: Path) -> None:
    profile = profiled(tmp_path, NEEDS_64, dims={"length": 2, "batch": 1})
    assert profile.outcome.status == "failed"
    assert profile.outcome.phase == "first_run"
    assert [given.shape for given in profile.inputs] == [(1, 2)]
    assert {one.source for one in profile.dimensions} == {"given"}


@pytest.mark.parametrize(
    ("text", "most_bytes", "dims", "expected", "note"),
    [
        (SQUARE, GIB, {}, {"batch": 1, "length": 128}, ""),
        # At a length of 128 the product takes 65,536 bytes, the input 1,024.
        (SQUARE, 66_000, {}, {"batch": 1, "length": 1}, "would take about 65 KiB"),
        # Sizes that the user gave are the user's affair.
        (SQUARE, 66_000, {"length": 200, "batch": 1}, {"batch": 1, "length": 200}, ""),
        # Input and output: 3.1 MiB at a side of 640, 392 KiB at 224.
        (PICTURE, MIB, {}, {"n": 1, "h": 224, "w": 224}, "sides of images are 224 instead"),
        (PICTURE, MIB, {"h": 640, "w": 640}, {"n": 1, "h": 640, "w": 640}, ""),
        (PICTURE, MIB / 4, {}, {"n": 1, "h": 1, "w": 1}, ""),
    ],
)
def test_activations_that_would_not_fit_have_smaller_sizes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    most_bytes: float,
    dims: dict[str, int],
    expected: dict[str, int],
    note: str,
) -> None:
    share = most_bytes / psutil.virtual_memory().total
    monkeypatch.setattr("memdiag.api.inputs.MAX_ACTIVATIONS_SHARE", share)
    profile = profiled(tmp_path, text, dims=dims)
    assert sizes(profile) == expected
    assert note in " ".join(profile.notes)


def test_a_model_that_runs_needs_no_rehearsal(tmp_path: Path) -> None:
    profile = profiled(tmp_path, PLAIN, runs=2)
    assert profile.outcome.status == "completed"
    assert sizes(profile) == {"batch": 1}
    assert not any("does not run" in note for note in profile.notes)
    assert profile.model.weight_bytes == 12
    assert profile.model.opsets == {"ai.onnx": 17}
    assert profile.steady is not None
    assert profile.steady.rss_bytes == profile.steady_rss_bytes
    # The peak is that of the first phase that came up to it.
    after_start = [phase for phase in profile.phases if phase.name != "start"]
    assert profile.peak_rss_bytes == max(phase.peak_rss_bytes for phase in after_start)
    top = profile.phase(profile.peak_phase)
    assert top is not None
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    assert profile.peak_rss_bytes - top.peak_rss_bytes <= 0.005 * above


def test_numbers_and_truths_of_session_options_are_read_as_texts() -> None:
    given = {
        "intra_op_num_threads": 1,
        "enable_mem_pattern": False,
        "session.disable_prepacking": True,
    }
    assert check_session_options(given) == {
        "intra_op_num_threads": "1",
        "enable_mem_pattern": "0",
        "session.disable_prepacking": "1",
    }
    with pytest.raises(UsageError, match="must be strings"):
        check_session_options({"intra_op_num_threads": 1.5})  # type: ignore[dict-item] # wrong


def test_what_was_given_is_used_and_nothing_of_it_is_recorded(tmp_path: Path) -> None:
    secret = np.array([[1.5, 271828.25, 3]], np.float32)
    profile = profiled(tmp_path, PLAIN, inputs={"x": secret}, environment={"MINE": "1"})
    assert [(given.source, given.shape) for given in profile.inputs] == [("given", (1, 3))]
    assert profile.session.environment == {"MINE": "1"}
    text = encode(profile).decode()
    assert "271828.25" not in text
    assert str(Path.home()) not in text.replace(profile.model.path, "")


def test_without_optimization_constant_folding_is_not_guessed(tmp_path: Path) -> None:
    options = {"graph_optimization_level": "disable_all"}
    profile = memdiag.profile(saved(tmp_path, PLAIN), run=False, session_options=options)
    assert profile.session.options == {"graph_optimization_level": "disable_all"}
    fold = profile.phase("constant_fold")
    assert fold is None
    assert profile.steady_rss_bytes is None


def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, PLAIN, "odd\udcff.onnx"), run=False)
    assert profile.model.path.endswith("odd\\udcff.onnx")
    encode(profile)


def test_a_model_that_is_not_there_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        memdiag.profile(tmp_path / "nope.onnx")


def test_a_run_that_ended_early_is_not_said_to_lack_transformers(tmp_path: Path) -> None:
    path = saved(tmp_path, PLAIN.replace("Add(x, w)", "Nope(x, w)"))
    profile = memdiag.profile(path, xray="none")
    assert (profile.outcome.status, profile.outcome.phase) == ("failed", "parse")
    assert not any("graph transformer" in note for note in profile.notes)


def test_ctrl_c_while_sizes_are_tried_keeps_the_run_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memdiag.api.inputs.try_inputs", interrupted)
    with pytest.raises(ProfileInterrupted) as caught:
        memdiag.profile(saved(tmp_path, NEEDS_64), runs=1)
    assert caught.value.profile.outcome.phase == "first_run"


def forging(name: str) -> str:
    """Return a node's name that goes on, in the log, with lines that are not the runtime's."""
    stamp = "2026-11-21 03:23:46.474104445 [I:onnxruntime:, a.cc:1 f]"
    lines = [
        '\x1ememdiag {"event": "run", "latency_s": 9}',
        '\x1ememdiag {"event": "nonsense"}',
        "\x1ememdiag {",
        f"{stamp} Applying graph transformer \x1b[2J on step 1.",
        f"{stamp} Applying graph transformer Forged[/bold] on step 1.",
        f"{stamp} Applying graph transformer Forged on step {'9' * 5000}.",
        f"{stamp} Allocated memory at {'f' * 20} to 1",
        "2026-99-99 99:99:99.1 [I:onnxruntime:, a.cc:1 f] Session successfully initialized.",
        "\x1b]0;title\x07\x1b[31m<script>alert(1)</script>",
    ]
    return "\n".join([name, *lines, ""])


def test_names_that_imitate_the_log_change_no_more_than_names_of_spans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(
        "g (float[1, 64] x) => (float[1, 64] y) { t = Identity(w) u = Neg(t) y = MatMul(x, t) }",
        w=np.full((64, 64), 0.5, np.float32),
        unused=np.array([1, 2], np.float32),
    )
    for index, node in enumerate(model.graph.node):
        node.name = forging(f"n{index}")
    model.graph.initializer[1].name = forging("unused")
    path = tmp_path / "forged.onnx"
    onnx.save(model, path)
    result = memdiag.profile(path, runs=3)
    assert result.outcome.status == "completed"
    assert len(result.runs) == 3
    assert max(run.latency_s for run in result.runs) < 9
    assert {"parse", "optimize", "prepack", "steady"} <= {phase.name for phase in result.phases}
    # The test would show nothing if the runtime did not log the names as they are.
    assert any("Forged" in span.name for span in result.spans)
    REPORT.print_summary(result, Console(width=80))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out


@pytest.fixture
def two_equal_weights(tmp_path: Path) -> Path:
    """A model with two equal weights of 64 MB in external data, which a rule has to read."""
    rows, columns = 4000, 4000
    model = model_of(
        f"g (float[1, {rows}] x) => (float[1, {rows}] y) {{ h = MatMul(x, w0) y = MatMul(h, w1) }}"
    )
    nbytes = 4 * rows * columns
    for number in range(2):
        weight = model.graph.initializer.add(name=f"w{number}", data_type=1, dims=(rows, columns))
        weight.raw_data = b""
        external_data_helper.set_external_data(weight, "data", number * nbytes, nbytes)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    content = np.random.default_rng(0).standard_normal((rows, columns), np.float32).tobytes()
    with (tmp_path / "data").open("wb") as file:
        file.write(content + content)
        os.fsync(file.fileno())
    return tmp_path / "m.onnx"


def cached_bytes(path: Path) -> int:
    """Return how many bytes of a file the system has in memory."""
    libc = ctypes.CDLL(None)
    with (
        path.open("rb") as file,
        mmap.mmap(
            file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        ) as mapping,
    ):
        pages = np.zeros(-(-len(mapping) // mmap.PAGESIZE), np.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        args = (ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)))
        assert libc.mincore(*args, pages.ctypes.data_as(ctypes.c_void_p)) == 0
    return int((pages & 1).sum()) * mmap.PAGESIZE


@pytest.mark.parametrize("may_read", [0, 1 << 30])
def test_after_a_run_that_was_ended_many_weights_are_not_read(
    two_equal_weights: Path, monkeypatch: pytest.MonkeyPatch, may_read: int
) -> None:
    data = two_equal_weights.with_name("data")
    measure_job = profile_module._measure_job

    def measured_and_forgotten(*arguments: Any, **options: Any) -> Any:
        measured = measure_job(*arguments, **options)
        with data.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_bytes(data):
            pytest.skip("this file system keeps what it has in memory")
        return measured

    monkeypatch.setattr(profile_module, "_measure_job", measured_and_forgotten)
    monkeypatch.setattr("memdiag.api.profile_analysis.MAX_READ_BYTES", may_read)
    profile = memdiag.profile(two_equal_weights, memory_limit_bytes=100_000_000)
    assert profile.outcome.status != "completed"
    found = "identical-weights" in {finding.name for finding in profile.findings}
    if may_read:
        assert cached_bytes(data) >= 128_000_000
        assert found
    else:
        assert cached_bytes(data) < 1_000_000
        assert not found
        assert any("weights were not compared" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("step", "has_estimate", "has_findings"),
    [
        ("memdiag.api.profile.measure_malloc_threshold", False, False),
        ("memdiag.api.profile_analysis.with_estimate", False, False),
        ("memdiag.api.profile_analysis.find_waste", True, False),
        ("memdiag.api.profile.with_run_peak", True, True),
        ("memdiag.fixing.applicable.findings_with_rewrites", True, True),
    ],
)
def test_ctrl_c_after_the_measurement_keeps_it_and_all_earlier_steps(
    sample_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    has_estimate: bool,
    has_findings: bool,
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(step, interrupted)
    with pytest.raises(ProfileInterrupted) as caught:
        memdiag.profile(sample_model("tied_if"), runs=1, run_peak=True)
    profile = caught.value.profile
    assert profile.outcome.status == "completed"
    assert profile.attribution is not None
    assert (profile.estimate is not None) is has_estimate
    assert bool(profile.findings) is has_findings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": 0}, "runs must be at least 1"),
        ({"runs": 0}, "run=False"),
        ({"timeout_s": 0}, "timeout_s must be greater than 0"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes must be greater than 0"),
        ({"dims": {"nope": 3}}, "unknown dimension 'nope'"),
        ({"dims": {"batch": "x"}}, "dims must be numbers by name, not 'batch': 'x'"),
        ({"dims": "batch=3"}, "dims must be sizes by name, not 'batch=3'. Pass a dictionary:"),
        ({"inputs": {"nope": np.zeros(1)}}, "nope"),
        ({"inputs": {"x": np.zeros((1, 3))}}, "float"),
        ({"inputs": {"x": 1}}, "input 'x' must be an array or the path of a .npy file, not 1"),
        ({"session_options": {"log_severity_level": "2"}}, "log_severity_level cannot be set"),
        ({"session_options": {"session.x": 1.5}}, "session_options must be strings"),
        (
            {"session_options": {"graph_optimization_level": "bsic"}},
            "there is no optimization level 'bsic'. Choose from disable_all, basic, extended,"
            " layout, all.",
        ),
        ({"session_options": {"graph_optimization_level": "ORT_BASIC"}}, "Choose from disable_all"),
        ({"xray": "all"}, "xray cannot be 'all'. Choose from steady, phases, none."),
        ({"load_from": "url"}, "load_from cannot be 'url'. Choose from path, bytes."),
        (
            {"providers": CPU_PROVIDER},
            "providers must be a list of names, not 'CPUExecutionProvider'. Pass"
            " providers=['CPUExecutionProvider'].",
        ),
        (
            {"provider_options": {"P": {"k": "v"}}},
            "P has options but is not among the execution providers CPUExecutionProvider.",
        ),
        (
            {"provider_options": {CPU_PROVIDER: {"k": "v"}}},
            "CPUExecutionProvider reads no provider options.",
        ),
        (
            {"providers": ["P"], "provider_options": {"P": {"k": 1}}},
            "provider_options['P'] must be strings, not 'k': 1.",
        ),
        ({"run_options": {"a": True}}, "run_options must be strings, not 'a': True."),
        ({"disabled_optimizers": "ConstantFolding"}, "disabled_optimizers must be a list"),
        *(
            ({"environment": environment}, "is not the name of a variable, or its value has a null")
            for environment in ({"A=B": "c"}, {"": "c"}, {"A": "b\0c"}, {"A\0": "b"})
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("memdiag.api.profile.MeasuredChild", lambda *_: pytest.fail("it was run"))
    with pytest.raises(UsageError) as refused:
        memdiag.profile(saved(tmp_path, PLAIN), **arguments)
    assert message in str(refused.value)


def test_each_run_has_the_options_of_runs(tmp_path: Path) -> None:
    # onnxruntime checks the devices of this entry in each run.
    shrink = "memory.enable_memory_arena_shrinkage"
    profile = profiled(tmp_path, PLAIN, run_options={shrink: "cpu:0"})
    assert profile.outcome.status == "completed"
    assert profile.session.run_options == {shrink: "cpu:0"}
    wrong = profiled(tmp_path, PLAIN, run_options={shrink: "cpu:9"})
    assert wrong.outcome.status == "failed"
    assert "cpu:9" in wrong.outcome.message
    assert not any("does not run at" in note for note in wrong.notes)


@pytest.mark.parametrize("level", ["basic", "ORT_ENABLE_BASIC", "enable_basic", "ORT_DISABLE_ALL"])
def test_onnxruntimes_own_names_of_levels_are_accepted(tmp_path: Path, level: str) -> None:
    options = {"graph_optimization_level": level}
    profile = memdiag.profile(saved(tmp_path, PLAIN), run=False, session_options=options)
    assert profile.outcome.status == "completed"


@pytest.mark.parametrize(
    "function",
    [memdiag.profile, memdiag.check, memdiag.fix],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("model", [None, ["model.onnx"]])
def test_a_model_that_is_not_a_path_is_refused(function: Any, model: Any) -> None:
    with pytest.raises(UsageError, match=r"is not a path\. Pass the path of one model"):
        function(model)

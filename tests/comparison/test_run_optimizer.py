"""Optimizers that do what optimizers do: write, refuse, crash, hang, and take all memory."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import psutil
import pytest

from memdiag.comparison.run_optimizer import OptimizerResult, interpreter_for, run_optimizer
from memdiag.errors import ProvisionError
from memdiag.units import MIB

SampleModel = Callable[..., Path]
Run = Callable[..., OptimizerResult]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs an optimizer whose body is `lines`, on a file of 3 bytes."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"abc")

    def optimized(
        lines: str, *, timeout_s: float = 60, limit: int | None = None
    ) -> OptimizerResult:
        body = "\n".join(f"    {line}" for line in lines.splitlines())
        path = tmp_path / "optimizers.py"
        path.write_text(
            "import os, shutil, subprocess, sys, time\nfrom types import SimpleNamespace\n"
            f"def optimize(source, target, large):\n{body}\n"
            "OPTIMIZERS = {'made': SimpleNamespace(packages=('json',), optimize=optimize)}\n"
        )
        monkeypatch.setattr("memdiag.comparison.run_optimizer.OPTIMIZER_TABLE", path)
        return run_optimizer(
            "made",
            model,
            tmp_path / "out" / "model.onnx",
            python=Path(sys.executable),
            external=False,
            timeout_s=timeout_s,
            memory_limit_bytes=limit,
        )

    return optimized


@pytest.mark.measures
def test_what_it_writes_and_takes_is_told(run: Run) -> None:
    code = "block = bytearray(64 << 20)\ntime.sleep(0.3)\nprint('noise')\n"
    done = run(f"{code}shutil.copy(source, target)")
    assert (done.status, done.message) == ("completed", "")
    assert done.path is not None
    assert done.path.read_bytes() == b"abc"
    assert done.run is not None
    assert 0.3 <= done.run.duration_s < 30
    assert 64 * MIB < done.run.peak_rss_bytes < 256 * MIB


@pytest.mark.measures
def test_memory_of_what_it_starts_counts(run: Run) -> None:
    code = "import time; block = bytearray(96 << 20); time.sleep(1)"
    done = run(f"subprocess.run([sys.executable, '-c', '{code}'])\nshutil.copy(source, target)")
    assert done.run is not None
    assert done.run.peak_rss_bytes > 96 * MIB


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        ("return 'nothing was worth changing'", "completed", "nothing was worth changing"),
        ("pass", "failed", "the optimizer wrote nothing"),
        (
            "raise ValueError('no such\\noperator')",
            "failed",
            "the optimizer failed: ValueError: no such operator",
        ),
    ],
)
def test_without_a_file_there_is_a_remark_or_a_reason(
    run: Run, lines: str, status: str, message: str
) -> None:
    done = run(lines)
    assert (done.status, done.path) == (status, None)
    assert message in done.message


def test_a_crash_is_told_by_its_signal(run: Run) -> None:
    done = run("print('deep inside', file=sys.stderr, flush=True)\nos.abort()")
    assert done.status == "killed"
    assert done.message.startswith("the optimizer was ended by SIGABRT")
    assert "deep inside" in done.message
    ended = run("os._exit(7)")
    assert (ended.status, ended.run) == ("failed", None)
    assert "exit code 7" in ended.message


def test_one_that_hangs_is_ended_with_all_that_it_started(run: Run, tmp_path: Path) -> None:
    started = time.monotonic()
    done = run(
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open(target, 'w').write(str(child.pid))\ntime.sleep(600)",
        timeout_s=3,
    )
    assert time.monotonic() - started < 60
    assert done.status == "timeout"
    assert "did not end within 3.0 s" in done.message
    assert done.path is None
    child = int((tmp_path / "out" / "model.onnx").read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != "zombie":
        assert time.monotonic() < deadline, "the child of the optimizer lives on"
        time.sleep(0.1)


def test_one_that_takes_too_much_is_ended(run: Run) -> None:
    done = run(
        "blocks = []\nwhile True:\n    blocks.append(bytearray(8 << 20)); time.sleep(0.02)",
        limit=300 * MIB,
    )
    assert done.status == "limit"
    assert "300 MiB" in done.message


def test_one_that_leaves_a_process_behind_is_not_waited_for(run: Run) -> None:
    started = time.monotonic()
    done = run(
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(50)'])\nos._exit(3)"
    )
    assert done.status == "failed"
    assert time.monotonic() - started < 40


@pytest.mark.parametrize(
    "name", ["onnxruntime-basic", pytest.param("onnxruntime-all", marks=pytest.mark.slow)]
)
def test_the_runtime_writes_its_optimized_model(
    sample_model: SampleModel, tmp_path: Path, name: str
) -> None:
    done = real(name, sample_model("tied_if", 1), tmp_path)
    assert done.status == "completed"
    assert done.path is not None
    # The transposed weight is folded into one of its own.
    assert "Transpose" not in str(onnx.load(done.path).graph)


@pytest.mark.parametrize(
    ("bits", "share"), [(8, 0.25), pytest.param(4, 0.125, marks=pytest.mark.slow)]
)
def test_weights_of_matrix_products_are_stored_in_fewer_bits(
    sample_model: SampleModel, tmp_path: Path, bits: int, share: float
) -> None:
    model = sample_model("plain_mlp", 4)
    done = real(f"quantize-int{bits}", model, tmp_path)
    assert done.path is not None
    before, after = model.stat().st_size, done.path.stat().st_size
    # A scale of 4 bytes is stored for each block of 128 or 32 weights.
    assert share < after / before < share + 0.05


def test_a_model_without_such_weights_is_not_quantized(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Exp(x) }'
    onnx.save(onnx.parser.parse_model(text), model)
    done = real("quantize-int8", model, tmp_path)
    assert done.path is None
    assert done.message.startswith("no matrix product and no Gather has a weight")


def test_files_of_the_working_directory_do_not_matter(
    sample_model: SampleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx.data").write_bytes(b"of an earlier run")
    done = real("quantize-int8", sample_model("plain_mlp", 1), tmp_path, external=True)
    assert done.path is not None, done.message
    assert (done.path.parent / "model.onnx.data").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["onnxoptimizer", "onnxsim", "onnxslim", "onnxscript", "memdiag-fix"]
)
def test_every_optimizer_writes_a_model_or_has_a_reason(
    sample_model: SampleModel, tmp_path: Path, name: str
) -> None:
    try:
        done = real(name, sample_model("plain_mlp", 1), tmp_path)
    except ProvisionError as error:
        pytest.skip(str(error))
    assert done.status == "completed", done.message
    assert done.path is not None or done.message == "nothing was worth changing"
    assert done.run is not None
    assert done.run.version


def real(name: str, model: Path, folder: Path, *, external: bool = False) -> OptimizerResult:
    return run_optimizer(
        name,
        model,
        folder / "out" / "model.onnx",
        python=interpreter_for(name),
        external=external,
        timeout_s=600,
        memory_limit_bytes=None,
    )

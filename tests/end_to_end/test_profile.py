"""``memdiag profile`` and ``memdiag report`` on models whose copies are known, and on bad input."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from memdiag import load_profile
from memdiag.detail import MAX_LINES
from memdiag.records.codec import decode
from memdiag.records.phases import GENERATION_PHASES
from memdiag.records.profile import PHASES, Profile
from tests.api.small_models import model_of
from tests.end_to_end.conftest import Finished, RunMemdiag, SampleModel

RUN_PHASES = [name for name in PHASES if name not in GENERATION_PHASES]
MB = 1_000_000
SIZE = 32  # megabytes: large against the runtime's own allocations, small against the clock


@pytest.fixture
def tied(sample_model: SampleModel) -> Path:
    return sample_model("tied_if", SIZE)


def profile_of(finished: Finished) -> Profile:
    return decode(finished.stdout.encode(), Profile)


def test_a_profile_prints_its_answer_and_writes_five_files(
    memdiag: RunMemdiag, tmp_path: Path, tied: Path
) -> None:
    finished = memdiag("profile", tied)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    assert finished.stdout.startswith("tied_if.onnx: peak ")
    assert len(finished.stdout.splitlines()) <= MAX_LINES
    assert "\x1b" not in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 80
    folder = tmp_path / "reports" / "tied_if"
    assert sorted(path.name for path in folder.iterdir()) == [
        "profile.json",
        "report.html",
        "report.md",
        "timeline.png",
        "trace.json",
    ]
    assert load_profile(folder / "profile.json").model.weight_bytes == pytest.approx(
        SIZE * MB, rel=0.01
    )


@pytest.mark.measures
def test_the_record_tells_when_the_tied_weight_is_copied(memdiag: RunMemdiag, tied: Path) -> None:
    # Without the pinned threshold, glibc keeps folding's own copy of the weight in its heap.
    finished = memdiag(
        "profile",
        tied,
        "--format=json",
        "--session-option=intra_op_num_threads=1",
        "--env=MALLOC_MMAP_THRESHOLD_=131072",
    )
    assert finished.returncode == 0
    profile = profile_of(finished)
    assert [phase.name for phase in profile.phases] == RUN_PHASES
    fold = profile.phase("constant_fold")
    parse = profile.phase("parse")
    assert fold is not None
    assert parse is not None
    assert any(phase.peak_kind == "exact" for phase in profile.phases)
    tolerance = 0.15 * SIZE * MB + (profile.sampling.boundary_lag_s or 0) * 6e9
    # One copy is read from the file; folding makes the transposed one, from a copy of its own.
    assert abs(parse.net_rss_bytes - SIZE * MB) < tolerance + 8 * MB
    assert abs(fold.net_rss_bytes - SIZE * MB) < tolerance
    assert abs(fold.peak_rss_bytes - fold.start.rss_bytes - 2 * SIZE * MB) < tolerance
    assert profile.peak_rss_bytes == max(phase.peak_rss_bytes for phase in profile.phases)
    assert len(profile.runs) == 10
    assert profile.steady_rss_bytes is not None
    assert profile.steady_rss_bytes - profile.baseline_rss_bytes > 2.5 * SIZE * MB
    assert profile.session.options == {"intra_op_num_threads": "1"}


def test_options_and_inputs_reach_the_session(
    memdiag: RunMemdiag, tmp_path: Path, tied: Path
) -> None:
    np.save(tmp_path / "flag.npy", np.array(False))
    np.savez(tmp_path / "rest.npz", ids=np.array([0, 1, 2]), hidden=np.ones((3, 1024), np.float32))
    finished = memdiag(
        *("profile", tied, "--format=json", "--runs=2", "--xray=none"),
        *("--disable-optimizer=ConstantFolding", "--session-option=session.disable_prepacking=1"),
        *("--session-option=enable_cpu_mem_arena=false", "--env=MALLOC_MMAP_THRESHOLD_=131072"),
        *("--input=use_embedding=flag.npy", "--input=rest.npz"),
    )
    assert finished.returncode == 0, finished.stderr
    profile = profile_of(finished)
    assert profile.steady_rss_bytes is not None
    # Neither folded nor packed: one copy.
    assert profile.steady_rss_bytes - profile.baseline_rss_bytes < 1.8 * SIZE * MB
    assert profile.session.environment == {"MALLOC_MMAP_THRESHOLD_": "131072"}
    assert profile.session.disabled_optimizers == ("ConstantFolding",)
    assert {given.name: given.shape for given in profile.inputs}["ids"] == (3,)
    assert {given.source for given in profile.inputs} == {"given"}
    assert len(profile.runs) == 2


@pytest.mark.slow
@pytest.mark.measures
def test_loading_from_bytes_keeps_them_resident(memdiag: RunMemdiag, tied: Path) -> None:
    words = ("profile", tied, "--format=json", "--no-run")
    by_path, by_bytes = (
        profile_of(memdiag(*words, f"--load-from={source}")) for source in ("path", "bytes")
    )
    kept = [profile.phases[-1].end.rss_bytes for profile in (by_path, by_bytes)]
    assert abs(kept[1] - kept[0] - SIZE * MB) < 0.3 * SIZE * MB
    assert any("loaded from bytes" in note for note in by_bytes.notes)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("", "Nope of my.own is a custom operator"),
        ("--provider=Nope", "no provider called Nope"),
        ("--session-option=nope=1", "no session option called nope"),
    ],
)
def test_what_the_runtime_refuses_is_one_sentence_and_a_saved_profile(
    memdiag: RunMemdiag, tmp_path: Path, option: str, sentence: str
) -> None:
    model = model_of("g (float[1] x) => (float[1] y) { y = Nope(x) }")
    model.graph.node[0].domain = "my.own"
    model.opset_import.add(domain="my.own", version=1)
    onnx.save(model, tmp_path / "odd.onnx")
    finished = memdiag("profile", "odd.onnx", "-q", *option.split())
    assert finished.returncode == 2
    message, saved = finished.stderr.splitlines()
    profile = load_profile(tmp_path / "reports" / "odd" / "profile.json")
    assert message.startswith(f"memdiag: odd.onnx: failed in {profile.outcome.phase} at ")
    assert sentence in message
    assert saved.endswith("reports/odd/profile.json")
    assert profile.outcome.status == "failed"
    assert (profile.outcome.phase == "parse") == (option == "")


@pytest.mark.usefixtures("records_only")
def test_a_run_that_fails_leaves_the_reports_of_a_run_that_completed(
    memdiag: RunMemdiag, tied: Path, tmp_path: Path
) -> None:
    words = ("profile", tied, "--runs=1", "--xray=none", "--out=out", "-q")
    assert memdiag(*words).returncode == 0
    failed = memdiag(*words, "--provider=NoSuchExecutionProvider")
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].endswith("out.failed/profile.json")
    assert load_profile(tmp_path / "out" / "profile.json").outcome.status == "completed"
    assert memdiag(*words).returncode == 0


def has_copies(process: psutil.Process) -> bool:
    """Return whether a session in `process` has the tied weight and its copies."""
    with suppress(psutil.NoSuchProcess):
        words = process.cmdline()
        return (
            bool(words)
            and words[-1].endswith("child.py")
            and (process.memory_info().rss > 4 * SIZE * MB)
        )
    return False


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupted_profile_is_saved_and_its_child_ended(
    tmp_path: Path, tied: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "memdiag", "profile", str(tied), "-q", "--runs=100000000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        watched = psutil.Process(process.pid)
        deadline = time.monotonic() + 60
        # The worker that runs the command, and the child that it measures, with all copies.
        while not (children := watched.children(recursive=True)) or not has_copies(children[-1]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        assert process.stderr is not None
        message = process.stderr.read()
        assert process.wait() == 2
    assert "interrupted" in message
    assert not any(child.is_running() for child in children)
    profile = load_profile(tmp_path / "reports" / "tied_if" / "profile.json")
    assert profile.outcome.status == "killed"
    assert profile.samples.t_s

"""Ctrl-C and SIGTERM while reports are rendered: what was measured is on the disk already."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memdiag.records.codec import encode
from tests.end_to_end.conftest import SampleModel
from tests.reports import profiles

pytestmark = pytest.mark.usefixtures("heeding_ctrl_c")


@pytest.mark.parametrize(
    ("words", "saved", "number"),
    [
        (("compare", "a.json", "b.json"), "comparison", signal.SIGINT),
        (("fix", "m.onnx", "--time-limit=1ms"), "fix", signal.SIGTERM),
        # The same code saves the record of each command.
        pytest.param(
            ("profile", "m.onnx", "--runs=1", "--xray=none"),
            "profile",
            signal.SIGINT,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("compare", "a.json", "b.json"), "comparison", signal.SIGTERM, marks=pytest.mark.slow
        ),
    ],
    ids=["compare-SIGINT", "fix-SIGTERM", "profile-SIGINT", "compare-SIGTERM"],
)
def test_the_record_is_there_before_any_report_is_rendered(
    tmp_path: Path,
    sample_model: SampleModel,
    words: tuple[str, ...],
    saved: str,
    number: signal.Signals,
) -> None:
    (tmp_path / "m.onnx").symlink_to(sample_model("tied_if"))
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(encode(profiles.tied_if()))
    command = [sys.executable, "-m", "memdiag", *words, "--out=out", "--quiet"]
    record = tmp_path / "out" / f"{saved}.json"
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not record.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(number)
        assert process.stderr is not None
        message = process.stderr.read()
        assert process.wait() == 2, message
    assert message.startswith("memdiag: interrupted. ")
    assert f"out/{saved}.json" in message
    assert message.count("\n") == 1
    assert [path.name for path in record.parent.iterdir()] == [record.name]
    assert json.loads(record.read_bytes())["schema"] == f"memdiag.{saved}/1"

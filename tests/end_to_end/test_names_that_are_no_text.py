"""File names that are not UTF-8: shown and stored spelt out, and no record is lost."""

import json
import os
from pathlib import Path

import pytest

from memdiag.records.codec import encode
from tests.end_to_end.conftest import RunMemdiag, SampleModel
from tests.reports import profiles

BAD = os.fsdecode(b"mod\xff")
SHOWN = r"mod\udcff"


@pytest.mark.usefixtures("records_only")
@pytest.mark.parametrize(
    ("words", "code", "saved"),
    [
        (("profile", f"{BAD}.onnx", "--load-from=bytes", "--runs=1"), 0, "profile.json"),
        (("compare", f"{BAD}.json", "b.json"), 0, "comparison.json"),
        (("check", f"{BAD}.onnx"), 1, None),
        (("check", f"{BAD}.onnx", "--format=sarif"), 1, None),
        (("fix", f"{BAD}.onnx"), 2, None),
    ],
    ids=["profile", "compare", "check", "sarif", "fix"],
)
def test_a_name_that_is_no_text_is_spelt_out(
    memdiag: RunMemdiag,
    tmp_path: Path,
    sample_model: SampleModel,
    words: tuple[str, ...],
    code: int,
    saved: str | None,
) -> None:
    try:
        (tmp_path / f"{BAD}.onnx").symlink_to(sample_model("tied_if"))
    except OSError:
        pytest.skip("this file system takes no such names")
    if words[0] == "fix":
        (tmp_path / f"{BAD}.onnx").unlink()
        (tmp_path / f"{BAD}.onnx").write_bytes(sample_model("tied_if").read_bytes())
    for name in (f"{BAD}.json", "b.json"):
        (tmp_path / name).write_bytes(encode(profiles.tied_if()))
    out = [f"--out={tmp_path / 'out'}"] if saved else []
    finished = memdiag(*words, *out)
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    assert SHOWN in finished.stdout + finished.stderr or words[-1] == "--format=sarif"
    if saved:
        record = json.loads((tmp_path / "out" / saved).read_text())
        assert SHOWN in str(record).replace(2 * "\\", "\\")

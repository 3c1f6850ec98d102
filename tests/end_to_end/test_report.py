"""memdiag report on saved records of every kind, and a fix joined to a profile."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest

from memdiag.records.base import Record
from memdiag.records.codec import encode, load
from memdiag.records.profile import Profile
from tests.reports import comparisons, fix_records, profiles, runs, tied_xray, tuning_records

RunMemdiag = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A saved profile of the model that the fix is of."""
    made = profiles.tied_if()
    size = fix_records.verified().before
    assert size is not None
    model = msgspec.structs.replace(
        made.model, path="else/m.onnx", file_bytes=size.disk_bytes, external_bytes=0
    )
    path = tmp_path / "p.json"
    path.write_bytes(encode(msgspec.structs.replace(made, model=model)))
    return path


REPORT_EACH = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from memdiag.cli.app import parse_command_line
for path in sys.argv[1:]:
    sys.argv = ["memdiag", "report", path, "--out", path.removesuffix(".json")]
    assert parse_command_line().run() == 0
    print("\\f", end="", flush=True)
"""


def test_every_kind_of_record_is_rendered_again_without_model_or_runtime(tmp_path: Path) -> None:
    records: dict[str, tuple[Record, str]] = {
        "profile": (profiles.tied_if(), "tied_if.onnx: peak 1.50 GiB"),
        "comparison": (comparisons.versions(), "model.onnx: 3 versions of onnxruntime"),
        "fix": (fix_records.verified(), "dir/m.onnx: peak 1.55 GiB → 559 MiB"),
        "tune": (tuning_records.tuning(), "dir/m.onnx: peak 200 MiB → 150 MiB"),
        "xray": (tied_xray.attribution(), "process 4242: 1,000 MiB of 1.54 GiB are copies"),
        "run": (runs.server(), ""),
    }
    for stem, (record, _) in records.items():
        (tmp_path / f"{stem}.json").write_bytes(encode(record))
    done = subprocess.run(
        [sys.executable, "-c", REPORT_EACH, *(f"{stem}.json" for stem in records)],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    *printed, _ = done.stdout.split("\f")
    for (stem, (record, message)), output in zip(records.items(), printed, strict=True):
        assert output.startswith(message)
        names = [f"{stem}.{end}" for end in ("html", "png", "md", "json")]
        if stem in ("profile", "run"):
            names = ["report.html", "timeline.png", "report.md", "trace.json", f"{stem}.json"]
        files = f"{stem}/   {' · '.join(names)}"
        lines = output.splitlines()
        assert files in lines if stem == "tune" else files == lines[-1]  # whose program is last
        assert {path.name for path in (tmp_path / stem).iterdir()} == {*names}
        assert (tmp_path / stem / f"{stem}.json").read_bytes() == encode(record)


def test_the_formats_are_those_of_the_kind(memdiag: RunMemdiag, tmp_path: Path) -> None:
    (tmp_path / "fix.json").write_bytes(encode(fix_records.verified()))
    assert memdiag("report", "fix.json", "--format", "svg").stdout == "fix.svg\n"
    as_json = memdiag("report", "fix.json", "--format", "json")
    assert as_json.stdout.encode() == encode(fix_records.verified())
    assert memdiag("report", "fix.json", "--format", "markdown").stdout.startswith("## Fix of")
    refused = memdiag("report", "fix.json", "--format", "pdf")
    assert refused.returncode == 2
    assert refused.stderr == (
        "memdiag: 'pdf' is not a report format of a fix. Choose from html, json, markdown, png,"
        " svg.\n"
    )


def test_a_fix_is_told_in_the_report_of_the_profile(
    memdiag: RunMemdiag, tmp_path: Path, profile: Path
) -> None:
    (tmp_path / "fix.json").write_bytes(encode(fix_records.verified()))
    finished = memdiag("report", profile.name, "--fix", "fix.json", "--out", "both")
    assert finished.returncode == 0, finished.stderr
    message = "Fixed by good-one: peak 1.55 GiB → 559 MiB"
    assert message in finished.stdout
    for name in ("report.html", "report.md"):
        assert message in (tmp_path / "both" / name).read_text()
    assert load(tmp_path / "both" / "profile.json", Profile).fix == fix_records.verified()
    assert message in memdiag("report", "both/profile.json", "--format", "console").stdout


def test_a_trace_includes_the_profiles_of_onnxruntime(memdiag: RunMemdiag, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(encode(runs.server()))
    event: dict[str, Any] = {
        "ph": "X",
        "cat": "Session",
        "name": "session_initialization",
        "args": {},
    }
    event |= {"pid": 100, "tid": 100, "ts": 10, "dur": 990_000}
    (tmp_path / "own.json").write_text(json.dumps([event]))
    finished = memdiag("report", "run.json", "--format=trace", "--merge-trace", "own.json")
    assert finished.stdout == "trace.json\n"
    assert "onnxruntime's profile of session 1" in (tmp_path / "trace.json").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none.json"], "none.json: cannot be read"),
        (["text.json"], "text.json: not a saved record, which is JSON. Beside it: "),
        (["other.json"], "other.json: its schema is 'memdiag.check/1', which cannot be read here"),
        (["broken.json"], "broken.json: not a valid fix: "),
        (["p.json", "--fix", "p.json"], "p.json: its schema is 'memdiag.profile/1', which cannot"),
        (
            ["p.json", "--fix", "stranger.json"],
            "the fix is of x.onnx, but the profile is of m.onnx",
        ),
        (["stranger.json", "--fix", "stranger.json"], "--fix needs a saved profile"),
        (["p.json", "--merge-trace", "p.json"], "--merge-trace needs the run.json of a recorded"),
        (
            ["run.json", "--format=html", "--merge-trace", "p.json"],
            "--merge-trace has no effect without --format trace",
        ),
        (["run.json", "--merge-trace", "p.json"], "p.json: not a profile of onnxruntime"),
    ],
)
@pytest.mark.usefixtures("profile")
def test_what_cannot_be_done_is_one_sentence(
    memdiag: RunMemdiag, tmp_path: Path, words: list[str], sentence: str
) -> None:
    (tmp_path / "text.json").write_text("no record")
    (tmp_path / "other.json").write_text('{"schema": "memdiag.check/1"}')
    (tmp_path / "broken.json").write_text('{"schema": "memdiag.fix/1"}')
    (tmp_path / "stranger.json").write_bytes(encode(fix_records.verified(model="x.onnx")))
    (tmp_path / "run.json").write_bytes(encode(runs.server()))
    finished = memdiag("report", *words)
    assert finished.returncode == 2
    assert sentence in finished.stderr
    assert finished.stderr.count("\n") == 1
    assert finished.stdout == ""


def test_redacted_reports_lie_beside_the_record_and_do_not_replace_it(
    memdiag: RunMemdiag, profile: Path
) -> None:
    before = profile.read_bytes()
    done = memdiag("report", str(profile), "--redact", "--format", "console", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model-1.onnx: peak")
    assert str(profile.parent) not in done.stdout
    redacted = profile.parent / "redacted"
    assert str(redacted) in done.stderr
    assert [path.name for path in redacted.iterdir()] == ["profile.json"]
    assert load(redacted / "profile.json", Profile).model.path == "model-1.onnx"
    assert profile.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "has_names"),
    [([], False), (["--redact"], False), (["--no-redact"], True)],
    ids=lambda each: str(each),
)
def test_an_issue_is_redacted_unless_names_are_asked_for(
    memdiag: RunMemdiag, profile: Path, options: list[str], has_names: bool
) -> None:
    done = memdiag("report", str(profile), "--format", "issue", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<!-- Title: [Performance] Peak ")
    assert ("m.onnx" in done.stdout) == has_names
    assert ("model-1.onnx" in done.stdout) != has_names


def test_profiles_of_the_runtime_are_not_merged_into_a_redacted_trace(
    memdiag: RunMemdiag, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes(encode(runs.server()))
    done = memdiag("report", str(tmp_path), "--redact", "--merge-trace", "x.json")
    assert done.returncode == 2
    assert "--merge-trace has no effect with --redact" in done.stderr
    assert not (tmp_path / "redacted").exists()

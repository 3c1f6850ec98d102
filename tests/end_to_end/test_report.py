"""memdiag report on saved records of every kind, and a fix joined to a profile."""

import os
import subprocess
import sys
from pathlib import Path

from memdiag.records.base import Record
from memdiag.records.codec import encode
from tests.end_to_end.conftest import RunMemdiag
from tests.reports import comparisons, fix_records, profiles, runs, tied_xray

RECORDS: dict[str, tuple[Record, str]] = {
    "profile": (profiles.tied_if(), "tied_if.onnx: peak 1.50 GiB"),
    "comparison": (comparisons.versions(), "model.onnx: 3 versions of onnxruntime"),
    "fix": (fix_records.verified(), "dir/m.onnx: peak 1.55 GiB → 559 MiB"),
    "xray": (
        tied_xray.attribution(),
        "process 4242: the largest owner is weights, with 1.47 of 1.54 GiB",
    ),
    "run": (runs.server(), ""),
}

# A profile in all formats; the others as text, since pages and pictures take long.
REPORT_EACH = """
import sys
sys.modules["onnx"] = sys.modules["onnxruntime"] = None
from memdiag.cli.app import parse_command_line, run_guarded
for name in sys.argv[1:]:
    formats = [] if name == "profile" else ["--format", "markdown", "--format", "console"]
    sys.argv = ["memdiag", "report", f"{name}.json", "--out", name, *formats]
    command = parse_command_line()
    assert run_guarded(command.module.run, command.options) == 0
    print("\\f", end="", flush=True)
"""


def test_every_kind_of_record_is_rendered_again_without_model_or_runtime(tmp_path: Path) -> None:
    for name, (record, _) in RECORDS.items():
        (tmp_path / f"{name}.json").write_bytes(encode(record))
    done = subprocess.run(
        [sys.executable, "-c", REPORT_EACH, *RECORDS],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    *printed, _ = done.stdout.split("\f")
    for (name, (_, message)), output in zip(RECORDS.items(), printed, strict=True):
        assert output.startswith(message)
        if name != "profile":
            (report,) = (tmp_path / name).iterdir()
            assert report.suffix == ".md"
    files = "profile/   report.html · timeline.png · report.md and 2 more"
    assert printed[0].splitlines()[-1] == files
    names = {"report.html", "timeline.png", "report.md", "trace.json", "profile.json"}
    assert {path.name for path in (tmp_path / "profile").iterdir()} == names
    assert (tmp_path / "profile" / "profile.json").read_bytes() == encode(RECORDS["profile"][0])


def test_the_formats_are_those_of_the_kind(memdiag: RunMemdiag, tmp_path: Path) -> None:
    (tmp_path / "fix.json").write_bytes(encode(fix_records.verified()))
    assert memdiag("report", "fix.json", "--format", "svg").stdout == "fix.svg\n"
    as_json = memdiag("report", "fix.json", "--format", "json")
    assert as_json.stdout.encode() == encode(fix_records.verified())
    assert memdiag("report", "fix.json", "--format", "markdown").stdout.startswith("## Fix: ")
    refused = memdiag("report", "fix.json", "--format", "pdf")
    assert refused.returncode == 2
    assert refused.stderr == (
        "memdiag: 'pdf' is not a report format of a fix. Choose from html, json, markdown, png,"
        " svg.\n"
    )

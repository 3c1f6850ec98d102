"""What the reports of all records share: formats, files, and the page that holds the record."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from memdiag.api.load import load_reported
from memdiag.errors import ReportError, UsageError
from memdiag.records.codec import decode
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import REPORT_MODULES, report_for, report_of
from memdiag.reports.profile import REPORT
from tests.reports import profiles
from tests.reports.records import RECORDS, VARIANTS
from tests.reports.rendering import Page, replaced

FILES = {
    "profile": "issue.md profile.json report.html report.md timeline.png timeline.svg trace.json",
    "xray": "xray.html xray.json xray.md xray.png xray.svg",
    "comparison": "comparison.html comparison.json comparison.md comparison.png comparison.svg"
    " issue.md",
    "fix": "fix.html fix.json fix.md fix.png fix.svg",
    "run": "issue.md report.html report.md run.json timeline.png timeline.svg trace.json",
    "estimate": "estimate.json estimate.png estimate.svg report.html report.md",
    "device_estimate": "device_estimate.json report.html report.md",
    "limit": "limit.html limit.json limit.md limit.png limit.svg",
    "sweep": "index.html report.md sweep.json",
    "growth": "growth.html growth.json growth.md growth.png growth.svg issue.md",
}
ALL = {**RECORDS, **VARIANTS, "profile_hostile": profiles.hostile, "profile_tiny": profiles.tiny}
FAILED = profiles.failed()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_written_in_all_formats_the_same_each_time(name: str, tmp_path: Path) -> None:
    record = RECORDS[name]()
    report = report_of(record)
    # The profile is of the CPU.
    formats = [format for format in report.formats() if format != "memory_viz"]
    written = report.write(record, tmp_path / "out", formats)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES[name].split()
    for format, path in zip(formats, written, strict=True):
        assert report.render(record, format) == path.read_bytes()
        assert len(path.read_bytes()) > 200


@pytest.mark.parametrize("name", ALL)
def test_a_record_is_read_from_its_file_and_its_page(name: str, tmp_path: Path) -> None:
    record = ALL[name]()
    report = report_of(record)
    html, json = report.write(record, tmp_path, ("html", "json"))
    assert load_reported(tmp_path) == record
    page = Page(html.read_text())
    assert decode(page.embedded(json.stem).encode(), type(record)) == record
    assert page.links == {"data:,", "#main"}  # it asks nobody for anything
    if report.draw is not None:
        assert report.render(record, "png").startswith(b"\x89PNG")


def test_every_kind_of_record_has_a_report() -> None:
    assert set(REPORT_MODULES) == set(get_args(ReportedRecord))
    assert {type(build()) for build in RECORDS.values()} == set(REPORT_MODULES)
    for kind in REPORT_MODULES:
        report = report_for(kind)
        defaults = set(report.default_formats())
        pictures = {"png"} if report.draw is not None else set()
        assert {"html", "markdown", "json", *pictures} <= defaults <= set(report.formats())
        assert ("trace" in defaults) == (kind in (Profile, ProgramRun))


@pytest.mark.parametrize(
    ("formats", "libraries"),
    [(["json", "markdown", "trace"], set()), (["html"], {"jinja2"}), (["png"], {"matplotlib"})],
)
def test_a_format_imports_only_its_own_library(formats: list[str], libraries: set[str]) -> None:
    script = (
        "import sys; from memdiag.records.profile import Profile;"
        "from memdiag.reports import report_for; from tests.reports import profiles;"
        "report = report_for(Profile); report.formats();"
        f"[report.render(profiles.tied_if(), format) for format in {formats}];"
        "print(*{'matplotlib', 'jinja2', 'rich', 'onnx'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == libraries


def test_write_makes_the_folder_and_returns_the_files_in_the_order_asked(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "tied_if"
    written = REPORT.write(profiles.tied_if(), folder, ("markdown", "json", "markdown"))
    assert written == (folder / "report.md", folder / "profile.json")
    assert sorted(path.name for path in folder.iterdir()) == ["profile.json", "report.md"]


def test_a_file_gets_the_permissions_that_any_new_file_gets(tmp_path: Path) -> None:
    (written,) = REPORT.write(FAILED, tmp_path, ("json",))
    other = tmp_path / "other"
    other.write_bytes(b"")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


def test_an_unknown_format_names_the_known_ones() -> None:
    message = r"'pdf' is not a report format of a profile\. Choose from html, issue"
    with pytest.raises(UsageError, match=message):
        REPORT.render(FAILED, "pdf")


def test_a_file_that_cannot_be_written_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()
    with pytest.raises(ReportError, match=r"report\.md: cannot be written"):
        REPORT.write(FAILED, tmp_path, ("markdown",))
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ReportError, match="taken: cannot be written"):
        REPORT.write(FAILED, tmp_path / "taken", ("json",))
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_full_disk_leaves_the_old_reports_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    REPORT.write(FAILED, tmp_path, ("json", "markdown"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls: list[object] = []

    def full(source: object, target: object) -> None:
        calls.append(source)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReportError, match=r"profile\.json: cannot be written \(No space left"):
        REPORT.write(profiles.tied_if(), tmp_path, ("json", "markdown"))
    assert calls
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_name_that_is_no_text_is_spelt_out_and_decodes_again() -> None:
    unreadable = replaced(FAILED, model__path="mod\udc80.onnx", command=("memdiag", "\udcff"))
    saved = decode(REPORT.render(unreadable, "json"), Profile)
    spelt_out = {"model__path": r"mod\udc80.onnx", "command": ("memdiag", r"\udcff")}
    assert saved == replaced(unreadable, **spelt_out)


def test_each_field_of_the_top_level_has_a_line_of_its_own() -> None:
    lines = REPORT.render(profiles.tied_if(), "json").decode().splitlines()
    assert lines[1] == '"schema": "memdiag.profile/1",'
    assert any(line.startswith('"outcome": ') for line in lines)

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from memdiag.errors import ReportError, UsageError
from memdiag.records import codec
from memdiag.records.codec import decode
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import REPORT_MODULES, report_for
from memdiag.reports import profile as profile_report
from memdiag.reports.profile import REPORT
from tests.reports import profiles

PROFILE = profile_report.REPORT
NAMES = {
    "html": "report.html",
    "issue": "issue.md",
    "json": "profile.json",
    "markdown": "report.md",
    "png": "timeline.png",
    "svg": "timeline.svg",
    "trace": "trace.json",
}


def test_the_formats_are_those_of_the_modules() -> None:
    assert PROFILE.formats() == tuple(sorted(NAMES))
    assert PROFILE.default_formats() == ("html", "png", "markdown", "json", "trace")


@pytest.mark.parametrize(
    ("call", "libraries"),
    [
        ("formats()", set()),
        ("render(profiles.tied_if(), 'json')", set()),
        ("render(profiles.tied_if(), 'markdown')", set()),
        ("render(profiles.tied_if(), 'trace')", set()),
        ("render(profiles.tied_if(), 'html')", {"jinja2"}),
        ("render(profiles.tied_if(), 'png')", {"matplotlib"}),
    ],
)
def test_a_format_imports_only_its_own_library(call: str, libraries: set[str]) -> None:
    script = (
        "import sys; from memdiag.records.profile import Profile;"
        "from memdiag.reports import report_for; from tests.reports import profiles;"
        f"report_for(Profile).{call};"
        "print(*{'matplotlib', 'jinja2', 'rich', 'onnx'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == libraries


def test_write_makes_the_folder_and_returns_the_files_in_the_order_asked(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "tied_if"
    written = PROFILE.write(profiles.tied_if(), folder, ("markdown", "json", "markdown"))
    assert written == (folder / "report.md", folder / "profile.json")
    assert sorted(path.name for path in folder.iterdir()) == ["profile.json", "report.md"]


def test_what_json_holds_is_the_same_record_again() -> None:
    for build in (profiles.tied_if, profiles.hostile, profiles.nothing_seen):
        profile = build()
        assert codec.decode(PROFILE.render(profile, "json"), Profile) == profile


def test_a_file_gets_the_permissions_that_any_new_file_gets(tmp_path: Path) -> None:
    (written,) = PROFILE.write(profiles.failed(), tmp_path, ("json",))
    beside = tmp_path / "other"
    beside.write_bytes(b"")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"'pdf' is not a report format of a profile\. Choose from html, issue"
    ):
        PROFILE.render(profiles.failed(), "pdf")


def test_every_kind_of_record_has_a_report() -> None:
    assert set(REPORT_MODULES) == set(get_args(ReportedRecord))
    for kind in REPORT_MODULES:
        report = report_for(kind)
        defaults = set(report.default_formats())
        pictures = {"png"} if report.draw is not None else set()
        assert {"html", "markdown", "json", *pictures} <= defaults <= set(report.formats())
        assert ("trace" in defaults) == (kind in (Profile, ProgramRun))


def test_an_unwritable_target_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()
    with pytest.raises(ReportError, match=r"report\.md: cannot be written"):
        PROFILE.write(profiles.failed(), tmp_path, ("markdown",))
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_a_folder_that_is_a_file_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ReportError, match="taken: cannot be written"):
        PROFILE.write(profiles.failed(), tmp_path / "taken", ("json",))
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_full_disk_leaves_the_old_reports_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PROFILE.write(profiles.failed(), tmp_path, ("json", "markdown"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls: list[object] = []

    def full(source: object, target: object) -> None:
        calls.append(source)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReportError, match=r"profile\.json: cannot be written \(No space left"):
        PROFILE.write(profiles.tied_if(), tmp_path, ("json", "markdown"))
    assert calls
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("format", sorted(NAMES))
@pytest.mark.parametrize(
    "build",
    [
        profiles.tied_if,
        profiles.failed,
        profiles.killed,
        profiles.nothing_seen,
        profiles.tiny,
        profiles.uneven,
        profiles.hostile,
        profiles.not_run,
        profiles.sampled,
    ],
    ids=lambda build: build.__name__,
)
def test_every_profile_renders_in_every_format(format: str, build: object) -> None:
    assert callable(build)
    assert len(PROFILE.render(build(), format)) > 200


@pytest.mark.parametrize("format", NAMES)
def test_a_profile_renders_the_same_each_time(format: str) -> None:
    first, again = (PROFILE.render(profiles.tied_if(), format) for _ in range(2))
    assert first == again


def test_a_name_that_is_no_text_is_spelt_out_and_decodes_again() -> None:
    profile = profiles.failed()
    model = msgspec.structs.replace(profile.model, path="mod\udc80.onnx")
    unreadable = msgspec.structs.replace(profile, model=model, command=("memdiag", "\udcff"))
    saved = decode(REPORT.render(unreadable, "json"), Profile)
    assert saved.model.path == r"mod\udc80.onnx"
    assert saved.command == ("memdiag", r"\udcff")
    assert msgspec.structs.replace(saved, model=model, command=unreadable.command) == unreadable


def test_each_field_of_the_top_level_has_a_line_of_its_own() -> None:
    lines = REPORT.render(profiles.tied_if(), "json").decode().splitlines()
    assert lines[1] == '"schema": "memdiag.profile/1",'
    assert any(line.startswith('"outcome": ') for line in lines)

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from memdiag import reports
from memdiag.errors import ReportError, UsageError
from memdiag.records import codec
from memdiag.records.profile import Profile
from tests.reports import profiles

NAMES = {
    "html": "report.html",
    "json": "profile.json",
    "markdown": "report.md",
    "png": "timeline.png",
    "svg": "timeline.svg",
    "treemap": "treemap.png",
    "treemap_svg": "treemap.svg",
}


def test_the_formats_are_those_of_the_modules() -> None:
    assert reports.formats() == tuple(sorted(NAMES))
    assert set(reports.DEFAULT_FORMATS) <= set(reports.formats())


def test_listing_the_formats_imports_nothing_heavy() -> None:
    script = (
        "import sys; from memdiag import reports; reports.formats(); "
        "print(sorted({'plotly', 'matplotlib', 'jinja2', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_json_is_written_without_the_other_reporters() -> None:
    script = (
        "import sys; from memdiag import reports; from tests.reports import profiles; "
        "reports.render(profiles.tied_if(), 'json'); "
        "print(sorted(m for m in sys.modules if m.startswith('memdiag.reports.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ("['memdiag.reports.files', 'memdiag.reports.json_file']")


def test_write_makes_the_folder_and_returns_the_files_in_the_order_asked(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "tied_if"
    written = reports.write(profiles.tied_if(), folder, ("markdown", "json", "markdown"))
    assert written == (folder / "report.md", folder / "profile.json")
    assert sorted(path.name for path in folder.iterdir()) == ["profile.json", "report.md"]


def test_what_json_holds_is_the_same_record_again() -> None:
    for build in (profiles.tied_if, profiles.hostile, profiles.nothing_seen):
        profile = build()
        assert codec.decode(reports.render(profile, "json"), Profile) == profile


def test_a_file_gets_the_permissions_that_any_new_file_gets(tmp_path: Path) -> None:
    (written,) = reports.write(profiles.failed(), tmp_path, ("json",))
    beside = tmp_path / "other"
    beside.write_bytes(b"")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"'pdf' is not a report format of a profile\. Choose from html, json"
    ):
        reports.render(profiles.failed(), "pdf")


def test_a_module_that_is_no_reporter_is_no_format() -> None:
    for name in ("console", "palette", "json_file", "views"):
        with pytest.raises(UsageError):
            reports.render(profiles.failed(), name)


def test_an_unwritable_target_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "report.md").mkdir()
    with pytest.raises(ReportError, match=r"report\.md: cannot be written"):
        reports.write(profiles.failed(), tmp_path, ("markdown",))
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_a_folder_that_is_a_file_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ReportError, match="taken: cannot be written"):
        reports.write(profiles.failed(), tmp_path / "taken", ("json",))
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_full_disk_leaves_the_old_reports_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.write(profiles.failed(), tmp_path, ("json", "markdown"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls: list[object] = []

    def full(source: object, target: object) -> None:
        calls.append(source)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReportError, match=r"profile\.json: cannot be written \(No space left"):
        reports.write(profiles.tied_if(), tmp_path, ("json", "markdown"))
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
def test_every_profile_renders_in_every_format_the_same_each_time(
    format: str, build: object
) -> None:
    assert callable(build)
    profile = build()
    first = reports.render(profile, format)
    assert len(first) > 500
    assert first == reports.render(profile, format)

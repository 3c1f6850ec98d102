"""Where answers go: a folder that was asked for, a picture by its name."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from memdiag.cli.output import ProfileDestinations, ReportDestination
from memdiag.errors import ReportError
from memdiag.records.codec import load
from memdiag.records.fix import Fix
from memdiag.records.profile import Profile
from tests.reports import comparisons, fix_records, profiles


def test_without_a_folder_nothing_is_written() -> None:
    assert ReportDestination(None).write(fix_records.verified()) == ()


@pytest.mark.parametrize(
    ("record", "stem"),
    [(fix_records.verified(), "fix"), (comparisons.alike(), "comparison")],
    ids=["fix", "comparison"],
)
def test_every_kind_of_record_is_written_as_four_files(
    tmp_path: Path, record: Fix, stem: str
) -> None:
    written = ReportDestination(tmp_path / "new" / "folder").write(record)
    assert [path.name for path in written] == [
        f"{stem}.{end}" for end in ("html", "png", "md", "json")
    ]
    assert all(path.parent == tmp_path / "new" / "folder" for path in written)


def test_an_early_record_is_replaced_or_removed(tmp_path: Path) -> None:
    early, late = profiles.killed(), profiles.tied_if()
    folder = tmp_path / "out"
    destination = ReportDestination(folder)
    destination.save_early(early)
    assert [path.name for path in folder.iterdir()] == ["profile.json"]
    assert load(folder / "profile.json", Profile) == early
    destination.write(late, ["json"])
    assert load(folder / "profile.json", Profile) == late
    other = ReportDestination(tmp_path / "other")
    other.remove_early()  # nothing was saved
    other.save_early(early)
    other.remove_early()
    assert not (tmp_path / "other").exists()
    ReportDestination(None).save_early(early)


@pytest.mark.parametrize(
    ("earlier", "profile", "names"),
    [
        (None, profiles.failed(), {"out"}),
        (profiles.failed(), profiles.failed(), {"out"}),
        (profiles.tied_if(), profiles.tied_if(), {"out"}),
        (profiles.tied_if(), profiles.failed(), {"out", "out.failed"}),
        (profiles.tied_if(), profiles.killed(), {"out", "out.killed"}),
    ],
    ids=["first", "none completed", "completed", "failed", "killed"],
)
def test_an_earlier_profile_that_completed_stays_if_this_one_does_not(
    tmp_path: Path, earlier: Profile | None, profile: Profile, names: set[str]
) -> None:
    folder = tmp_path / "out"
    if earlier is not None:
        ReportDestination(folder).write(earlier, ["json"])
    destinations = ProfileDestinations(folder)
    destinations.early_destination.save_early(profile)
    destinations.destination_of(profile).write(profile, ["json"])
    assert {path.name for path in tmp_path.iterdir()} == names
    stays = "out" if len(names) == 1 else f"out.{profile.outcome.status}"
    assert load(tmp_path / stays / "profile.json", Profile) == profile


def test_all_files_are_of_one_record_if_two_are_written_at_once(tmp_path: Path) -> None:
    mine, other = profiles.tied_if(), profiles.killed()

    def write_other() -> None:
        ReportDestination(tmp_path).write(other)

    ReportDestination(tmp_path).write(mine, when_saved=write_other)
    names = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ReportDestination(tmp_path / "alone").write(mine)
    assert names == {path.name: path.read_bytes() for path in (tmp_path / "alone").iterdir()}


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ReportError, match="taken: reports cannot be written there"):
        ReportDestination(tmp_path / "taken")


def test_a_record_is_not_lost_where_its_reports_cannot_be_written(tmp_path: Path) -> None:
    destination = ReportDestination(tmp_path)
    (tmp_path / "fix.json").mkdir()
    with pytest.raises(
        ReportError, match=r"fix\.json: cannot be .* The fix itself is at "
    ) as raised:
        destination.write(fix_records.verified())
    saved = Path(str(raised.value).rpartition(" is at ")[2].removesuffix("."))
    assert load(saved, Fix) == fix_records.verified()


def test_the_answer_is_printed_also_where_its_reports_cannot_be_written(tmp_path: Path) -> None:
    answers: list[int] = []

    def answer() -> int:
        with ReportDestination(tmp_path).written_reports(fix_records.verified()) as report_paths:
            answers.append(len(report_paths))
            return 1

    assert answer() == 1
    (tmp_path / "fix.html").unlink()
    (tmp_path / "fix.html").mkdir()
    with pytest.raises(ReportError, match=r"fix\.html: cannot be written"):
        answer()
    assert answers == [4, 0]


def test_nothing_is_left_where_no_file_can_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_size_limit: Callable[[int], AbstractContextManager[None]],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with file_size_limit(10), pytest.raises(ReportError, match=r"out/fix\.json: cannot be written"):
        ReportDestination(tmp_path / "out").write(fix_records.verified())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_error_while_reports_are_rendered_has_the_place_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render(*arguments: object, **options: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr("memdiag.reports.picture.rendered_picture", render)
    with pytest.raises(MemoryError) as raised:
        ReportDestination(tmp_path).write(fix_records.verified())
    assert raised.value.__notes__ == [f"The fix itself is at {tmp_path / 'fix.json'}."]

"""Where answers go: a folder that was asked for, a picture by its name."""

from pathlib import Path

import pytest

from memdiag.cli.output import Destination, picture_kind
from memdiag.errors import ReportError, UsageError
from memdiag.records.codec import load
from memdiag.records.fix import Fix
from tests.reporters import comparisons, fix_records, profiles, tuning_records


def test_without_a_folder_nothing_is_written() -> None:
    assert Destination(None).write(fix_records.verified()) == ()
    with pytest.raises(UsageError, match="--plotly has no effect without --out"):
        Destination(None, plotly="cdn")


@pytest.mark.parametrize(
    ("record", "stem"),
    [
        (fix_records.verified(), "fix"),
        (tuning_records.tuning(), "tune"),
        (comparisons.alike(), "comparison"),
    ],
    ids=["fix", "tuning", "comparison"],
)
def test_every_kind_of_record_is_written_as_four_files(
    tmp_path: Path, record: Fix, stem: str
) -> None:
    written = Destination(tmp_path / "new" / "folder").write(record)
    assert [path.name for path in written] == [
        f"{stem}.{end}" for end in ("html", "png", "md", "json")
    ]
    assert all(path.parent == tmp_path / "new" / "folder" for path in written)


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ReportError, match="taken: reports cannot be written there"):
        Destination(tmp_path / "taken")


def test_a_record_is_not_lost_where_its_reports_cannot_be_written(tmp_path: Path) -> None:
    destination = Destination(tmp_path)
    (tmp_path / "fix.json").mkdir()
    with pytest.raises(
        ReportError, match=r"fix\.json: cannot be .* The fix itself is at "
    ) as raised:
        destination.write(fix_records.verified())
    saved = Path(str(raised.value).rpartition(" is at ")[2].removesuffix("."))
    assert load(saved, Fix) == fix_records.verified()


def test_the_library_may_lie_beside_every_page(tmp_path: Path) -> None:
    written = Destination(tmp_path, plotly="directory").write(profiles.tied_if(), ("html",))
    assert [path.name for path in written] == ["report.html", "plotly.min.js"]
    again = Destination(tmp_path, plotly="directory").write(fix_records.verified(), ("html",))
    assert [path.name for path in again] == ["fix.html", "plotly.min.js"]


@pytest.mark.parametrize(
    ("name", "kind"), [("a.svg", "svg"), ("a.SVG", "svg"), ("a.png", "png"), ("a", "png")]
)
def test_a_picture_is_what_it_is_called(name: str, kind: str) -> None:
    assert picture_kind(Path(name)) == kind

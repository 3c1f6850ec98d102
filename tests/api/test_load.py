"""Saved records read in Python."""

from pathlib import Path

import msgspec
import pytest

import memdiag
from memdiag.errors import RecordError
from memdiag.records.base import Record
from memdiag.records.codec import encode
from tests.reports import comparisons, fix_records, profiles, tied_xray

XRAY = tied_xray.with_xrays().attribution
assert XRAY is not None
RECORDS: dict[str, Record] = {
    "attribution": XRAY,
    "comparison": comparisons.versions(),
    "fix": fix_records.verified(),
}


def saved(folder: Path, record: Record) -> Path:
    path = folder / "record.json"
    path.write_bytes(encode(record))
    return path


@pytest.mark.parametrize("name", RECORDS)
def test_load_reads_any_record_and_load_profile_says_so(tmp_path: Path, name: str) -> None:
    record = RECORDS[name]
    path = saved(tmp_path, record)
    assert memdiag.load(path) == record
    with pytest.raises(RecordError) as caught:
        memdiag.load_profile(path)
    schema = msgspec.structs.asdict(record)["schema"]
    assert str(caught.value) == (
        f"{path}: its schema is {schema!r}, not 'memdiag.profile/1'. Read it with memdiag.load."
    )


def test_both_read_a_profile_that_its_method_saved(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "profile.json"
    profiles.tied_if().save(path)
    assert memdiag.load(path) == memdiag.load_profile(path) == profiles.tied_if()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a saved record"),
        ('{"schema": 1}', "not a saved record"),
        ('{"schema": "other/1"}', "its schema is 'other/1', which cannot be read here. "),
        ('{"schema": "memdiag.fix/1"}', "not a valid fix"),
    ],
)
def test_what_is_no_record_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"record\.json: ") as caught:
        memdiag.load(path)
    assert message in str(caught.value)

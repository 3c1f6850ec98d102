"""Findings in saved records of this version and of older ones."""

import msgspec
import pytest

from memdiag.errors import RecordError
from memdiag.records.codec import decode, encode
from memdiag.records.finding import Check
from tests.reports.checks import check, finding

DRAWING = b'{"nodes":[{"id":"0","kind":"weight","title":"w"}],"edges":[],"graph":"main graph"}'


def test_a_finding_with_its_path_is_read_again() -> None:
    record = check(finding(path="Gather ← w → MatMul"))
    assert decode(encode(record), Check) == record


def test_the_drawing_of_an_older_record_is_ignored() -> None:
    saved = encode(check(finding()))
    older = saved.replace(b'"path":"","drawing":null', b'"drawing":' + DRAWING)
    assert older != saved
    record = decode(older, Check)
    assert record == check(finding())
    assert DRAWING not in encode(record)


def test_an_unknown_field_is_refused() -> None:
    saved = encode(check(finding())).replace(b'"path":""', b'"paths":""')
    with pytest.raises(RecordError, match="unknown field `paths`"):
        decode(saved, Check)


def test_a_finding_saved_without_a_path_has_none() -> None:
    saved = encode(check(finding())).replace(b'"path":"","drawing":null', b'"drawing":null')
    (found,) = decode(saved, Check).findings
    assert msgspec.structs.asdict(found)["path"] == ""

"""Findings in saved records."""

import pytest

from memdiag.errors import RecordError
from memdiag.records.codec import decode, encode
from memdiag.records.finding import Check
from tests.reports.checks import check, finding


def test_a_finding_with_its_path_is_read_again() -> None:
    record = check(finding(path="Gather ← w → MatMul"))
    assert decode(encode(record), Check) == record


def test_an_unknown_field_is_refused() -> None:
    saved = encode(check(finding())).replace(b'"path":""', b'"paths":""')
    with pytest.raises(RecordError, match="unknown field `paths`"):
        decode(saved, Check)

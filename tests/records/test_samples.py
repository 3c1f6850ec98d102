"""Samples are tables: columns of different lengths are refused when a record is read."""

import json
from typing import Any

import pytest

from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.base import Record
from memdiag.records.profile import Profile
from memdiag.records.run import ProgramRun
from tests.reports import profiles, runs


def without_last(record: Record, column: str) -> bytes:
    data: dict[str, Any] = json.loads(codec.encode(record))
    assert data["samples"][column]
    data["samples"][column].pop()
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("kind", "record", "column"),
    [
        *(
            (Profile, profiles.with_shared(), column)
            for column in (
                "t_s",
                "rss_bytes",
                "anonymous_bytes",
                "file_and_shared_bytes",
                "shared_bytes",
            )
        ),
        *(
            (ProgramRun, runs.server(), column)
            for column in ("t_s", "rss_bytes", "proportional_t_s", "pss_bytes", "swap_bytes")
        ),
    ],
)
def test_columns_of_different_length_are_refused(
    kind: type[Record], record: Record, column: str
) -> None:
    assert codec.decode(codec.encode(record), kind) == record
    with pytest.raises(RecordError, match="columns of the samples differ in length"):
        codec.decode(without_last(record, column), kind)

import json
from pathlib import Path
from typing import Any

import pytest

from memdiag.errors import RecordError
from memdiag.records.codec import decode, encode, load, load_any
from memdiag.records.finding import CHECK_SCHEMA, Check
from memdiag.records.history import HISTORY_SCHEMA, History
from memdiag.records.profile import Memory

MEMORY = Memory(rss_bytes=3, anonymous_bytes=1, file_bytes=2, shared_bytes=None)


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode(MEMORY)) | changes).encode()


def test_a_record_comes_back_as_it_was() -> None:
    assert decode(encode(MEMORY), Memory) == MEMORY


def test_each_field_of_the_top_level_is_a_line() -> None:
    assert encode(MEMORY).decode().splitlines()[1] == '"rss_bytes": 3,'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(more=1), "unknown field `more`"),
        (changed(rss_bytes="3"), r"Expected `int`, got `str` - at `\$.rss_bytes`"),
        (changed(rss_bytes=3.5), "Expected `int`"),
        (b"{}", "missing required field `rss_bytes`"),
        (b"[1]", "Expected `object`"),
        (b"", "truncated"),
        (b'{"rss_bytes": 3', "truncated"),
        (b"\x89PNG", "malformed"),
    ],
)
def test_what_does_not_match_is_refused_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        decode(data, Memory)


def test_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(RecordError, match=r"profile\.json: cannot be read \(No such file"):
        load(path, Memory)
    path.write_bytes(b"{}")
    with pytest.raises(RecordError, match=r"profile\.json: not a valid memory"):
        load(path, Memory)
    path.write_bytes(encode(MEMORY))
    assert load(path, Memory) == MEMORY


def test_a_record_is_of_the_kind_that_it_says_it_is(tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    kinds: dict[str, type[History | Check]] = {HISTORY_SCHEMA: History, CHECK_SCHEMA: Check}
    history = History(schema=HISTORY_SCHEMA, entries=())
    path.write_bytes(encode(history))
    assert load_any(path, kinds) == history
    for content, said in (
        (b'{"schema": "memdiag.other/1"}', "its schema is 'memdiag.other/1', not one of memdiag."),
        (b"{}", "not a saved record: .*missing required field `schema`"),
        (b"\x89PNG", "not a saved record: "),
        (b'{"schema": "memdiag.history/1"}', "not a valid history: .*missing .*`entries`"),
    ):
        path.write_bytes(content)
        with pytest.raises(RecordError, match=rf"any\.json: {said}"):
            load_any(path, kinds)
    with pytest.raises(RecordError, match="cannot be read"):
        load_any(tmp_path / "none.json", kinds)

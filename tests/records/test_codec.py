import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memdiag.errors import RecordError
from memdiag.records import codec
from memdiag.records.codec import MAX_NUMBER, MAX_TEXT, decode, encode, load, load_any_record
from memdiag.records.comparison import Comparison
from memdiag.records.finding import CHECK_SCHEMA, Check
from memdiag.records.fix import Fix
from memdiag.records.profile import MAX_PHASES, MAX_SPANS, Memory, Profile
from memdiag.records.sweep import SWEEP_SCHEMA, Sweep
from tests.reports import comparisons, fix_records, profiles
from tests.sweeps.results import result

MEMORY = Memory(rss_bytes=3, anonymous_bytes=1, file_bytes=2, shared_bytes=None)


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode(MEMORY)) | changes).encode()


def test_a_record_comes_back_as_it_was() -> None:
    assert encode(MEMORY).decode().splitlines()[1] == '"rss_bytes": 3,'  # a line for each field
    largest = msgspec.structs.replace(MEMORY, rss_bytes=MAX_NUMBER)
    for record in (MEMORY, largest):
        assert decode(encode(record), Memory) == record


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
        (changed(rss_bytes=10**40), r"the number 1e\+40 in it is too large"),
        (changed(rss_bytes=-(10**40)), r"the number -1e\+40 in it is too large"),
        (changed(rss_bytes=10**400), r"the number above 1e\+308 in it is too large"),
        (changed(more=[{"a": 1e300}]), r"the number 1e\+300 in it is too large"),
        (b'{"rss_bytes": ' + b"[" * 100_000, "not a valid memory"),
    ],
)
def test_what_does_not_match_is_refused_with_its_place(data: bytes, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        decode(data, Memory)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(encode(MEMORY))
    monkeypatch.setattr(codec, "MAX_RECORD_BYTES", path.stat().st_size)
    assert load(path, Memory) == MEMORY
    monkeypatch.setattr(codec, "MAX_RECORD_BYTES", path.stat().st_size - 1)
    with pytest.raises(RecordError, match=r"m\.json: cannot be read \(larger than "):
        load(path, Memory)


@pytest.mark.parametrize(("name", "most"), [("phases", MAX_PHASES), ("spans", MAX_SPANS)])
def test_so_many_phases_or_spans_are_no_profile(name: str, most: int) -> None:
    profile = profiles.tied_if()

    def with_many(count: int) -> bytes:
        return encode(
            msgspec.structs.replace(profile, **{name: getattr(profile, name)[:1] * count})
        )

    assert len(getattr(decode(with_many(most), Profile), name)) == most
    with pytest.raises(RecordError, match=rf"length <= {most} - at `\$\.{name}`"):
        decode(with_many(most + 1), Profile)


def test_copies_of_no_weight_are_no_change() -> None:
    comparison = comparisons.versions()
    assert decode(encode(comparison), Comparison) == comparison
    nothing = msgspec.structs.replace(comparison.copies[0], weights=())
    with pytest.raises(RecordError, match=r"length >= 1 - at `\$\.copies"):
        decode(encode(msgspec.structs.replace(comparison, copies=(nothing,))), Comparison)


def test_a_text_that_no_report_could_show_is_refused() -> None:
    longest = msgspec.structs.replace(profiles.tied_if(), notes=("x" * MAX_TEXT,))
    assert decode(encode(longest), Profile).notes == longest.notes
    longer = msgspec.structs.replace(longest, notes=("x" * (MAX_TEXT + 1),))
    with pytest.raises(RecordError, match=r"longer than 1,048,576 characters\. Save it"):
        decode(encode(longer), Profile)


@pytest.mark.parametrize(
    ("record", "path"),
    [
        (profiles.tied_if(), ("baseline_rss_bytes",)),
        (profiles.tied_if(), ("phases", 0, "duration_s")),
        (fix_records.verified(), ("duration_s",)),
        (fix_records.verified(), ("before", "disk_bytes")),
        (fix_records.verified(), ("latencies", 0, "pairs")),
        (fix_records.fix(), ("session_count",)),
        (fix_records.fix(), ("points", 0, "figures", "load_s")),
    ],
)
def test_a_negative_size_duration_or_count_is_refused(
    record: Profile | Fix, path: tuple[str | int, ...]
) -> None:
    assert decode(encode(record), type(record)) == record
    content = json.loads(encode(record))
    *parents, name = path
    inner = content
    for step in parents:
        inner = inner[step]
    inner[name] = -1
    with pytest.raises(RecordError, match=f"{name} is negative"):
        decode(json.dumps(content).encode(), type(record))


def test_a_smaller_steady_memory_than_the_baseline_is_no_error() -> None:
    record = fix_records.verified()
    assert record.before is not None
    before = msgspec.structs.replace(record.before, steady_bytes=-4096, file_and_shared_bytes=-4096)
    record = msgspec.structs.replace(record, before=before)
    assert decode(encode(record), Fix) == record


def test_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(RecordError, match=r"profile\.json: cannot be read \(No such file"):
        load(path, Memory)
    path.write_bytes(b"{}")
    with pytest.raises(RecordError, match=r"profile\.json: not a valid memory"):
        load(path, Memory)
    path.write_bytes(encode(MEMORY))
    assert load(path, Memory) == MEMORY


KINDS: dict[str, type[Sweep | Check]] = {SWEEP_SCHEMA: Sweep, CHECK_SCHEMA: Check}


def test_a_record_is_of_the_kind_that_it_says_it_is(tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    path.write_bytes(encode(Sweep(store="store")))
    assert load_any_record(path, KINDS) == Sweep(store="store")
    with pytest.raises(RecordError, match="cannot be read"):
        load_any_record(tmp_path / "none.json", KINDS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"schema": "memdiag.other/1"}',
            "its schema is 'memdiag.other/1', .*: sweep, check",
        ),
        (
            b'{"schema": "memdiag.sweep/2"}',
            "its schema is 'memdiag.sweep/2', not 'memdiag.sweep/1'. Save it again with this",
        ),
        (b"{}", "not a saved record: .*missing required field `schema`"),
        (b"\x89PNG", "not a saved record, which is JSON. Give a JSON file"),
        (b'{"schema": "memdiag.sweep/1"}', "not a valid sweep: .*missing .*`store`"),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "any.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=rf"any\.json: {message}"):
        load_any_record(path, KINDS)


def test_the_record_of_a_folder_is_found(tmp_path: Path) -> None:
    kinds: dict[str, type[Sweep | Check]] = {SWEEP_SCHEMA: Sweep}
    with pytest.raises(RecordError, match="no saved record in this folder"):
        load_any_record(tmp_path, kinds)
    sweep = Sweep(store="store")
    (tmp_path / "b.json").write_bytes(encode(sweep))
    (tmp_path / "trace.json").write_text("[]")
    (tmp_path / "check.json").write_text(f'{{"schema": "{CHECK_SCHEMA}"}}')
    (tmp_path / "report.md").write_text("## Memory")
    assert load_any_record(tmp_path, kinds) == sweep
    with pytest.raises(RecordError, match=r"report\.md: not .* JSON\. Next to it: b\.json\."):
        load_any_record(tmp_path / "report.md", kinds)
    (tmp_path / "a.json").write_bytes(encode(sweep))
    with pytest.raises(RecordError, match=r"several records in this folder: a\.json, b\.json\."):
        load_any_record(tmp_path, kinds)


def test_a_change_between_columns_that_are_not_there_is_refused() -> None:
    record = json.loads(encode(comparisons.versions()))
    record["changes"][0]["to"] = "elsewhere"
    message = "a change names the column 'elsewhere', which is missing"
    with pytest.raises(RecordError, match=message):
        decode(json.dumps(record).encode(), Comparison)


_AT_ONCE = """
import sys, threading
from pathlib import Path
from memdiag.records.codec import decode
from memdiag.records.sweep_job import JobResult

sys.setswitchinterval(1e-6)
together = threading.Barrier(2)
data = Path(sys.argv[1]).read_bytes()

def run():
    together.wait()
    decode(data, JobResult)

threads = [threading.Thread(target=run) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_decode_a_type_for_the_first_time_at_once(tmp_path: Path) -> None:
    """Without a lock around its preparation msgspec crashed in 16 of 20 processes."""
    (tmp_path / "result.json").write_bytes(encode(result()))
    words = [sys.executable, "-c", _AT_ONCE, str(tmp_path / "result.json")]
    codes = [subprocess.run(words, check=False, timeout=60).returncode for _ in range(5)]
    assert codes == [0] * 5

import time

from memdiag.measurement.markers import Event, LogReader, Marker

STAMP = "2026-11-21 03:23:46.474104445"
EPOCH = time.mktime(time.strptime(STAMP[:19], "%Y-%m-%d %H:%M:%S")) + 0.474104445


def line(message: str, severity: str = "I", place: str = "graph_transformer.cc:15 Apply") -> bytes:
    return f"{STAMP} [{severity}:onnxruntime:, {place}] {message}\n".encode()


def only(chunk: bytes) -> Marker:
    (item,) = LogReader().feed(chunk)
    assert isinstance(item, Marker)
    return item


def test_the_end_of_a_transformer_tells_its_name_and_whether_it_changed_anything() -> None:
    marker = only(line("GraphTransformer ConstantFolding modified: 1 with status: OK"))
    assert (marker.kind, marker.name, marker.modified) == (
        "transformer_end",
        "ConstantFolding",
        True,
    )
    assert abs(marker.epoch_s - EPOCH) < 1e-6


def test_the_start_of_a_transformer_tells_its_step() -> None:
    marker = only(line("Applying graph transformer ConstantFolding on step 2.", "V"))
    assert (marker.kind, marker.name, marker.step) == ("transformer_start", "ConstantFolding", 2)


def test_the_place_in_the_source_does_not_matter() -> None:
    marker = only(line("Initializing session.", place="elsewhere.cc:9 operator()"))
    assert marker.kind == "initialize_session"


def test_lines_that_only_look_alike_are_no_markers() -> None:
    reader = LogReader()
    near_misses = [
        "Applying 16 graph transformer(s) for level 1 for up to 10 step(s).",
        "Skipping graph transformer ConstantSharing on step 2 because it should only apply once.",
        "Not Initializing session.",
    ]
    assert reader.feed(b"".join(map(line, near_misses))) == []
    assert reader.feed(b"Initializing session.\n") == []
    assert reader.tail == ["Initializing session."]


def test_a_line_may_arrive_in_pieces() -> None:
    reader = LogReader()
    whole = line("Saving initialized tensors.") + line("Done saving initialized tensors")
    found = [item for byte in whole for item in reader.feed(bytes([byte]))]
    assert [item.kind for item in found if isinstance(item, Marker)] == [
        "save_initializers",
        "initializers_saved",
    ]


def test_coloured_warnings_and_errors_are_kept_once_without_colour() -> None:
    reader = LogReader()
    warning = b"\x1b[0;93m" + line("a weight is odd", "W").rstrip() + b"\x1b[m\n"
    assert reader.feed(warning * 3 + line("it broke", "E")) == []
    assert reader.warnings == ["a weight is odd"]
    assert reader.errors == ["it broke"]


def test_events_of_the_loader_keep_their_place_among_the_lines() -> None:
    reader = LogReader()
    event = b'half a line\x1ememdiag {"latency_s": 0.5, "event": "run"}\n'
    items = reader.feed(line("Initializing session.") + event)
    assert items[1] == Event("run", {"latency_s": 0.5})
    assert reader.tail == ["half a line"]


def test_the_last_words_of_a_crash_need_no_newline_and_are_bounded() -> None:
    reader = LogReader()
    reader.feed(b"".join(b"line %d\n" % number for number in range(100)) + b"Aborted")
    reader.finish()
    assert reader.tail[-1] == "Aborted"
    assert len(reader.tail) <= 21


def test_bytes_that_are_no_text_do_not_stop_the_reader() -> None:
    reader = LogReader()
    assert reader.feed(b"\xff\xfe\x00\n" + line("Initializing session.")) != []

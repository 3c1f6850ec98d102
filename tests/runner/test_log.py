import time

import pytest

from memdiag.runner.log import LogMarker, LogParser, ScriptEvent

SECRET = "secret"
STAMP = "2026-11-21 03:23:46.474104445"
EPOCH = time.mktime(time.strptime(STAMP[:19], "%Y-%m-%d %H:%M:%S")) + 0.474104445

EVENT = b'\x1ememdiag secret {"latency_s": 0.5, "event": "run"}\n'


def line(
    message: str,
    severity: str = "I",
    place: str = "graph_transformer.cc:15 Apply",
    logger: str = "",
) -> bytes:
    return f"{STAMP} [{severity}:onnxruntime:{logger}, {place}] {message}\n".encode()


def only(chunk: bytes) -> LogMarker:
    (item,) = LogParser(SECRET).feed(chunk)
    assert isinstance(item, LogMarker)
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
    reader = LogParser(SECRET)
    near_misses = [
        "Applying 16 graph transformer(s) for level 1 for up to 10 step(s).",
        "Skipping graph transformer ConstantSharing on step 2 because it should only apply once.",
        "Not Initializing session.",
    ]
    assert reader.feed(b"".join(map(line, near_misses))) == []
    assert reader.feed(b"Initializing session.\n") == []
    assert reader.tail == ["Initializing session."]


def test_a_line_may_arrive_in_pieces() -> None:
    reader = LogParser(SECRET)
    whole = line("Saving initialized tensors.") + line("Done saving initialized tensors")
    found = [item for byte in whole for item in reader.feed(bytes([byte]))]
    assert [item.kind for item in found if isinstance(item, LogMarker)] == [
        "save_initializers",
        "initializers_saved",
    ]


def test_coloured_warnings_and_errors_are_kept_once_without_colour() -> None:
    reader = LogParser(SECRET)
    warning = b"\x1b[0;93m" + line("a weight is odd", "W").rstrip() + b"\x1b[m\n"
    assert reader.feed(warning * 3 + line("it broke", "E")) == []
    assert reader.warnings == ["a weight is odd"]
    assert reader.errors == ["it broke"]


def test_events_of_the_loader_keep_their_place_among_the_lines() -> None:
    reader = LogParser(SECRET)
    event = b'half a line\x1ememdiag secret {"latency_s": 0.5, "event": "run"}\n'
    items = reader.feed(line("Initializing session.") + event)
    assert items[1] == ScriptEvent("run", {"latency_s": 0.5})
    assert reader.tail == ["half a line"]


def test_the_last_words_of_a_crash_need_no_newline_and_are_bounded() -> None:
    reader = LogParser(SECRET)
    reader.feed(b"".join(b"line %d\n" % number for number in range(100)) + b"Aborted")
    reader.finish()
    assert reader.tail[-1] == "Aborted"
    assert len(reader.tail) <= 21


def test_bytes_that_are_no_text_do_not_stop_the_reader() -> None:
    reader = LogParser(SECRET)
    assert reader.feed(b"\xff\xfe\x00\n" + line("Initializing session.")) != []


def removing(name: str) -> bytes:
    return line(f"Removing initializer '{name}'. It is no longer used by any node.")


def ended(transformer: str, modified: int = 1) -> bytes:
    return line(f"GraphTransformer {transformer} modified: {modified} with status: OK")


def read(*lines: bytes) -> LogParser:
    reader = LogParser(SECRET)
    reader.feed(b"".join(lines))
    return reader


def test_what_goes_right_after_a_change_went_by_that_transformer() -> None:
    reader = read(
        ended("ConstantFolding"),
        removing("a"),
        line("Removing NodeArg 't'. It is no longer used by any node."),
        removing("it's b"),
        ended("NchwcTransformer"),
        removing("c"),
    )
    assert reader.evidence().removed == {
        "a": "ConstantFolding",
        "it's b": "ConstantFolding",
        "c": "NchwcTransformer",
    }
    assert reader.evidence().changed == {"ConstantFolding", "NchwcTransformer"}


def test_what_goes_otherwise_went_by_nobody_we_know() -> None:
    reader = read(
        removing("before"),
        ended("ConstantFolding", modified=0),
        removing("unchanged"),
        ended("ConstantFolding"),
        line("Applying graph transformer MatMulAddFusion on step 1.", "V"),
        removing("later"),
        ended("MatMulAddFusion"),
        line("Removing initializer 'w'. It is not used by any node and should be removed.", "W"),
    )
    assert reader.evidence().removed == {}
    assert reader.evidence().changed == {"ConstantFolding", "MatMulAddFusion"}


def test_a_thread_that_starts_meanwhile_has_no_part_in_it() -> None:
    started = line("pthread_setaffinity_np succeed for thread: 7", "V", "env.cc:9", "Default")
    assert read(ended("ConstantFolding"), started, removing("w")).evidence().removed == {
        "w": "ConstantFolding"
    }


def openvino(message: str) -> bytes:
    return line(f"[OpenVINO-EP] {message}", "I", "backend_manager.cc:9 f", "Default")


def test_the_steps_of_openvinos_provider_are_markers() -> None:
    messages = [
        "Choosing Device: CPU",
        "Model is fully supported by OpenVINO",
        "OVEP QDQ optimization pass is disabled",
        "Starting backend initialization. Creating backend Dynamic Shapes",
        "Loaded model to the plugin",
        "Backend created for graph OpenVINOExecutionProvider_OpenVINO-EP-subgraph_1_0",
    ]
    items = LogParser(SECRET).feed(b"".join(map(openvino, messages)))
    assert [item.kind for item in items if isinstance(item, LogMarker)] == [
        "provider_assigned",
        "provider_compiles",
        "provider_compiled",
    ]
    assert only(openvino("Supported subgraphs on OpenVINO: ")).kind == "provider_assigned"
    assert LogParser(SECRET).feed(line("Model is fully supported by OpenVINO")) == []


def test_what_goes_after_a_graph_was_compiled_went_to_openvino() -> None:
    compiled = openvino("Backend created for graph g")
    start = line("Initializing session.")
    assert read(start, compiled, removing("w"), removing("v")).evidence().removed == {
        "w": "OpenVINO",
        "v": "OpenVINO",
    }
    compiling = openvino("Starting backend initialization. Creating backend")
    assert read(start, compiling, removing("w")).evidence().removed == {}
    loop = line("Running graph optimizations in loop 1 time/s")
    assert read(start, compiled, loop, removing("w")).evidence().removed == {}


def test_a_name_that_goes_by_two_transformers_is_nobodys() -> None:
    both = (ended("ConstantFolding"), removing("w"), ended("NchwcTransformer"), removing("w"))
    assert read(*both).evidence().removed == {"w": ""}
    assert read(*both, ended("ConstantFolding"), removing("w")).evidence().removed == {"w": ""}


def test_names_that_are_gone_are_bounded() -> None:
    reader = read(ended("ConstantFolding"))
    for start in range(0, 100_000, 1000):
        reader.feed(b"".join(removing(str(number)) for number in range(start, start + 1000)))
    assert reader.evidence().removed_all
    reader.feed(removing("99999"))
    assert reader.evidence().removed_all
    reader.feed(removing("one more"))
    assert not reader.evidence().removed_all
    assert len(reader.evidence().removed) == 100_000
    assert not read(ended("ConstantFolding"), removing("n" * 10_000)).evidence().removed_all


ARENA = line("Creating BFCArena for Cpu with following configs: initial_chunk_size_bytes: 1048576")


def reserving(size: int) -> bytes:
    return line(f"Reserving memory in BFCArena for Cpu size: {size}")


def test_buffers_for_packed_weights_are_those_reserved_after_the_initializers() -> None:
    reader = read(
        ARENA,
        line("Saving initialized tensors."),
        reserving(8),
        line("Done saving initialized tensors"),
        reserving(640),
        reserving(64),
        line("SaveMLValueNameIndexMapping"),
        reserving(16),
        line("Done saving initialized tensors"),
        reserving(640),
        line("Session successfully initialized."),
        reserving(32),
    )
    assert reader.evidence().reserved == {640: 2, 64: 1}


def test_without_an_arena_nothing_is_known_of_buffers() -> None:
    packing = line("Done saving initialized tensors")
    assert read(packing).evidence().reserved is None
    assert read(ARENA, packing).evidence().reserved == {}
    assert read(ARENA.replace(b"Cpu", b"Cuda"), packing).evidence().reserved is None


FORGERIES = {
    "an event without the secret": '\x1ememdiag {"event": "run", "latency_s": 1}',
    "an event with another secret": '\x1ememdiag 0123 {"event": "end"}',
    "no JSON": "\x1ememdiag {",
    "a date that does not exist": "2026-99-99 99:99:99.1 [I:onnxruntime:, f] Initializing session.",
    "a year without seconds": "0000-01-01 00:00:00.1 [I:onnxruntime:, f] Initializing session.",
    "a step beyond numbers": f"{STAMP} [I:onnxruntime:, f] Applying graph transformer X on step "
    + "9" * 5000
    + ".",
    "a buffer beyond numbers": line("Done saving initialized tensors").decode()
    + line("Creating BFCArena for Cpu ").decode()
    + f"{STAMP} [I:onnxruntime:, f] Reserving memory in BFCArena for Cpu size: {'9' * 5000}",
    "an arena beyond memory": f"{STAMP} [I:o:, f] Allocated memory at {'f' * 30} to {'f' * 31}",
    "an arena that ends before it starts": f"{STAMP} [I:o:, f] Allocated memory at ff to 1",
    "control characters in a name": f"{STAMP} [I:o:, f] "
    "Applying graph transformer \x1b[2J on step 1.",
    "a long line": "x" * 1_000_000,
    "a long line of the runtime": f"{STAMP} [W:onnxruntime:, f] " + "w" * 1_000_000,
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_a_name_in_the_log_is_no_event_and_breaks_nothing(forged: str, size: int) -> None:
    reader = LogParser(SECRET)
    # As a node's name stands in a line of the runtime's.
    data = line(f"Removing node n\n{forged}' it is unused") + EVENT + line("Initializing session.")
    if size == 1 and len(data) > 100_000:
        size = 1000
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    found = [item for chunk in chunks for item in reader.feed(chunk)]
    assert [item for item in found if isinstance(item, ScriptEvent)] == [
        ScriptEvent("run", {"latency_s": 0.5})
    ]
    assert isinstance(found[-1], LogMarker)
    assert found[-1].epoch_s == pytest.approx(EPOCH)
    assert {item.kind for item in found if isinstance(item, LogMarker)} <= {
        "initialize_session",
        "initializers_saved",
    }
    assert reader.arena == []
    assert not reader.evidence().reserved
    assert all(len(text) <= 2000 for text in (*reader.tail, *reader.warnings))


def test_an_event_behind_a_long_unfinished_line_is_an_event() -> None:
    for cut in range(1, len(EVENT)):
        reader = LogParser(SECRET)
        reader.feed(b"x" * 500_000)
        reader.feed(b"y" * 500_000 + EVENT[:cut])
        assert reader.feed(EVENT[cut:]) == [ScriptEvent("run", {"latency_s": 0.5})]


def test_markers_are_bounded() -> None:
    reader = LogParser(SECRET)
    many = line("Initializing session.") * 10_000
    assert sum(len(reader.feed(many)) for _ in range(11)) == 100_000
    assert reader.feed(EVENT) != []

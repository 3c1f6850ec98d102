import time

import pytest

from memdiag.runner.log import ArenaRegion, LogMarker, LogParser, ScriptEvent
from memdiag.units import MIB

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


def openvino(message: str) -> bytes:
    return line(f"[OpenVINO-EP] {message}", "I", "backend_manager.cc:9 f", "Default")


def removing(name: str) -> bytes:
    return line(f"Removing initializer '{name}'. It is no longer used by any node.")


def ended(transformer: str, modified: int = 1) -> bytes:
    return line(f"GraphTransformer {transformer} modified: {modified} with status: OK")


def reserving(size: int) -> bytes:
    return line(f"Reserving memory in BFCArena for Cpu size: {size}")


def read(*lines: bytes) -> LogParser:
    reader = LogParser(SECRET)
    reader.feed(b"".join(lines))
    return reader


def markers(*lines: bytes) -> list[LogMarker]:
    items = LogParser(SECRET).feed(b"".join(lines))
    return [item for item in items if isinstance(item, LogMarker)]


MARKERS = {
    ended("ConstantFolding"): "transformer_end ConstantFolding None True",
    ended("ConstantFolding", 0): "transformer_end ConstantFolding None False",
    line("Applying graph transformer X on step 2.", "V"): "transformer_start X 2 None",
    # The place in the source does not matter.
    line("Initializing session.", place="elsewhere.cc:9 op()"): "initialize_session  None None",
    openvino("Model is fully supported by OpenVINO"): "provider_assigned  None None",
    openvino("Supported subgraphs on OpenVINO: "): "provider_assigned  None None",
    openvino("Starting backend initialization. Creating backend D"): "provider_compiles  None None",
    openvino("Backend created for graph O-subgraph_1_0"): "provider_compiled  None None",
}


@pytest.mark.parametrize(("text", "described"), MARKERS.items())
def test_lines_that_are_markers(text: bytes, described: str) -> None:
    (marker,) = markers(text)
    assert f"{marker.kind} {marker.name} {marker.step} {marker.modified}" == described
    assert abs(marker.epoch_s - EPOCH) < 1e-6


@pytest.mark.parametrize(
    "text",
    [
        line("Applying 16 graph transformer(s) for level 1 for up to 10 step(s)."),
        line("Skipping graph transformer ConstantSharing on step 2: it should only apply once."),
        line("Not Initializing session."),
        b"Initializing session.\n",
        openvino("Choosing Device: CPU"),
        openvino("OVEP QDQ optimization pass is disabled"),
        openvino("Loaded model to the plugin"),
        line("Model is fully supported by OpenVINO"),
    ],
)
def test_lines_that_only_look_alike_are_no_markers(text: bytes) -> None:
    assert LogParser(SECRET).feed(text) == []


def test_a_line_may_arrive_in_pieces() -> None:
    reader = LogParser(SECRET)
    whole = line("Saving initialized tensors.") + line("Done saving initialized tensors")
    items = [item for byte in whole for item in reader.feed(bytes([byte]))]
    kinds = [item.kind for item in items if isinstance(item, LogMarker)]
    assert kinds == ["save_initializers", "initializers_saved"]


def test_coloured_warnings_and_errors_are_kept_once_without_colour() -> None:
    warning = b"\x1b[0;93m" + line("a weight is odd", "W").rstrip() + b"\x1b[m\n"
    reader = read(warning * 3, line("it broke", "E"))
    assert reader.warnings == ["a weight is odd"]
    assert reader.errors == ["it broke"]


def test_events_of_the_loader_keep_their_place_among_the_lines() -> None:
    reader = LogParser(SECRET)
    items = reader.feed(line("Initializing session.") + b"half a line" + EVENT)
    assert items[1] == ScriptEvent("run", {"latency_s": 0.5})
    assert reader.tail == ["half a line"]


def test_the_last_words_of_a_crash_need_no_newline_and_are_bounded() -> None:
    reader = read(*(b"line %d\n" % number for number in range(100)), b"Aborted")
    reader.finish()
    assert reader.tail[-1] == "Aborted"
    assert len(reader.tail) <= 21


def test_bytes_that_are_no_text_do_not_stop_the_reader() -> None:
    assert markers(b"\xff\xfe\x00\n", line("Initializing session.")) != []


FOLDING, NCHWC, W = ended("ConstantFolding"), ended("NchwcTransformer"), removing("w")
BY_FOLDING = {"w": "ConstantFolding"}
NODE_ARG = line("Removing NodeArg 't'. It is no longer used by any node.")
STEP = line("Applying graph transformer X on step 1.", "V")
WARNING = line("Removing initializer 'w'. It is not used by any node.", "W")
THREAD = line("pthread_setaffinity_np succeed for thread: 7", "V", "env.cc:9", "Default")
START, LOOP = line("Initializing session."), line("Running graph optimizations in loop 1 time/s")
COMPILING = openvino("Starting backend initialization. Creating backend")
COMPILED = openvino("Backend created for graph g")

REMOVED: dict[str, tuple[list[bytes], dict[str, str]]] = {
    "after a change": (
        [FOLDING, W, NODE_ARG, removing("it's b")],
        {**BY_FOLDING, "it's b": "ConstantFolding"},
    ),
    "after another change": ([FOLDING, NCHWC, W], {"w": "NchwcTransformer"}),
    "after a thread has started": ([FOLDING, THREAD, W], BY_FOLDING),
    "before any change": ([W], {}),
    "after no change": ([ended("ConstantFolding", 0), W], {}),
    "in the next transformer": ([FOLDING, STEP, W], {}),
    "as a warning": ([FOLDING, WARNING], {}),
    "after a graph was compiled": (
        [START, COMPILED, W, removing("v")],
        {"w": "OpenVINO", "v": "OpenVINO"},
    ),
    "before it was compiled": ([START, COMPILING, W], {}),
    "after the next loop began": ([START, COMPILED, LOOP, W], {}),
    "by two transformers": ([FOLDING, W, NCHWC, W], {"w": ""}),
    "by two transformers, and again": ([FOLDING, W, NCHWC, W, FOLDING, W], {"w": ""}),
}


@pytest.mark.parametrize(("lines", "removed"), REMOVED.values(), ids=REMOVED)
def test_a_transformer_removes_what_goes_right_after_its_change(
    lines: list[bytes], removed: dict[str, str]
) -> None:
    assert read(*lines).evidence().removed == removed


def test_transformers_that_changed_the_graph_are_known() -> None:
    changed = read(FOLDING, ended("MatMulAddFusion", 0), NCHWC).evidence().changed
    assert changed == {"ConstantFolding", "NchwcTransformer"}


def test_names_that_are_gone_are_bounded() -> None:
    reader = read(FOLDING)
    for start in range(0, 100_000, 1000):
        reader.feed(b"".join(removing(str(number)) for number in range(start, start + 1000)))
    assert reader.evidence().removed_all
    reader.feed(removing("99999"))
    assert reader.evidence().removed_all
    reader.feed(removing("one more"))
    assert not reader.evidence().removed_all
    assert len(reader.evidence().removed) == 100_000
    assert not read(FOLDING, removing("n" * 10_000)).evidence().removed_all


ARENA = line("Creating BFCArena for Cpu with following configs: initial_chunk_size_bytes: 1048576")
PACKING = line("Done saving initialized tensors")


def test_buffers_for_packed_weights_are_those_reserved_after_the_initializers() -> None:
    reader = read(
        *(ARENA, line("Saving initialized tensors."), reserving(8)),
        *(PACKING, reserving(640), reserving(64)),
        *(line("SaveMLValueNameIndexMapping"), reserving(16), PACKING, reserving(640)),
        *(line("Session successfully initialized."), reserving(32)),
    )
    assert reader.evidence().reserved == {640: 2, 64: 1}


def test_without_an_arena_nothing_is_known_of_buffers() -> None:
    assert read(PACKING).evidence().reserved is None
    assert read(ARENA, PACKING).evidence().reserved == {}
    assert read(ARENA.replace(b"Cpu", b"Cuda"), PACKING).evidence().reserved is None


def extending(memory: str, requested: int) -> bytes:
    return line(
        f"Extending BFCArena for {memory}. bin_num:5 (requested) num_bytes: {requested} (actual)"
        f" rounded_bytes:{requested}"
    )


def grown(start: int, end: int) -> bytes:
    return (
        line(f"Extended allocation by {end - start} bytes.")
        + line(f"Total allocated bytes: {end - start}")
        + line(f"Allocated memory at {start:#x} to {end:#x}")
    )


def test_a_region_has_the_name_of_its_arena_and_the_request_that_opened_it() -> None:
    reader = read(
        *(extending("Cpu", 8192), grown(0x1000, 0x9000)),
        *(extending("Cuda", 128), grown(0x7000_0000, 0x7800_0000)),
        *(extending("CudaPinned", 64), grown(0xA000, 0xB000)),
    )
    cpu, cuda, pinned = reader.regions
    assert cuda == ArenaRegion("Cuda", 0x7000_0000, 0x7800_0000, 128, cuda.epoch_s)
    assert (cpu.memory, cpu.requested_bytes) == ("Cpu", 8192)
    assert abs(cuda.epoch_s - EPOCH) < 1e-6
    assert reader.host_regions == [(0x1000, 0x9000), (pinned.start, pinned.end)]


def test_a_region_without_a_name_before_it_is_not_the_last_arenas() -> None:
    reader = read(extending("Cuda", 128), grown(0x1000, 0x2000), grown(0x3000, 0x4000))
    assert [region.memory for region in reader.regions] == ["Cuda", ""]
    assert reader.regions[1].requested_bytes is None
    assert reader.host_regions == [(0x3000, 0x4000)]


def test_what_a_device_reserves_is_no_buffer_of_the_host() -> None:
    reader = read(
        ARENA,
        line("Done saving initialized tensors"),
        reserving(640),
        line("Reserving memory in BFCArena for Cuda size: 1024"),
        line("Reserving memory in BFCArena for CudaPinned size: 64"),
    )
    assert reader.evidence().reserved == {640: 1}
    assert [(size.memory, size.bytes) for size in reader.device_reservations] == [("Cuda", 1024)]


def tensorrt(message: str, severity: str = "W") -> bytes:
    return line(f"[2026-11-21 03:23:46    INFO] {message}", severity, "tensorrt.h:83 log")


def test_what_tensorrt_says_of_its_memory_is_kept_and_is_no_warning() -> None:
    init = "[MemUsageChange] Init CUDA: CPU +219, GPU +0, now: CPU 242, GPU 7633 (MiB)"
    engine = (
        "[MemUsageChange] TensorRT-managed allocation in engine deserialization:"
        " CPU +0, GPU +47, now: CPU 0, GPU 47 (MiB)"
    )
    handle = "[MemUsageChange] Init cuBLAS/cuBLASLt: CPU -1, GPU +8, now: CPU 538, GPU 1744 (MiB)"
    reader = read(tensorrt(init), tensorrt(engine), tensorrt(handle))
    assert [
        (step.name, step.host_added_bytes, step.device_added_bytes, step.device_bytes)
        for step in reader.tensorrt_steps
    ] == [
        ("Init CUDA", 219 * MIB, 0, 7633 * MIB),
        ("TensorRT-managed allocation in engine deserialization", 0, 47 * MIB, 47 * MIB),
        ("Init cuBLAS/cuBLASLt", -1 * MIB, 8 * MIB, 1744 * MIB),
    ]
    assert reader.tensorrt_steps[0].host_bytes == 242 * MIB
    assert reader.warnings == []


@pytest.mark.parametrize(
    "message",
    [
        "[MemUsageSnapshot] Init CUDA: CPU +1, GPU +1, now: CPU 1, GPU 1 (MiB)",
        "[MemUsageChange] Init CUDA: CPU +1, GPU +1, now: CPU 1, GPU 1 (GiB)",
        "[MemUsageChange] Init CUDA: CPU +1, GPU +1",
        "[MemUsageChange] : CPU +1, GPU +1, now: CPU 1, GPU 1 (MiB)",
        f"[MemUsageChange] Init CUDA: CPU +1, GPU +{'9' * 99}, now: CPU 1, GPU 1 (MiB)",
    ],
)
def test_other_warnings_of_tensorrt_are_warnings(message: str) -> None:
    reader = read(tensorrt(message))
    assert reader.tensorrt_steps == []
    assert len(reader.warnings) == 1


def test_the_steps_of_tensorrt_are_bounded() -> None:
    step = tensorrt("[MemUsageChange] a: CPU +1, GPU +1, now: CPU 1, GPU 1 (MiB)")
    assert len(read(*[step] * 150).tensorrt_steps) == 100


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
    items = [item for chunk in chunks for item in reader.feed(chunk)]
    assert [item for item in items if isinstance(item, ScriptEvent)] == [
        ScriptEvent("run", {"latency_s": 0.5})
    ]
    assert isinstance(items[-1], LogMarker)
    assert items[-1].epoch_s == pytest.approx(EPOCH)
    assert {item.kind for item in items if isinstance(item, LogMarker)} <= {
        "initialize_session",
        "initializers_saved",
    }
    assert reader.regions == []
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

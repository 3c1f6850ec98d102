from typing import Any

import msgspec
import pytest

from memdiag.records.attribution import Backing, Copy
from memdiag.records.run import ProgramFinding, ProgramRun
from memdiag.reports.xray import xray_insight
from tests.programs.rules.records import (
    MIB,
    PID,
    WEIGHTS,
    copy,
    creation_phases,
    findings,
    memory,
    model,
    process,
    program,
    session,
    xray,
)


def detected(run: ProgramRun) -> list[ProgramFinding]:
    return findings("duplicate-session", run)


def test_the_same_model_twice_costs_one_session() -> None:
    (found,) = detected(program(session(1), session(2)))
    assert found.sessions == (1, 2)
    assert found.bytes == WEIGHTS + MIB  # and the arena
    assert "m.onnx is loaded 2 times in process 10, created at app.py:1, app.py:2" in found.message
    assert "The options are the same" in found.message
    assert "functools.cache" in found.remedy


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param({}, {"model": model("/models/other.onnx")}, id="another model"),
        pytest.param({}, {"pid": 11}, id="another process"),
        pytest.param({"released_s": 40.0}, {"created_s": 50.0}, id="one after the other"),
        pytest.param({"released_s": 3.0}, {"created_s": 1.7}, id="one replaces the other"),
        pytest.param({}, {"providers": (), "error": "no such file"}, id="a failed creation"),
        pytest.param(
            {"memory": memory(MIB * 9 // 10, slack=0)},
            {"memory": memory(MIB * 9 // 10, slack=0)},
            id="a small model",
        ),
        pytest.param(
            {"memory": memory(mapped=WEIGHTS, slack=0)},
            {"memory": memory(mapped=WEIGHTS, slack=0)},
            id="mapped weights",
        ),
    ],
)
def test_no_duplicates(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert detected(program(session(1, **first), session(2, **second))) == []


def test_a_session_that_is_released_is_a_duplicate_until_then() -> None:
    (found,) = detected(program(session(1, released_s=4.0), session(2)))
    assert found.sessions == (1, 2)


def test_bytes_are_a_model_too() -> None:
    content = model(None, digest="abc")
    (found,) = detected(program(session(1, model=content), session(2, model=content)))
    assert "a model of 50 MiB from bytes is loaded 2 times" in found.message
    other = model(None, digest="def")
    assert detected(program(session(1, model=content), session(2, model=other))) == []


def test_bytes_of_a_file_are_the_model_of_the_file() -> None:
    by_path = model("/models/m.onnx")
    content = model(None, digest="abc", same_file="/models/m.onnx")
    (found,) = detected(program(session(1, model=content), session(2, model=by_path)))
    assert "m.onnx is loaded 2 times in process 10" in found.message
    assert "(1 by path, 1 from bytes of the same content)" in found.message
    assert found.bytes == WEIGHTS + MIB
    other = model(None, digest="abc")
    assert detected(program(session(1, model=other), session(2, model=by_path))) == []


@pytest.mark.parametrize(
    ("options", "providers", "size", "message", "remedy"),
    [
        (
            {"intra_op_num_threads": "4"},
            ("CPUExecutionProvider",),
            WEIGHTS + MIB,
            "intra_op_num_threads (default; 4)",
            "choose one setting",
        ),
        (
            {},
            ("CUDAExecutionProvider", "CPUExecutionProvider"),
            None,
            "providers (CPUExecutionProvider; CUDAExecutionProvider, CPUExecutionProvider)",
            "keep one for each setting that is needed",
        ),
    ],
)
def test_options_that_differ_are_named(
    options: dict[str, str],
    providers: tuple[str, ...],
    size: int | None,
    message: str,
    remedy: str,
) -> None:
    second = session(2, options=options, providers=providers)
    (found,) = detected(program(session(1), second))
    assert found.bytes == size
    assert message in found.message
    assert remedy in found.remedy


def test_sessions_of_a_library_need_one_of_its_objects() -> None:
    (found,) = detected(program(session(1, library="ocr"), session(2, library="ocr")))
    assert found.remedy.startswith("Keep one object of ocr")


@pytest.mark.parametrize(
    ("changes", "size", "text"),
    [
        pytest.param(
            {},
            WEIGHTS,
            "would save at least 50 MiB (weights in the file; no X-ray measured the copies).",
            id="nothing was measured",
        ),
        pytest.param(
            {"phases": creation_phases(120 * MIB)},
            120 * MIB,
            "would save about 120 MiB (private memory that the creation kept; no X-ray measured"
            " it).",
            id="the creation kept more",
        ),
        pytest.param(
            {"phases": creation_phases(20 * MIB)},
            WEIGHTS,
            "would save at least 50 MiB (weights",
            id="the creation used memory that was there",
        ),
        pytest.param(
            {"phases": creation_phases(120 * MIB), "shared_with": (3,)},
            WEIGHTS,
            "would save at least 50 MiB (weights",
            id="another session was created meanwhile",
        ),
    ],
)
def test_without_an_xray_sizes_are_estimates(changes: dict[str, Any], size: int, text: str) -> None:
    unmeasured = {"memory": None, **changes}
    (found,) = detected(program(session(1, **unmeasured), session(2, **unmeasured)))
    assert found.bytes == size
    assert text in found.message


def test_what_an_xray_measured_is_no_estimate() -> None:
    phases = creation_phases(120 * MIB)
    (found,) = detected(program(session(1, phases=phases), session(2, phases=phases)))
    assert found.message.endswith("One session would save at least 51 MiB (weights and arenas).")
    (found,) = detected(program(session(1, phases=phases, memory=None), session(2)))
    assert found.bytes == WEIGHTS + MIB  # the smaller one
    assert found.message.endswith("would save about 51 MiB (no X-ray measured all of them).")


@pytest.mark.parametrize(
    ("is_kept", "addresses", "saved"),
    [
        (False, (1, 1), WEIGHTS),
        (True, (1, 1), WEIGHTS),
        (True, (1, 2), 2 * WEIGHTS + 1000),
    ],
)
def test_bytes_of_one_object_stay_with_one_session(
    is_kept: bool, addresses: tuple[int, ...], saved: int
) -> None:
    made = model(None, digest="a", weight_bytes=None, is_kept=is_kept)
    sessions = [
        session(
            number,
            model=msgspec.structs.replace(made, address=address),
            memory=memory(slack=0),
        )
        for number, address in enumerate(addresses, 1)
    ]
    (found,) = detected(program(*sessions))
    assert found.bytes == saved


def test_the_session_by_path_stays() -> None:
    from_bytes = model(
        None, digest="a", weight_bytes=None, is_kept=True, same_file="/models/m.onnx"
    )
    sessions = [
        session(number, model=made, memory=memory(slack=0))
        for number, made in ((1, model()), (2, from_bytes))
    ]
    (found,) = detected(program(*sessions))
    assert found.bytes == 2 * WEIGHTS + 1000
    assert "1 by path, 1 from bytes" in found.message
    assert "Keep one that does not keep the bytes" in found.remedy


@pytest.mark.parametrize(("addresses", "saved"), [((1, 1), WEIGHTS), ((1, 2), 2 * WEIGHTS + 1000)])
def test_without_an_xray_the_bytes_of_each_session_are_counted(
    addresses: tuple[int, ...], saved: int
) -> None:
    made = model(None, digest="a", is_kept=True)
    sessions = [
        session(number, model=msgspec.structs.replace(made, address=address), memory=None)
        for number, address in enumerate(addresses, 1)
    ]
    (found,) = detected(program(*sessions))
    assert found.bytes == saved


def test_workers_with_the_same_duplicates_have_one_finding() -> None:
    workers = [session(2 * i + j, pid=i, created_at=f"app.py:{j}") for i in (1, 2) for j in (0, 1)]
    (found,) = detected(program(*workers))
    assert found.sessions == (2, 3, 4, 5)
    assert found.bytes == 2 * (WEIGHTS + MIB)
    assert "4 times in processes 1, 2" in found.message


def watched(*copies: Copy, arenas: int = 2) -> ProgramRun:
    return program(processes=(process(),), xrays=(xray(PID, *copies, arenas=arenas),))


def test_an_xray_proves_several_sessions_of_a_process_that_is_watched() -> None:
    twice = [copy(weight, address) for weight in "ab" for address in (1, 2)]
    (found,) = detected(watched(*twice))
    assert found.bytes == 20 * MIB
    assert (
        "20 MiB in process 10 are further copies of nearly all weights of m.onnx" in found.message
    )
    assert "(up to 2 copies in the same layout, a sign of" in found.message


def test_sessions_without_memory_in_arenas_are_several_by_the_weights_that_no_kernel_packs() -> (
    None
):
    packed = [copy(weight, at, layout="packed", kind="packed") for weight in "ab" for at in (1, 2)]
    biases = [copy("bias", address, size=1024) for address in (3, 4)]
    for arenas in (0, 1):  # none in the session; it never ran
        (found,) = detected(watched(*packed, *biases, arenas=arenas))
        assert found.bytes == 20 * MIB + 1024
        # Two nodes pack each weight of a single session, or two biases are equal.
        assert detected(watched(*packed, biases[0], arenas=arenas)) == []
        equal = [copy("bias", at, size=1024, weights=("b", "c")) for at in (3, 4)]
        assert detected(watched(*packed, *equal, arenas=arenas)) == []


def test_processes_have_one_finding_with_pages_that_forks_share_once() -> None:
    twice = [copy(weight, address, private_bytes=MIB) for weight in "ab" for address in (1, 2)]
    xrays = tuple(xray(pid, *twice, arenas=2) for pid in (11, 12))
    workers = [process(pid=pid, parent=PID) for pid in (11, 12)]
    (found,) = detected(program(processes=(process(), *workers), xrays=xrays))
    assert "in processes 11, 12 are further copies" in found.message
    assert found.bytes == 2 * 2 * MIB + 2 * 9 * MIB
    others = [process(pid=11), process(pid=12, parent=2)]
    (found,) = detected(program(processes=(process(), *others), xrays=xrays))
    assert found.bytes == 2 * 20 * MIB


def test_an_xray_of_a_process_has_the_finding_of_watch() -> None:
    twice = [copy(weight, address) for weight in "ab" for address in (1, 2)]
    run = watched(*twice)
    (found,) = detected(run)
    (text,) = xray_insight(run.xrays[0].attribution).advice
    evidence = "further copies of nearly all weights of m.onnx (up to 2 copies in the same layout"
    assert evidence in found.message
    assert evidence in text
    assert text.endswith(found.remedy)
    once = watched(copy("a", 1), copy("b", 2))
    assert xray_insight(once.xrays[0].attribution).advice == ()


def test_further_copies_alone_prove_no_session() -> None:
    twice = [copy(weight, address) for weight in "ab" for address in (1, 2)]
    for_nodes = [copy(w, at, layout="packed", kind="packed") for w in "ab" for at in (1, 2)]
    assert detected(watched(*for_nodes, arenas=1)) == []
    freed = [copy(weight, 3, in_use=False) for weight in "ab"]
    assert detected(watched(copy("a", 1), copy("b", 2), *freed)) == []
    packed = [copy(weight, 4, layout="packed", kind="packed") for weight in "ab"]
    assert detected(watched(copy("a", 1), copy("b", 2), *packed)) == []
    mapped = Backing(kind="file", file="m.data", offset=0)
    assert detected(watched(*(copy(w, at, backing=mapped) for w in "ab" for at in (1, 2)))) == []
    recorded = program(session(), xrays=(xray(PID, *twice, arenas=2),))
    assert detected(recorded) == []  # its sessions are known

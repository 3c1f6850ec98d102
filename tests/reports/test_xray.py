import io
import re

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import MAX_LINES, Detail
from memdiag.records.attribution import (
    Attribution,
    Copy,
    DeviceArena,
    Owner,
    OwnerKind,
    SearchedModel,
)
from memdiag.reports import profile as profile_report
from memdiag.reports import xray
from memdiag.reports.xray.memory_owners import owner_rows
from memdiag.units import MIB
from tests.reports import attributions, profiles, tied_xray


def printed(
    attribution: Attribution,
    *,
    detail: Detail = Detail.ALL,
    width: int = 80,
    encoding: str = "utf-8",
) -> list[str]:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal = Console(file=out, width=width)
    xray.REPORT.print_summary(attribution, terminal, detail=detail)
    out.seek(0)
    return out.read().splitlines()


def test_the_first_line_answers_and_quiet_adds_only_what_to_do() -> None:
    answer, *advice = printed(tied_xray.attribution(), detail=Detail.ANSWER, width=160)
    assert answer == (
        "process 4242: the largest owner is weights, with 1.47 of 1.54 GiB; 1,000 MiB are copies of"
        " weights in another layout, besides the original."
    )
    assert advice
    assert advice[0].startswith("What to do 1,000 MiB are copies")
    assert printed(tied_xray.attribution(), width=160)[0] == answer


def test_weights_with_several_copies_are_listed_and_the_others_are_summed() -> None:
    lines = printed(tied_xray.attribution(), width=100)
    start = next(i for i, line in enumerate(lines) if line.startswith("weight "))
    rows = [" ".join(line.split()) for line in lines[start : start + 6]]
    assert rows == [
        "weight copies MiB backing made by",
        "model.shared.weight +1 more 3 1,500",
        "original 1 500 anonymous parse",
        "transposed (perm 1,0) 1 500 anonymous ConstantFolding · lm/Transpose",
        "packed fp32 1 500 anonymous prepack · lm/MatMul",
        "",
    ]
    single = "13 weights with a single copy each: 8.0 MiB (original 6.0 MiB, freed 2.0 MiB)."
    assert single in lines
    alone = msgspec.structs.replace(tied_xray.attribution(), copies=copies(1, 12))
    text = "\n".join(printed(alone, width=120))
    assert "made by" not in text
    assert "12 weights with a single copy each, original 12 MiB." in text


def copies(count: int, weights: int) -> tuple[Copy, ...]:
    return tuple(
        attributions.copy("original", MIB, f"w{index:02}")
        for index in range(weights)
        for _ in range(count)
    )


def test_weights_with_several_copies_are_listed_on_request() -> None:
    record = msgspec.structs.replace(tied_xray.attribution(), copies=copies(2, 9))
    usual = printed(record, detail=Detail.USUAL)
    assert len(usual) <= MAX_LINES
    assert not any(line.startswith("w0") for line in usual)
    assert usual[-1] == "With -v: copies of weights, remarks."
    lines = printed(record)
    assert sum(line.startswith("w0") for line in lines) == 9
    assert not any("single copy" in line for line in lines)


def test_arenas_of_devices_are_beside_the_resident_memory() -> None:
    arena = DeviceArena(device="Cuda", used_bytes=300 * MIB, slack_bytes=212 * MIB)
    plain, with_arena = (
        " ".join(" ".join(printed(attributions.attribution(device_arenas=arenas))).split())
        for arenas in ((), (arena,))
    )
    assert "in the memory of Cuda" not in plain
    assert "in the memory of Cuda, which is not part of the resident memory: 300 MiB in use" in (
        with_arena
    )


def test_models_have_a_row_each_and_weights_name_theirs() -> None:
    one, two = (SearchedModel(name=name, weight_bytes=4 * MIB) for name in ("a.onnx", "b.onnx"))
    absent = SearchedModel(name="c.onnx", weight_bytes=MIB)
    shared = attributions.copy("original", 2 * MIB, "s", models=(0, 1))
    mine = attributions.copy("original", 3 * MIB, "w", models=(0,))
    record = attributions.attribution(models=(one, two, absent))
    record = msgspec.structs.replace(record, copies=(mine, mine, shared))
    lines = [" ".join(line.split()) for line in printed(record)]
    start = lines.index("model weights copies size of copies ÷ weights shared")
    assert lines[start + 1 : start + 3] == [
        "a.onnx 4.0 MiB 3 8.0 MiB 2.0 × 2.0 MiB",
        "b.onnx 4.0 MiB 1 2.0 MiB 0.5 × 2.0 MiB",
    ]
    assert "No weight was found of: c.onnx." in lines
    assert "a.onnx: w 2 6.0" in lines
    apart = [
        " ".join(line.split()) for line in printed(msgspec.structs.replace(record, copies=(mine,)))
    ]
    assert "model weights copies size of copies ÷ weights" in apart
    alone = msgspec.structs.replace(record, models=(one,), copies=copies(2, 1))
    assert not any(line.startswith("model ") for line in printed(alone))


def test_long_names_are_shortened_in_the_middle_and_nothing_is_wider_than_the_terminal() -> None:
    record = tied_xray.attribution()
    name = "/model/" + "decoder/" * 30 + "q_proj.weight"
    copies = tuple(
        msgspec.structs.replace(copy, weights=(name, "b"), made_by=f"prepack · {name}")
        for copy in record.copies
    )
    record = msgspec.structs.replace(record, copies=copies)
    lines = printed(record)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert re.search(r"^/model/\S*…\S*ht \+1 more +16 ", text, re.M)
    wide = printed(record, width=130)
    makers = [line for line in wide if line.endswith("r/q_proj.weight")]
    assert len(makers) == 5
    assert all("  prepack · /model/" in line and "…" in line for line in makers)


def test_a_process_without_a_weight_says_what_to_check() -> None:
    model = SearchedModel(name="a.onnx", weight_bytes=MIB)
    record = msgspec.structs.replace(tied_xray.attribution(), copies=(), models=(model,))
    lines = printed(record, width=160)
    check = "No weight was found. Check that the process runs the model that was given."
    assert any(line.endswith(check) for line in lines)
    assert not any("byte for byte" in line for line in lines)
    none = msgspec.structs.replace(record, models=(), indistinct=())
    assert "No weight was searched for." in printed(none, width=160)


@pytest.mark.parametrize(
    ("kind", "command"), [("runtime_libraries", "leak"), ("other_heap", "watch")]
)
def test_only_a_process_with_onnxruntime_is_sent_to_leak(kind: OwnerKind, command: str) -> None:
    owner = Owner(kind=kind, name="", bytes=MIB, private_bytes=MIB)
    lines = printed(attributions.attribution(owners=(owner,), resident_bytes=MIB))
    text = " ".join(" ".join(lines).split())
    assert f"memdiag {command} 42 tells whether it grows." in text


def test_an_incomplete_xray_says_so_with_its_notes() -> None:
    record = msgspec.structs.replace(
        tied_xray.attribution(), partial=True, notes=("it ended\x1b[31m",)
    )
    lines = printed(record, width=160)
    assert any(line.endswith(" is identified; not all memory could be read.") for line in lines)
    assert r"Note: it ended\x1b[31m." in lines
    assert not any("could be read" in line for line in printed(tied_xray.attribution()))


def test_an_ascii_terminal_gets_ascii() -> None:
    lines = printed(tied_xray.attribution(), encoding="ascii")
    assert any("original 506 MiB | transposed 500" in line for line in lines)


def test_nothing_depends_on_colour() -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=80, force_terminal=True, color_system=None)
    xray.REPORT.print_summary(tied_xray.attribution(), terminal, detail=Detail.ALL)
    assert [line.rstrip() for line in out.getvalue().splitlines()] == printed(
        tied_xray.attribution()
    )


def test_a_profile_shows_its_xray_before_its_spans_and_its_runs() -> None:
    out = io.StringIO()
    profile_report.REPORT.print_summary(
        tied_xray.with_attribution(), Console(file=out, width=80), detail=Detail.ALL
    )
    text = out.getvalue()
    order = ("owner (steady)", "is identified.", "ConstantFolding, step 1:", "Latency median")
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    without = io.StringIO()
    profile_report.REPORT.print_summary(
        profiles.tied_if(), Console(file=without, width=80), detail=Detail.ALL
    )
    assert "owner (steady)" not in without.getvalue()


def test_a_hostile_name_of_an_allocator_is_printed_as_text() -> None:
    owners = [Owner(kind="other_heap", name="", bytes=9 * MIB, private_bytes=9 * MIB)]
    record = attributions.attribution(
        owners=tuple(owners), resident_bytes=9 * MIB, allocator="\x1b]0;title\x07"
    )
    rows = owner_rows(record, trimmed_bytes=MIB)
    assert not any("\x1b" in text for row in rows for text in (row.sentence, row.parts))
    assert any("title" in row.sentence for row in rows)

"""An X-ray of a process on a terminal, beyond what the approved summary shows."""

import re

import pytest

from memdiag.detail import MAX_LINES, Detail
from memdiag.records.attribution import Copy, OwnerKind, SearchedModel
from memdiag.units import MIB
from tests.reports import attributions, tied_xray
from tests.reports.rendering import printed, replaced, words

TIED = tied_xray.attribution()


def copies(count: int, weights: int) -> tuple[Copy, ...]:
    """Return `count` copies of 1 MiB of each of `weights` weights."""
    return tuple(
        attributions.copy("original", MIB, f"w{index:02}")
        for index in range(weights)
        for _ in range(count)
    )


def test_weights_with_a_single_copy_each_are_summed() -> None:
    text = printed(replaced(TIED, copies=copies(1, 12)), width=120)
    assert "made by" not in text
    assert "12 weights with a single copy each, original 12 MiB." in text


def test_weights_with_several_copies_are_listed_on_request() -> None:
    record = replaced(TIED, copies=copies(2, 9))
    usual = printed(record, detail=Detail.USUAL).splitlines()
    assert len(usual) <= MAX_LINES
    assert not any(line.startswith("w0") for line in usual)
    assert usual[-1] == "With -v: copies of weights, remarks."
    lines = printed(record).splitlines()
    assert sum(line.startswith("w0") for line in lines) == 9
    assert not any("single copy" in line for line in lines)


def test_long_names_are_shortened_in_the_middle_and_nothing_is_wider_than_the_terminal() -> None:
    name = "/model/" + "decoder/" * 30 + "q_proj.weight"
    named = {"weights": (name, "b"), "made_by": f"prepack · {name}"}
    record = replaced(TIED, copies=tuple(replaced(copy, **named) for copy in TIED.copies))
    text = printed(record)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^/model/\S*…\S*ht \+1 more +16 ", text, re.M)
    wide = printed(record, width=130).splitlines()
    makers = [line for line in wide if line.endswith("r/q_proj.weight")]
    assert len(makers) == 5
    assert all("  prepack · /model/" in line and "…" in line for line in makers)


def test_a_process_without_a_weight_says_what_to_check() -> None:
    model = SearchedModel(name="a.onnx", weight_bytes=MIB)
    record = replaced(TIED, copies=(), models=(model,))
    check = "No weight was found. Check that the process runs the model that was given."
    assert check in words(record)
    assert "byte for byte" not in words(record)
    assert "No weight was searched for." in words(replaced(record, models=(), indistinct=()))


@pytest.mark.parametrize(
    ("kind", "command"), [("runtime_libraries", "leak"), ("other_heap", "watch")]
)
def test_only_a_process_with_onnxruntime_is_sent_to_leak(kind: OwnerKind, command: str) -> None:
    owners = (attributions.owner(kind, "", MIB),)
    record = attributions.attribution(owners=owners, resident_bytes=MIB)
    assert f"memdiag {command} 42 tells whether it grows." in words(record)


def test_an_incomplete_xray_says_so_with_its_notes() -> None:
    lines = printed(replaced(TIED, partial=True, notes=("it ended\x1b[31m",)), width=160)
    assert " is identified; not all memory could be read.\n" in lines
    assert "\nNote: it ended\\x1b[31m.\n" in lines
    assert "could be read" not in printed(TIED)

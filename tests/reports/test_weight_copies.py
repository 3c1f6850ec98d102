"""What is told of the copies of weights, on a record whose figures are easy to add up."""

from memdiag.records.attribution import Backing
from memdiag.records.profile import PhaseAttribution
from memdiag.reports.profile.phases import copies_by_phase
from memdiag.reports.xray import xray_text
from memdiag.reports.xray.weight_copies import (
    rest_summary,
    unlocated_sentences,
    verification_summary,
)
from memdiag.units import MIB
from tests.reports import profiles
from tests.reports.attributions import SHARED, attribution, copy
from tests.reports.rendering import replaced

HOSTILE = "</td><img src=x onerror=alert(1)>[red]|`w`"
XRAY = attribution(*SHARED)


def test_the_worst_weight_comes_first_with_all_its_copies() -> None:
    built = xray_text(XRAY)
    assert built.first == "shared: 2 copies, 129 MiB"
    assert [row.title for row in built.weights] == ["shared", "b"]
    assert [(row.label, row.count, row.size) for row in built.weights[0].copies] == [
        ("original", 1, "64 MiB"),
        ("packed fp32", 1, "65 MiB"),
    ]
    assert xray_text(attribution()).first == "no weight was found"


def test_what_is_special_about_a_copy_is_said() -> None:
    freed = copy("original", 4 * MIB, in_use=False, verified_bytes=1 * MIB)
    resident = {"resident_bytes": 2 * MIB, "verified_bytes": 2 * MIB, "made_by": None}
    backing = Backing(kind="file", file="w.data", offset=0)
    mapped = copy("original", 8 * MIB, "m", backing=backing, **resident)
    fused = copy("reordered_nchwc", 2 * MIB, "f", kind="fused")
    built = xray_text(attribution(freed, mapped, fused))
    rows = {row.title: row.copies[0] for row in built.weights}
    assert (rows["shared"].is_freed, rows["shared"].verified) == (True, "25 %")
    assert (rows["m"].backing, rows["m"].resident, rows["m"].verified) == (
        *("file:w.data", "2.0 MiB", "by its mapping"),
    )
    assert rows["f"].label == "fused (reordered nchwc)"
    assert any(remark.startswith("1 copy (4.0 MiB) was freed") for remark in built.remarks)


def test_equal_weights_are_one_row_that_counts_its_names() -> None:
    equal = replaced(copy("original", 64 * MIB), weights=("a", "b", "c"))
    assert xray_text(attribution(equal)).weights[0].title == "a +2 more"


def test_weights_that_cannot_be_told_apart_are_counted() -> None:
    told = "Not located: {}: smaller than 256 bytes each. Other owners contain their memory."
    assert unlocated_sentences(XRAY) == (told.format("3 weights, 24 B"),)
    twice = replaced(XRAY, indistinct=XRAY.indistinct * 2)
    assert unlocated_sentences(twice) == (told.format("6 weights, 48 B"),)


def test_what_was_not_compared_is_padding() -> None:
    part = copy("packed_fp32", 4 * MIB, verified_bytes=3 * MIB)
    full = verification_summary(attribution(part))
    assert full.endswith("(0 of 1 copies byte for byte); the rest is padding of the layout.")
    assert "byte for byte" in verification_summary(XRAY)


def test_what_is_not_listed_is_summed_up() -> None:
    assert rest_summary(xray_text(XRAY).weights) == "2 weights more: 3 copies, 137 MiB"
    assert rest_summary(()) == ""


def test_copies_that_come_and_go_are_told_by_phase() -> None:
    taken = attribution(*SHARED, copy("original", 4 * MIB, "gone", in_use=False))
    prepack = PhaseAttribution(phase="prepack", attribution=taken)
    (row,) = copies_by_phase(replaced(profiles.tied_if(), phase_attributions=(prepack,)))
    assert row == "copies after prepack: 3, original 72 MiB, packed 65 MiB"

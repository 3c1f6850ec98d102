"""What is told of an X-ray, on a record whose figures are easy to add up."""

import io

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records.attribution import Attribution, Backing
from memdiag.records.profile import PhaseAttribution
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.phases import copies_by_phase
from memdiag.reports.xray import REPORT as XRAY_REPORT
from memdiag.reports.xray import xray_text
from memdiag.reports.xray.weight_copies import (
    rest_summary,
    unlocated_sentences,
    verification_summary,
)
from memdiag.units import MIB
from tests.reports import profiles
from tests.reports.attributions import SHARED, attribution, copy

HOSTILE = "</td><img src=x onerror=alert(1)>[red]|`w`"


def test_the_worst_weight_comes_first_with_all_its_copies() -> None:
    built = xray_text(attribution(*SHARED))
    assert built.first == "shared: 2 copies, 129 MiB"
    assert [row.title for row in built.weights] == ["shared", "b"]
    assert [(row.label, row.count, row.size) for row in built.weights[0].copies] == [
        ("original", 1, "64 MiB"),
        ("packed fp32", 1, "65 MiB"),
    ]


@pytest.mark.parametrize(
    ("share", "text"), [(0.99996, "99.9 %"), (1.0, "100 %"), (0.5, "50 %"), (0.0001, "< 0.1 %")]
)
def test_a_share_is_never_rounded_up(share: float, text: str) -> None:
    built = xray_text(attribution(*SHARED, named_share=share))
    assert built.share == f"{text} of the memory above the baseline is identified"


def test_without_a_baseline_the_share_is_of_all() -> None:
    built = xray_text(attribution(*SHARED, baseline_bytes=None))
    assert built.share.endswith("of the resident memory is identified")


def test_owners_of_a_kind_are_added_up_and_sum_to_the_whole() -> None:
    built = xray_text(attribution(*SHARED))
    sizes = {row.label: row.size_bytes for row in built.owners}
    assert sizes["Python"] == 90 * MIB
    assert sum(sizes.values()) == 237 * MIB
    assert [row.label for row in built.owners] == ["weights", "Python", "other heap", "unnamed"]


def test_what_is_special_about_a_copy_is_said() -> None:
    freed = copy("original", 4 * MIB, in_use=False, verified_bytes=1 * MIB)
    mapped = copy(
        "original",
        8 * MIB,
        "m",
        resident_bytes=2 * MIB,
        verified_bytes=2 * MIB,
        backing=Backing(kind="file", file="w.data", offset=0),
        made_by=None,
    )
    fused = copy("reordered_nchwc", 2 * MIB, "f", kind="fused")
    built = xray_text(attribution(freed, mapped, fused))
    rows = {row.title: row.copies[0] for row in built.weights}
    assert rows["shared"].is_freed
    assert rows["shared"].verified == "25 %"
    assert (rows["m"].backing, rows["m"].resident, rows["m"].verified) == (
        "file:w.data",
        "2.0 MiB",
        "by its mapping",
    )
    assert rows["f"].label == "fused (reordered nchwc)"
    assert any(remark.startswith("1 copy (4.0 MiB) was freed") for remark in built.remarks)


def test_equal_weights_are_one_row_that_counts_its_names() -> None:
    one = msgspec.structs.replace(copy("original", 64 * MIB), weights=("a", "b", "c"))
    assert xray_text(attribution(one)).weights[0].title == "a +2 more"


def test_weights_that_cannot_be_told_apart_are_counted() -> None:
    assert unlocated_sentences(attribution(*SHARED)) == (
        "Not located: 3 weights, 24 B: smaller than 256 bytes each. Other owners contain their"
        " memory.",
    )
    twice = attribution(*SHARED).indistinct * 2
    assert unlocated_sentences(attribution(*SHARED, indistinct=twice)) == (
        "Not located: 6 weights, 48 B: smaller than 256 bytes each. Other owners contain their"
        " memory.",
    )
    partial = xray_text(attribution(*SHARED, partial=True))
    assert partial.share.endswith("is identified; not all memory could be read")


def test_what_was_not_compared_is_padding() -> None:
    part = copy("packed_fp32", 4 * MIB, verified_bytes=3 * MIB)
    full = verification_summary(attribution(part))
    assert full.endswith("(0 of 1 copies byte for byte); the rest is padding of the layout.")
    assert "byte for byte" in verification_summary(attribution(*SHARED))


def test_no_copy_is_said_to_be_none() -> None:
    assert xray_text(attribution()).first == "no weight was found"


def test_what_is_not_listed_is_summed_up() -> None:
    built = xray_text(attribution(*SHARED))
    assert rest_summary(built.weights) == "2 weights more: 3 copies, 137 MiB"
    assert rest_summary(()) == ""


def test_copies_that_come_and_go_are_told_by_phase() -> None:
    taken = attribution(*SHARED, copy("original", 4 * MIB, "gone", in_use=False))
    profile = msgspec.structs.replace(
        profiles.tied_if(),
        phase_attributions=(PhaseAttribution(phase="prepack", attribution=taken),),
    )
    (row,) = copies_by_phase(profile)
    assert row == "copies after prepack: 3, original 72 MiB, packed 65 MiB"


@pytest.fixture
def hostile() -> Attribution:
    one = copy("original", 64 * MIB, HOSTILE, made_by=HOSTILE)
    return attribution(one, one)


def test_names_stay_text_in_every_report(hostile: Attribution) -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), attribution=hostile)
    page = REPORT.render(profile, "html").decode()
    assert "<img src=x" not in page.replace("\\u003cimg", "")
    assert "&lt;img src=x" in page
    stream = io.StringIO()
    REPORT.print_summary(profile, Console(file=stream, width=80), detail=Detail.ALL)
    assert "[red]" in stream.getvalue()
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    assert "### Owners of the memory" in REPORT.render(profile, "markdown").decode()


def test_an_xray_of_its_own_is_shown_and_quiet_is_the_answer() -> None:
    stream = io.StringIO()
    XRAY_REPORT.print_summary(
        attribution(*SHARED), Console(file=stream, width=80), detail=Detail.ALL
    )
    text = stream.getvalue()
    answer = " ".join(text.split("\n\n")[0].split())
    assert answer.endswith(
        "of 237 MiB; 64 MiB are copies of weights in another layout, besides the original."
    )
    assert " ".join(text.split()).count("Python 90 37.9 % interpreter") == 1
    assert max(map(len, text.splitlines())) <= 80
    quiet = io.StringIO()
    shown = attribution(*SHARED)
    XRAY_REPORT.print_summary(shown, Console(file=quiet, width=200), detail=Detail.ANSWER)
    headline, advice = quiet.getvalue().splitlines()
    assert headline in text.replace("\n", " ")
    assert advice.startswith("What to do ")

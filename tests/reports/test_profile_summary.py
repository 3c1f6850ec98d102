"""A profile on a terminal, beyond what the approved summaries show, and the peak of its runs."""

from typing import Any

from memdiag.detail import Detail
from memdiag.records.profile import Input, InsideNode, NodeOutputs, PeakNode
from memdiag.reports.profile.run_peak import run_peak_sentences
from tests.reports import estimates, profiles
from tests.reports.profiles import MIB
from tests.reports.rendering import assert_sentences_approved, markdown, printed, replaced, words

TIED = profiles.tied_if()
PEAK = PeakNode(
    node="scores",
    op_type="Softmax",
    peak_bytes=30 * MIB,
    values_bytes=20 * MIB,
    rounding_bytes=4 * MIB,
    scratch_bytes=6 * MIB,
    grown_bytes=32 * MIB,
    estimated_bytes=19 * MIB,
    estimated_node="scores",
)
LARGEST = (
    NodeOutputs(node="grown", op_type="Concat", inside="scores", bytes=9 * MIB),
    NodeOutputs(node="one", op_type="OneHot", bytes=8 * MIB),
    NodeOutputs(node="empty", op_type="Range", bytes=0),
)
INSIDE = InsideNode(node="join", op_type="Concat", in_use_bytes=9 * MIB)
RUN_PEAKS: dict[str, dict[str, Any]] = {
    "all parts": {},
    "no working memory": {"scratch_bytes": 0},
    "working memory is not known": {"scratch_bytes": None},
    "no ends of chunks": {"rounding_bytes": 0},
    "estimated at another node": {"estimated_node": "other"},
    "not estimated": {"estimated_bytes": None},
    "loop": {"op_type": "Loop"},
    "loop without memory inside": {"op_type": "Loop", "scratch_bytes": 0},
    "node of a graph": {"inside": "loop/either"},
    "more memory inside of it": {"highest_inside": INSIDE},
    # All values of the run are in free memory after it: what is left may be the ends.
    "ends are partly resident": {"free_resident_bytes": 21 * MIB},
    "ends are not resident": {"free_resident_bytes": 20 * MIB},
    "not known what is resident": {"free_resident_bytes": 24 * MIB},
    "largest outputs": {"largest": LARGEST},
}


def test_the_peak_of_a_run_is_divided_into_values_ends_and_working_memory() -> None:
    sentences = {
        case: run_peak_sentences(replaced(TIED, run_peak=replaced(PEAK, **changes)))
        for case, changes in RUN_PEAKS.items()
    }
    assert_sentences_approved("profile_run_peaks", sentences)
    profile = replaced(TIED, estimate=estimates.point(), run_peak=PEAK)
    assert all(sentence in words(profile) for sentence in sentences["all parts"])
    assert "In memory at the peak of a run, as estimated: tensor type" in words(profile)
    assert "### Peak of a run" in markdown(profile)
    not_measured = replaced(profile, run_peak=None)
    assert "peak of a run" not in words(not_measured)
    assert "Peak of a run" not in markdown(not_measured)


def test_a_missing_peak_of_a_run_is_explained() -> None:
    reason = "the runtime's profile is too large"
    text = words(replaced(TIED, run_peak_failure=reason), detail=Detail.USUAL)
    assert f"The peak of a run is not known: {reason}." in text


def test_names_are_text_and_never_markup() -> None:
    text = printed(profiles.hostile())
    assert "[red]x[/red]" in text
    assert r"\x1b[31mred\u202e" in text
    named = profiles.build(profiles.TIED_IF, name="[red]x.onnx", runs=10)
    assert "[red]x.onnx: peak" in printed(named, detail=Detail.ANSWER, is_colored=True)


def test_every_input_is_a_row_on_request() -> None:
    entry = Input(name="kv", dtype="float32", shape=(1,), source="generated", note="")
    profile = replaced(TIED, inputs=(entry,) * 50)
    rows = [line.split() for line in printed(profile).splitlines()]
    assert rows.count(["kv", "float32", "[1]", "generated"]) == 50
    usual = printed(profile, detail=Detail.USUAL)
    assert "\nkv" not in usual
    assert usual.endswith("the inputs.\n")


def test_an_ascii_terminal_gets_ascii() -> None:
    assert "(3.1 x the weights)" in printed(TIED, encoding="ascii")

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from memdiag.detail import Detail
from memdiag.records.profile import Input, InsideNode, NodeOutputs, PeakNode, Profile
from memdiag.reports.profile import REPORT
from memdiag.reports.profile.run_peak import run_peak_sentences
from tests.reports import estimates, profiles, tied_xray
from tests.reports.findings import TIED


def printed(
    profile: Profile, *, detail: Detail = Detail.ALL, written: tuple[Path, ...] = ()
) -> list[str]:
    out = io.StringIO()
    REPORT.print_summary(profile, Console(file=out, width=80), written=written, detail=detail)
    return out.getvalue().splitlines()


def test_the_first_lines_answer_the_question() -> None:
    lines = printed(profiles.tied_if())
    assert lines[0] == (
        "tied_if.onnx: peak 1.50 GiB above baseline (3.1 × the weights) in first_run, 98"
    )
    assert lines[1] == "% already in constant_fold."
    assert lines[2].startswith("Steady 1.50 GiB above baseline (3.1 ×): anonymous +1.50 GiB.")
    # A limit of a container counts the baseline as well.
    assert "Whole process: peak 1.54 GiB." in " ".join(lines[2:5])
    assert "500 MiB of weights · onnxruntime 1.31.1, CPU, 2 threads" in lines


def test_quiet_prints_the_answer_why_and_what_to_do() -> None:
    lines = printed(profiles.tied_if(), detail=Detail.ANSWER)
    everything = printed(profiles.tied_if())
    assert lines == [line for line in everything if line in lines]
    assert lines[0] == everything[0]
    assert lines[2].startswith("Steady 1.50 GiB")
    assert any(line.startswith("What to do") for line in lines)
    assert not any(line.startswith("phase ") for line in lines)


def test_the_table_proves_it() -> None:
    lines = printed(profiles.tied_if())
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert " ".join(rows["phase"]) == "phase time at start peak (exact) at end kept grown by"
    assert rows["parse"] == ["parse", "700", "ms", "46", "825", "563", "+517"]
    assert rows["constant_fold"][-2:] == ["+500", "ConstantFolding"]
    assert rows["steady"] == ["steady", "×10", "28", "ms", "1,579", "1,579", "1,579", "0"]
    assert "ConstantFolding, step 1: +1,000 MiB at its peak, +500 MiB kept" in lines


def test_an_estimate_takes_the_column_of_the_start_on_a_narrow_terminal() -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), estimate=estimates.point())
    rows = {line.split()[0]: line.split() for line in printed(profile) if line}
    assert " ".join(rows["phase"]) == "phase time peak (exact) estimated at end kept grown by"
    # 154 MiB above the baseline of 46 MiB.
    assert rows["first_run"] == ["first_run", "35", "ms", "1,579", "200", "1,579", "+16"]


PEAK = PeakNode(
    node="scores",
    op_type="Softmax",
    peak_bytes=30 * profiles.MIB,
    values_bytes=20 * profiles.MIB,
    rounding_bytes=4 * profiles.MIB,
    scratch_bytes=6 * profiles.MIB,
    grown_bytes=32 * profiles.MIB,
    estimated_bytes=19 * profiles.MIB,
    estimated_node="scores",
)


def test_the_peak_of_a_run_is_divided_into_values_ends_and_working_memory() -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), estimate=estimates.point(), run_peak=PEAK)
    text = " ".join(" ".join(printed(profile)).split())
    assert (
        "The first run used most of the arena at scores (Softmax): 30 MiB in use. These are 20 MiB"
        " of values (estimated 19 MiB), 4.0 MiB of unused ends of their chunks and 6.0 MiB of"
        " working memory of the kernel." in text
    )
    assert "The arena took 32 MiB from the system for the run." in text
    assert "In memory at the peak of a run, as estimated: tensor type" in text
    assert "### Peak of a run" in REPORT.render(profile, "markdown").decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scratch_bytes": 0}, "chunks and no working memory of the kernel."),
        ({"scratch_bytes": None}, "Working memory of kernels is not known: more was in use before"),
        ({"rounding_bytes": 0}, "(estimated 19 MiB) and 6.0 MiB of working memory"),
        ({"estimated_node": "other"}, "(estimated 19 MiB, at other)"),
        ({"estimated_bytes": None}, "20 MiB of values, 4.0 MiB"),
        ({"op_type": "Loop"}, "chunks and 6.0 MiB inside its graph."),
        ({"op_type": "Loop", "scratch_bytes": 0}, "and no working memory of the kernel."),
        ({"inside": "loop/either"}, "of the arena at scores (Softmax) inside loop/either: 30 MiB"),
        (
            {"highest_inside": InsideNode(node="join", op_type="Concat", in_use_bytes=9 << 20)},
            "when it wrote its outputs after the last node of its graph: 30 MiB in use.",
        ),
        (
            {"highest_inside": InsideNode(node="join", op_type="Concat", in_use_bytes=9 << 20)},
            "In its graph most was in use at join (Concat): 9.0 MiB.",
        ),
        # All values of the run are in free memory after it: what is left may be the ends.
        ({"free_resident_bytes": 21 << 20}, "chunks (reserved; at most 1.0 MiB of it is resident)"),
        ({"free_resident_bytes": 20 << 20}, "chunks (only reserved, not resident)"),
        ({"free_resident_bytes": 24 << 20}, "(reserved; how much of it is resident is not known)"),
        (
            {"free_resident_bytes": 24 << 20},
            "32 MiB from the system for the run; 24 MiB of its free memory was resident after it.",
        ),
        (
            {
                "largest": (
                    NodeOutputs(node="grown", op_type="Concat", inside="scores", bytes=9 << 20),
                    NodeOutputs(node="one", op_type="OneHot", bytes=8 << 20),
                    NodeOutputs(node="empty", op_type="Range", bytes=0),
                )
            },
            "Largest outputs of the first run: 9.0 MiB of grown (Concat) inside scores and 8.0 MiB"
            " of one (OneHot).",
        ),
    ],
)
def test_parts_of_the_peak_of_a_run_are_left_out(changes: dict[str, Any], words: str) -> None:
    peak = msgspec.structs.replace(PEAK, **changes)
    profile = msgspec.structs.replace(profiles.tied_if(), run_peak=peak)
    assert words in " ".join(run_peak_sentences(profile))


def test_a_missing_peak_of_a_run_is_explained() -> None:
    reason = "the runtime's profile is too large"
    profile = msgspec.structs.replace(profiles.tied_if(), run_peak_failure=reason)
    text = " ".join(" ".join(printed(profile, detail=Detail.USUAL)).split())
    assert f"The peak of a run is not known: {reason}." in text


def test_a_profile_without_the_peak_of_a_run_does_not_mention_it() -> None:
    profile = msgspec.structs.replace(profiles.tied_if(), estimate=estimates.point())
    assert "peak of a run" not in " ".join(printed(profile))
    assert "Peak of a run" not in REPORT.render(profile, "markdown").decode()


def test_a_failure_says_first_how_where_and_at_what_size() -> None:
    lines = printed(profiles.failed())
    assert lines[0].startswith("broken.onnx: failed in parse at 290 MiB: Load model from broken")
    assert any(line.startswith("parse") and line.endswith("failed here") for line in lines)


def test_a_killed_child_is_told_by_the_last_size_it_had() -> None:
    lines = printed(profiles.killed())
    assert lines[0] == "tied_if.onnx: killed in constant_fold at 1.04 GiB: the system ended it."


def test_sampled_peaks_are_told_without_colour() -> None:
    lines = printed(profiles.sampled())
    assert "(3.1 × the weights, sampled)" in lines[0]
    rows = {line.split()[0]: line for line in lines if line}
    assert "~825" in rows["parse"]
    assert "(sampled)" in rows["phase"]
    assert not any("~" in line for line in printed(profiles.tied_if()))


def test_names_are_text_and_never_markup() -> None:
    text = "\n".join(printed(profiles.hostile()))
    assert "[red]x[/red]" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[31mred\u202e" in text


def test_a_model_called_like_markup_shows_as_text_on_a_terminal() -> None:
    profile = profiles.build(profiles.TIED_IF, name="[red]x.onnx", runs=10)
    out = io.StringIO()
    REPORT.print_summary(
        profile, Console(file=out, width=80, force_terminal=True), detail=Detail.ANSWER
    )
    assert "[red]x.onnx: peak" in out.getvalue()


def test_nothing_depends_on_colour_and_a_pipe_gets_plain_text() -> None:
    out = io.StringIO()
    terminal = Console(file=out, width=80, force_terminal=True, color_system=None)
    REPORT.print_summary(profiles.tied_if(), terminal, detail=Detail.ALL)
    plain = [line.rstrip() for line in out.getvalue().splitlines()]
    piped = printed(profiles.tied_if())
    assert plain == piped
    assert all(line == line.rstrip() and len(line) <= 80 for line in piped)


def test_the_longest_name_keeps_to_the_width() -> None:
    profile = profiles.build(profiles.TIED_IF, name="m" * 200 + ".onnx", runs=10)
    assert max(map(len, printed(profile))) <= 80


def test_files_written_are_named_by_folder() -> None:
    written = (Path("reports/x/report.html"), Path("reports/x/timeline.png"))
    assert printed(profiles.tied_if(), written=written)[-1] == (
        "reports/x/   report.html · timeline.png"
    )


def test_every_input_is_a_row_on_request() -> None:
    entry = Input(name="kv", dtype="float32", shape=(1,), source="generated", note="")
    profile = msgspec.structs.replace(profiles.tied_if(), inputs=(entry,) * 50)
    rows = [line.split() for line in printed(profile)]
    assert rows.count(["kv", "float32", "[1]", "generated"]) == 50
    usual = printed(profile, detail=Detail.USUAL)
    assert not any(line.startswith("kv") for line in usual)
    assert any(line.startswith("With -v: ") and line.endswith("the inputs.") for line in usual)


def test_an_ascii_terminal_gets_ascii() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    REPORT.print_summary(profiles.tied_if(), Console(file=out, width=80), detail=Detail.ALL)
    out.seek(0)
    assert "(3.1 x the weights)" in out.read()


def test_the_answer_the_reason_and_what_to_do_come_before_the_tables() -> None:
    finding = msgspec.structs.replace(TIED, rewrites=("overridable-weight",))
    lines = printed(msgspec.structs.replace(tied_xray.with_attribution(), findings=(finding,)))
    order = (
        "tied_if.onnx: peak", "Result     Most of", "Why        model.shared.weight",
        "What to do Try overridable-weight",
        "           memdiag fix models/tied_if.onnx",
        "phase ", "owner (steady)", "arena slack", "weight ", "13 weights with a",
        "ConstantFolding, step 1:", "Latency median", "input ",
    )  # fmt: skip
    places = [next(i for i, line in enumerate(lines) if line.startswith(one)) for one in order]
    assert places == sorted(places)
    assert max(map(len, lines)) <= 80
    assert lines.index("") == places[1] - 1  # nothing else stands before the result

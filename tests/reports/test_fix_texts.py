"""The sentences of a fix: what it saves, which files belong together, which releases load it."""

from typing import Any

import msgspec
import pytest

from memdiag.records.fix import FIX_SCHEMA, Fix, Remedy, RemedyStatus
from memdiag.reports.fix import (
    fix_summary,
    releases_text,
    remedy_table,
    summary_line,
    written_text,
)
from memdiag.reports.text import time_limit
from memdiag.units import MIB
from tests.reports import fix_records


def remedy(name: str, *weights: str, status: RemedyStatus = "applied") -> Remedy:
    return Remedy(name=name, rule="rule", status=status, reason="because", weights=weights)


def fix(**changes: Any) -> Fix:
    made = Fix(
        schema=FIX_SCHEMA,
        model="m.onnx",
        onnxruntime="1.31.1",
        output="m.fixed.onnx",
        output_files=("m.fixed.onnx",),
        remedies=(remedy("one", "w"),),
        before=None,
        after=None,
        latencies=(),
        largest_difference=None,
        bound=None,
        bound_reason="",
        verified=True,
        notes=(),
        duration_s=2.0,
        verified_on=("1.31.1", "1.20.1"),
        oldest_onnxruntime="1.20.0",
    )
    return msgspec.structs.replace(made, **changes)


def test_a_model_that_stands_alone() -> None:
    assert written_text(fix()) == "wrote m.fixed.onnx in 2.0 s"
    assert written_text(fix(verified=False)).endswith("in 2.0 s, unverified")


def test_files_that_belong_together() -> None:
    kept = {"kept_files": ("m.onnx",), "kept_bytes": 500 * MIB}
    both = fix(output_files=("m.fixed.onnx", "m.onnx"), **kept)
    assert written_text(both) == (
        "wrote m.fixed.onnx in 2.0 s; 500 MiB of its weights are still in m.onnx: move both files"
        " together"
    )
    more = fix(output_files=("m.fixed.onnx", "a", "b"), kept_files=("a", "b"), kept_bytes=0)
    assert written_text(more).endswith("in a, b: move all 3 files together")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {},
            "verified on 1.31.1, 1.20.1; 1.20.0 and newer can load it (by its versions of the IR"
            " and operators)",
        ),
        (
            {"oldest_onnxruntime": "1.23.0", "oldest_reason": "version 11 of the IR"},
            "1.23.0 and newer can load it (version 11 of the IR)",
        ),
        (
            {"oldest_onnxruntime": None, "oldest_reason": "opset 99 of ai.onnx"},
            "no release is known that can load it (opset 99 of ai.onnx)",
        ),
        ({"verified_on": ()}, "not verified; "),
    ],
)
def test_runtimes_are_named(changes: dict[str, Any], message: str) -> None:
    assert message in releases_text(fix(**changes))
    assert releases_text(fix(output=None, **changes)) == ""


def reasons(record: Fix) -> list[str]:
    """Return why each remedy ended as it did, as Markdown has it."""
    return [row.cells[-1].text for row in remedy_table(record).in_format("markdown").rows]


def test_weights_are_named_where_a_remedy_is_done_for_some_only() -> None:
    alone = fix(remedies=(remedy("one", "a"), remedy("two", "a")))
    assert reasons(alone) == ["because", "because"]
    parted = (remedy("one", "a", "b", "c", "d", "e"), remedy("one", "f", status="refused"))
    assert reasons(fix(remedies=parted)) == ["a, b, c and 2 more: because", "f: because"]
    rows = remedy_table(fix(remedies=parted)).in_format("html").rows
    assert [(row.cells[3].text, row.cells[4].text) for row in rows] == [
        ("a, b, c and 2 more", "because"),
        ("f", "because"),
    ]


def test_one_or_more_would_be_tried() -> None:
    dry: dict[str, Any] = {"output": None, "output_files": ()}
    one = (remedy("one", status="possible"),)
    assert "1 remedy would be tried" in written_text(fix(remedies=one, **dry))
    two = (*one, remedy("two", status="possible"))
    assert "2 remedies would be tried" in written_text(fix(remedies=two, **dry))


LIMITED: dict[str, Any] = {
    "output": None,
    "output_files": (),
    "command": ("memdiag", "fix", "m.onnx", "--time-limit=60"),
}


def test_the_remedies_that_the_time_limit_left_untried_are_named_with_a_limit_for_them() -> None:
    untried = remedy("one", status="untried")
    left = "m.onnx: the time limit of 60 s passed before this remedy was tried to the end: one."
    unknown = fix(remedies=(untried,), **LIMITED)
    assert written_text(unknown) == (
        f"{left} Nothing was written. Run it again with a longer --time-limit, or none."
    )
    for seconds, limit in ((81.0, 90), (120.0, 120), (121.0, 180), (600.0, 600)):
        known = fix(remedies=(untried,), sufficient_time_limit_s=seconds, **LIMITED)
        assert written_text(known) == (
            f"{left} Nothing was written. Run it again with --time-limit {limit}, which is expected"
            " to suffice, or without."
        )
    both = (untried, remedy("two", status="untried"), remedy("three", status="rejected"))
    assert "before these remedies were tried to the end: one, two." in written_text(
        fix(remedies=both, **LIMITED)
    )


def test_an_undecided_remedy_does_not_hide_that_others_are_left() -> None:
    remedies = (remedy("one", status="undecided"), remedy("two", status="untried"))
    record = fix(remedies=remedies, sufficient_time_limit_s=81.0, **LIMITED)
    text = written_text(record)
    assert "undecided about one, in " in text
    assert text.endswith(
        "nothing was written. The time limit of 60 s passed before this remedy was tried to the"
        " end: two. Run it again with --time-limit 90, which is expected to suffice, or without."
    )
    (step,) = (text for title, text in fix_summary(record).sentences if title == "What to do")
    assert step.startswith("Run it again with --time-limit 90")


def test_an_interruption_is_not_called_a_time_limit() -> None:
    untried = (remedy("one", status="untried"),)
    record = fix(remedies=untried, ended_by="interrupt", output=None)
    assert written_text(record).startswith("m.onnx: the search was interrupted before this remedy")


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ((), "the time limit"),
        (("--time-limit", "90.5"), "the time limit of 90 s"),
        (("--time-limit=2min",), "the time limit of 2 min 00 s"),
        (("--time-limit", "inf"), "the time limit"),
        (("--time-limit",), "the time limit"),
    ],
)
def test_the_time_limit_is_read_from_the_command(words: tuple[str, ...], limit: str) -> None:
    assert time_limit(("memdiag", "fix", "m.onnx", *words)) == limit


def test_remedies_that_cannot_be_applied_are_not_told_as_tried() -> None:
    refused = fix_records.remedy("good-one", status="refused")
    rejected = fix_records.remedy("other", status="rejected")
    fix = msgspec.structs.replace(fix_records.all_rejected(), remedies=(refused,))
    text = written_text(fix)
    assert f"no remedy can be applied ({refused.reason})" in text
    fix = msgspec.structs.replace(fix, remedies=(refused, rejected))
    assert "nothing was worth changing" in written_text(fix)


def test_memory_that_grows_with_other_inputs_is_in_the_answer() -> None:
    figures = fix_records.figures(559, 540, 510, 501, unread=91)
    fix = fix_records.verified(after=figures, measured_once=True)
    added = "(0.36 ×), both at most 631 MiB (0.42 ×) once all rows of its embeddings were used"
    assert (
        f"{added}, memory measured once, latency 1.02 × (0.98–1.05, the worst of 2 comparisons), by"
        in summary_line(fix)
    )
    assert added in fix_summary(fix).answer
    figures = fix_records.figures(900, 540, 510, 501, unread=91)
    loading = fix_records.verified(after=figures)
    assert ", steady at most 631 MiB (0.42 ×) once all rows" in summary_line(loading)
    assert "embeddings" not in summary_line(fix_records.verified())


def test_whose_latency_is_in_the_first_line_and_how_few_pairs_it_has() -> None:
    several = fix_records.verified()
    assert len(several.latencies) > 1
    assert "latency 1.02 × (0.98–1.05, the worst of 2 comparisons), by" in summary_line(several)
    quick = msgspec.structs.replace(several.latencies[0], pairs=4, ratio=1.2, low=0.9, high=1.6)
    one = fix_records.verified(latencies=(quick,))
    assert "latency 1.20 × (0.90–1.60, 4 pairs of runs), by" in summary_line(one)

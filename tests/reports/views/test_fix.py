"""What is said of a fix: which weights, which files belong together, which runtimes."""

from typing import Any

import msgspec
import pytest

from memdiag.records.fix import FIX_SCHEMA, Fix, Remedy, RemedyStatus
from memdiag.reports.views.fix import build
from memdiag.reports.views.text import time_limit
from memdiag.units import MIB


def remedy(name: str, *weights: str, status: RemedyStatus = "applied") -> Remedy:
    return Remedy(name=name, rule="rule", status=status, reason="because", weights=weights)


def fix(**changes: Any) -> Fix:
    made = Fix(
        schema=FIX_SCHEMA,
        model="m.onnx",
        onnxruntime="1.31.1",
        output="m.fixed.onnx",
        output_files=("m.fixed.onnx",),
        session_options={},
        environment={},
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
    assert build(fix()).answer == "wrote m.fixed.onnx in 2.0 s"
    assert build(fix(verified=False)).answer.endswith("in 2.0 s, unverified")


def test_files_that_belong_together() -> None:
    kept = {"kept_files": ("m.onnx",), "kept_bytes": 500 * MIB}
    both = build(fix(output_files=("m.fixed.onnx", "m.onnx"), **kept))
    assert both.answer == (
        "wrote m.fixed.onnx in 2.0 s; it keeps 500 MiB in m.onnx: keep both files together"
    )
    more = build(fix(output_files=("m.fixed.onnx", "a", "b"), kept_files=("a", "b"), kept_bytes=0))
    assert more.answer.endswith("in a, b: keep all 3 files together")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "verified on 1.31.1, 1.20.1; by what it declares, 1.20.0 and newer can load it"),
        (
            {"oldest_onnxruntime": "1.23.0", "oldest_reason": "version 11 of the IR"},
            "1.23.0 and newer can load it (version 11 of the IR)",
        ),
        (
            {"oldest_onnxruntime": None, "oldest_reason": "opset 99 of ai.onnx"},
            "no release is known that can load it (opset 99 of ai.onnx)",
        ),
        ({"verified_on": ()}, "onnxruntime: not verified; "),
    ],
)
def test_runtimes_are_named(changes: dict[str, Any], said: str) -> None:
    assert said in build(fix(**changes)).runtimes
    assert build(fix(output=None, **changes)).runtimes == ""


def test_weights_are_named_where_a_remedy_is_done_for_some_only() -> None:
    alone = build(fix(remedies=(remedy("one", "a"), remedy("two", "a"))))
    assert [row.said for row in alone.remedies] == ["because", "because"]
    parted = (remedy("one", "a", "b", "c", "d", "e"), remedy("one", "f", status="refused"))
    rows = build(fix(remedies=parted)).remedies
    assert [row.said for row in rows] == ["a, b, c and 2 more: because", "f: because"]
    assert [(row.weights, row.reason) for row in rows] == [
        ("a, b, c and 2 more", "because"),
        ("f", "because"),
    ]


def test_one_or_more_would_be_tried() -> None:
    dry: dict[str, Any] = {"output": None, "output_files": ()}
    one = (remedy("one", status="possible"),)
    assert "1 remedy would be tried" in build(fix(remedies=one, **dry)).answer
    two = (*one, remedy("two", status="possible"))
    assert "2 remedies would be tried" in build(fix(remedies=two, **dry)).answer


LIMITED: dict[str, Any] = {
    "output": None,
    "output_files": (),
    "command": ("memdiag", "fix", "m.onnx", "--time-limit=60"),
}


def test_what_the_time_limit_left_untried_is_said() -> None:
    untried = remedy("one", status="untried")
    assert build(fix(remedies=(untried,), **LIMITED)).answer == (
        "m.onnx: no remedy was tried to the end in the time limit of 60 s; nothing was written;"
        " give it more with --time-limit"
    )
    some = (untried, remedy("two", status="rejected"))
    assert build(fix(remedies=some, **LIMITED)).answer == (
        "m.onnx: nothing worth changing was found in the time limit of 60 s; 1 remedy was not"
        " tried; nothing was written; give it more with --time-limit"
    )


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ((), "the time limit"),
        (("--time-limit", "90.5"), "the time limit of 90 s"),
        (("--time-limit", "inf"), "the time limit"),
        (("--time-limit",), "the time limit"),
    ],
)
def test_the_time_limit_is_read_from_the_command(words: tuple[str, ...], limit: str) -> None:
    assert time_limit(("memdiag", "fix", "m.onnx", *words)) == limit

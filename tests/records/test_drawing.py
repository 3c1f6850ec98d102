from typing import Any

import msgspec
import pytest

from memdiag.errors import RecordError
from memdiag.records.codec import decode, encode
from memdiag.records.drawing import Drawing, DrawnEdge, DrawnNode
from memdiag.records.finding import CHECK_SCHEMA, Check, Finding

WEIGHT = DrawnNode(
    id="0", kind="weight", title="w", detail="float32 [8, 8]", size_bytes=256, emphasis=True
)
READER = DrawnNode(
    id="1", kind="operator", title="MatMul", detail="lm/MatMul", size_bytes=None, emphasis=False
)


def drawing(**changes: Any) -> Drawing:
    fields: dict[str, Any] = {
        "nodes": (WEIGHT, READER),
        "edges": (DrawnEdge(source="0", target="1", label=""),),
        "graph": "main graph",
        "omitted": 0,
        **changes,
    }
    return Drawing(**fields)


def check_with(finding: Finding) -> Check:
    return Check(
        schema=CHECK_SCHEMA, onnxruntime="1.31.1", models=(), findings=(finding,), duration_s=0.1
    )


FINDING = Finding(
    model="m.onnx",
    rule="MD103",
    name="shared-weight-transposed",
    message="w is used twice.",
    detail="",
    weights=("w",),
    nodes=("lm/MatMul",),
    graph="",
    bytes=256,
    peak_bytes=256,
    phase=None,
    evidence="predicted",
    measured_bytes=None,
    expected=(),
    remedies=("gemm-transposed",),
)


def test_a_finding_carries_its_drawing() -> None:
    record = check_with(msgspec.structs.replace(FINDING, drawing=drawing()))
    assert decode(encode(record), Check) == record


def test_a_finding_that_was_saved_without_drawings_is_read() -> None:
    text = encode(check_with(FINDING)).replace(b',"drawing":null', b"")
    assert b"drawing" not in text
    assert decode(text, Check).findings == (FINDING,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": (WEIGHT, msgspec.structs.replace(READER, id="0"))}, "have one id"),
        ({"edges": (DrawnEdge(source="0", target="2", label=""),)}, "ends at no node"),
    ],
)
def test_drawings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawing(**changes)
    text = encode(check_with(msgspec.structs.replace(FINDING, drawing=drawing())))
    broken = text.replace(b'"target":"1"', b'"target":"9"')
    with pytest.raises(RecordError, match="ends at no node"):
        decode(broken, Check)

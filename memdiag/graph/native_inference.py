"""ONNX's own shape inference, which is native code: how it fails, and what it may take."""

from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, defs
from onnx.checker import ValidationError
from onnx.shape_inference import InferenceError
from onnx.shape_inference import infer_shapes as infer_model

from memdiag.graph.memory_bound import at_most

FAILURES = (
    *(InferenceError, ValidationError, defs.SchemaError, DecodeError, EncodeError),
    *(RuntimeError, ValueError, TypeError, LookupError, MemoryError),
)
"""What the library raises for a model that makes no sense to it."""

_MOST_BYTES = 1 << 28
"""What an inference may take, beside 64 times the size of the model without its weights."""


def infer(model: ModelProto | bytes, propagates: bool) -> tuple[ModelProto, str]:
    """Return `model` with all types that were inferred, or as it is and the reason why.

    As `bytes` it is serialized, and takes less memory meanwhile. Where it `propagates` values of
    shapes, the library takes memory by the length of each list: for one that is absurdly long that
    is refused, and no values are propagated.
    """
    try:
        size = len(model) if isinstance(model, bytes) else model.ByteSize()
        with at_most(_MOST_BYTES + 64 * size):
            return infer_model(model, data_prop=propagates), ""
    except FAILURES as error:
        if propagates and isinstance(error, MemoryError):
            return infer(model, False)
        words = " ".join(str(error).split())
        parsed = ModelProto.FromString(model) if isinstance(model, bytes) else model
        return parsed, words[:150].rstrip(" .") or type(error).__name__

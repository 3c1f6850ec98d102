"""Sizes of free dimensions with which the shapes of a model contradict each other."""

from collections.abc import Mapping

from onnx import ModelProto
from onnx.shape_inference import InferenceError

from memdiag.model.inference_input import InferenceInput
from memdiag.model.model_file import ModelFile
from memdiag.model.shapes import infer_limited


def is_contradictory(model_file: ModelFile, sizes: Mapping[str, int]) -> bool:
    """Return whether `model_file` cannot run at `sizes` of its free dimensions, by name.

    ONNX's inference then finds a node whose inputs do not go together, such as a Squeeze of an axis
    that is not 1. A model that passes may still fail: what depends on values is not inferred. Calls
    of functions are not followed.
    """
    if model_file.functions:
        return False
    copy = ModelProto()
    copy.CopyFrom(model_file.proto)
    prepared = InferenceInput(copy, sizes)
    try:
        infer_limited(prepared.serialized, strict_mode=True, data_prop=True)
    except InferenceError:
        return True
    except (RuntimeError, ValueError, TypeError, LookupError, MemoryError):
        return False  # a model that cannot be inferred at any sizes
    return False

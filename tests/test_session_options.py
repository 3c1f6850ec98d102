"""What the texts of session options mean, here and in the child, and the Python that sets them."""

from typing import get_args

import onnxruntime
import pytest

from memdiag.errors import UsageError
from memdiag.runner.scripts.child import convert
from memdiag.session_options import (
    OptimizationLevel,
    is_on,
    optimization_level,
    session_option_lines,
)

ALL_LEVELS = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.parametrize("text", ["1", "true", "On", "0", "False", "off"])
def test_a_truth_is_read_as_in_the_child(text: str) -> None:
    found = is_on({"enable_mem_pattern": text}, "enable_mem_pattern", default=False)
    assert found == convert(True, text, "enable_mem_pattern")
    assert is_on({}, "enable_mem_pattern", default=True)


def test_what_is_no_truth_is_refused() -> None:
    with pytest.raises(UsageError, match="must be true or false, not 'yes'"):
        is_on({"enable_mem_pattern": "yes"}, "enable_mem_pattern", default=False)
    with pytest.raises(ValueError, match="must be true or false"):
        convert(True, "yes", "enable_mem_pattern")


@pytest.mark.parametrize("text", ["basic", "BASIC", "enable_extended", "ORT_ENABLE_ALL"])
def test_a_level_is_read_as_in_the_child(text: str) -> None:
    member = convert(ALL_LEVELS, text, "graph_optimization_level")
    assert member.name == f"ORT_ENABLE_{optimization_level(text).upper()}"


@pytest.mark.parametrize("text", ["ort_basic", "2", "", "everything"])
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="there is no optimization level"):
        optimization_level(text)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        *((text, text) for text in get_args(OptimizationLevel)),
        ("ORT_DISABLE_ALL", "disable_all"),
        ("ORT_ENABLE_BASIC", "basic"),
    ],
)
def test_the_code_sets_the_level_that_is_meant(text: str, level: str) -> None:
    names: dict[str, object] = {"ort": onnxruntime}
    exec("\n".join(session_option_lines("options", {"graph_optimization_level": text})), names)
    options = names["options"]
    assert isinstance(options, onnxruntime.SessionOptions)
    assert options.graph_optimization_level == convert(ALL_LEVELS, level, "")


def test_the_code_sets_entries_truths_numbers_and_texts() -> None:
    given = {
        "enable_mem_pattern": "off",
        "intra_op_num_threads": "3",
        "execution_mode": "parallel",
        "optimized_model_filepath": "a b.onnx",
        "session.disable_prepacking": "1",
        "optimization.constant_folding_max_output_size_in_bytes": "1048576",
    }
    lines = [*session_option_lines("options", given)]
    names: dict[str, object] = {"ort": onnxruntime}
    exec("\n".join(lines), names)
    options = names["options"]
    assert isinstance(options, onnxruntime.SessionOptions)
    assert not options.enable_mem_pattern
    assert options.intra_op_num_threads == 3
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.optimized_model_filepath == "a b.onnx"
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    assert max(map(len, lines)) <= 79

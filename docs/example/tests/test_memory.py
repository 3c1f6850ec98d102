"""What the models may take; ``[tool.memdiag.budgets]`` in pyproject.toml says more."""

import pytest


@pytest.mark.memory_budget("models/decoder.onnx", peak="100 MB", steady="92 MB")
def test_the_decoder_fits_its_container() -> None:
    """Hold it to this budget, to those of the project, and to its baseline."""


@pytest.mark.memory_budget("models/branches.onnx", tolerance="1%")
def test_the_branches_take_what_they_took() -> None:
    """Hold them to their baseline."""

"""What estimates promise of options: what they consider, and of these what saves."""

from collections.abc import Callable
from pathlib import Path

from memdiag.api.option_estimates import estimated_savings
from memdiag.model.model_file import open_model
from memdiag.ort.runtime import Runtime
from memdiag.runner.job import Job
from memdiag.tuning.tuning_options import tuning_options
from memdiag.units import MIB

SampleModel = Callable[..., Path]


def savings(path: Path) -> dict[str, int]:
    with open_model(path) as file:
        return estimated_savings(
            file, Runtime.installed(), Job(model=path), {"tokens": 1}, tuning_options()
        )


def test_an_option_is_expected_to_save_what_the_session_would_not_make(
    sample_model: SampleModel,
) -> None:
    folded = savings(sample_model("expand_bomb", 16))
    assert folded["disable-constant-folding"] > 16 * MIB
    assert "disable-prepacking" not in folded
    packed = savings(sample_model("subgraph_weights", 16))
    assert packed["disable-prepacking"] > 16 * MIB
    assert "disable-constant-folding" not in packed


def test_nothing_is_expected_of_options_that_estimates_do_not_consider(
    sample_model: SampleModel,
) -> None:
    found = savings(sample_model("plain_mlp", 16))
    assert {*found} <= {each.name for each in tuning_options()}
    assert not {"mmap-threshold", "jemalloc", "save-prepacked"} & {*found}

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import memdiag
from memdiag.errors import MeasurementError, UsageError
from memdiag.records.fix import Fix
from memdiag.remedies.option import Option
from memdiag.remedies.options import options
from memdiag.units import MIB

SampleModel = Callable[..., Path]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that leaves only the options named, so that a test takes seconds."""

    def choose(*names: str) -> None:
        chosen = tuple(one for one in options() if one.name in names)
        assert len(chosen) == len(names)
        monkeypatch.setattr("memdiag.workflows.tune.options", lambda: chosen)

    return choose


def tried(tuning: Fix) -> list[Sequence[str]]:
    return [point.options for point in tuning.points]


def test_the_options_that_save_are_found_and_combined(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("disable-constant-folding", "disable-prepacking", "patterns-off")
    tuning = memdiag.tune(sample_model("tied_if", 16, external=True), max_slowdown=100, sizes=[1])
    assert tried(tuning)[:1] == [()]
    both = {"disable-constant-folding", "disable-prepacking"}
    assert any({*one} == both for one in tried(tuning))
    # Folding alone saves nothing here, for what is not folded is packed: only both together do.
    assert {*tuning.chosen} == both
    assert tuning.before is not None
    assert tuning.after is not None
    assert tuning.before.anonymous_bytes - tuning.after.anonymous_bytes > 12 * MIB
    (chosen,) = [point for point in tuning.points if point.options == tuning.chosen]
    assert any(point.on_front for point in tuning.points)
    assert chosen.session_options == tuning.session_options
    assert "InferenceSession" in tuning.snippet
    assert tuning.session_count >= 4 + 2 * (len(tuning.points) - 1)


def test_of_points_within_the_budget_the_fastest_is_chosen(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("disable-prepacking")
    model = sample_model("plain_mlp", 16)
    roomy = memdiag.tune(model, budget={"peak": 1 << 40}, max_slowdown=100, sizes=[1])
    assert all(point.fits for point in roomy.points)
    tight = memdiag.tune(model, budget={"steady": 1}, max_slowdown=100, sizes=[1])
    assert not any(point.fits for point in tight.points)
    assert any("no point fits the budget" in note for note in tight.notes)


def test_ctrl_c_gives_the_best_so_far(sample_model: SampleModel, only: Callable[..., None]) -> None:
    only("disable-prepacking", "patterns-off")

    def interrupt(words: str) -> None:
        if "patterns-off" in words:
            raise KeyboardInterrupt

    tuning = memdiag.tune(sample_model("plain_mlp"), on_progress=interrupt)
    assert tried(tuning) == [(), ("disable-prepacking",)]
    assert any("interrupted" in note for note in tuning.notes)


def test_options_that_change_values_are_left_out(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("denormal-as-zero")
    assert tried(memdiag.tune(sample_model("plain_mlp"))) == [()]


def test_a_release_without_an_option_is_not_asked_for_it(
    sample_model: SampleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Option(name="x", does="x.", hurts="x.", applies=lambda runtime: False)
    monkeypatch.setattr("memdiag.workflows.tune.options", lambda: (missing,))
    assert tried(memdiag.tune(sample_model("plain_mlp"))) == [()]


def test_what_cannot_be_asked_for_is_refused(sample_model: SampleModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no budget 'speed'"):
        memdiag.tune(sample_model("plain_mlp"), budget={"speed": 1})
    import onnx
    from onnx import parser

    path = tmp_path / "m.onnx"
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[3] x) => (float[3] y) { y = Odd(x) }'
    onnx.save(parser.parse_model(text), path)
    with pytest.raises(MeasurementError, match="does not run here"):
        memdiag.tune(path)

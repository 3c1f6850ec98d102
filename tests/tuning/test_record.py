"""The record of a fix: what is said about the choice, and which point the program sets up."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from memdiag.model.model_file import open_model
from memdiag.records.fix import Fix, Point
from memdiag.tuning.option_search import OptionSearch
from memdiag.tuning.record import Publication, fix_record
from memdiag.tuning.tuning_options import TuningOption
from memdiag.verify.outputs import Bound
from tests.tuning.scripted_search import Names, Scripted, less, searched

SampleModel = Callable[..., Path]


class Recordable(Scripted):
    """A scripted evaluator with everything that a record tells of it."""

    bound = Bound.reordered(1)
    session_count = 1

    @property
    def model_evaluator(self) -> SimpleNamespace:
        return SimpleNamespace(
            before=self.before, onnxruntime="1.32.0", further_sizes=(), device=None
        )

    def evaluation(self, point: Point) -> None:
        """Return nothing: outputs and latencies of single inputs are made up nowhere."""


def recorded(search: OptionSearch, model: Path) -> Fix:
    """Return the record of `search`, as if it had been that of `model`."""
    with open_model(model) as file:
        return fix_record(
            file,
            search,
            Publication(),
            failed_optimizers={},
            notes=(),
            dimensions=(),
            duration_s=1.0,
        )


@pytest.fixture(scope="module")
def model(sample_model: SampleModel) -> Path:
    return sample_model("plain_mlp")


def interrupted(names: Names) -> Any:
    raise KeyboardInterrupt


def test_what_was_not_compared_is_no_program(model: Path) -> None:
    fix = recorded(searched(Recordable(less(a=60), interrupted), "a"), model)
    assert [point.offered for point in fix.points] == [False, True]
    assert (fix.chosen, fix.program) == ((), "")
    assert not fix.measured_once  # nothing is claimed
    compared = recorded(searched(Recordable(less(a=60)), "a"), model)
    assert compared.program


def test_a_choice_of_which_several_processes_were_not_measured_is_marked(model: Path) -> None:
    saving = less(a=20)
    assert not recorded(searched(Recordable(saving), "a"), model).measured_once
    fix = recorded(searched(Recordable(saving, confirmed=interrupted), "a"), model)
    assert fix.chosen == ("a",)
    assert fix.measured_once


@pytest.mark.parametrize(("size", "is_told"), [(10, True), (58, False)])
def test_what_takes_far_less_but_is_too_slow_is_told_with_the_slowdown_that_accepts_it(
    size: float, is_told: bool, model: Path
) -> None:
    def ratio(names: Names) -> float:
        return 1.234 if "slow" in names else 1.0

    saving = less(slow=100 - size, a=40)
    fix = recorded(searched(Recordable(saving, ratio), "slow:a a:slow"), model)
    assert fix.chosen == ("a",)
    assert any("slower: slow would take 10 MiB" in note for note in fix.notes) is is_told
    if is_told:
        assert any("; --max-slowdown 1.24 or more accepts it" in note for note in fix.notes)


@pytest.mark.parametrize(("taken", "told"), [(23, "slow"), (26, "slower")])
def test_of_what_is_too_slow_the_faster_is_told_if_it_takes_nearly_as_little(
    taken: float, told: str, model: Path
) -> None:
    def ratio(names: Names) -> float:
        return 2.0 if "slower" in names else 1.2 if "slow" in names else 1.0

    saving = less(slow=100 - taken, slower=100 - 20, a=40)
    exclusive = "slow:slower,a slower:slow,a a:slow,slower"
    fix = recorded(searched(Recordable(saving, ratio), exclusive, together=("slow",)), model)
    assert fix.chosen == ("a",)
    assert any(note.startswith(f"slower: {told} would take") for note in fix.notes)


@pytest.mark.parametrize("is_external", [False, True])
def test_the_program_watches_the_files_of_external_weights(
    is_external: bool, sample_model: SampleModel
) -> None:
    class Saving(Recordable):
        def measure(self, chosen: tuple[TuningOption, ...]) -> Point:
            saved = {"key": "value"} if chosen else {}
            return msgspec.structs.replace(super().measure(chosen), saved_options=saved)

    path = sample_model("plain_mlp", 1, external=is_external)
    fix = recorded(searched(Saving(less(a=40)), "a"), path)
    watched = f"(Path(MODEL).parent / '{path.name}.data').stat()"
    assert (watched in fix.program) is is_external
    assert fix.program.count("modified = ") == 1 + is_external


@pytest.mark.parametrize(("saving", "is_told"), [(0.4, True), (0, False)])
def test_why_a_point_with_a_little_more_memory_was_chosen_is_said(
    saving: float, is_told: bool, model: Path
) -> None:
    search = searched(Recordable(less(a=40, b=saving)), "a b", together=("a", "b"))
    fix = recorded(search, model)
    assert fix.chosen == ("a",)
    assert any(note.startswith("a + b takes ") for note in fix.notes) is is_told


@pytest.mark.parametrize(("ratio", "is_told"), [(1.04, False), (1.08, True)])
def test_why_a_point_above_the_bound_was_chosen_is_said(
    ratio: float, is_told: bool, model: Path
) -> None:
    seen = {"low": 0.9, "high": 1.2, "undecided": ratio > 1.05}
    undecided = Recordable(less(a=40), lambda _: ratio, seen=lambda _: seen)
    fix = recorded(searched(undecided, "a", end=99), model)
    assert fix.chosen == ("a",)
    why = "It was chosen because it may be as fast as the defaults"
    assert any(why in note for note in fix.notes) is is_told
    assert bool(fix.program) is not is_told  # what is not verified is no program

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import memdiag
from memdiag.records.fix import Fix
from memdiag.tuning.tuning_options import TuningOption, tuning_options
from memdiag.units import MIB

SampleModel = Callable[..., Path]


def high_water_bytes(program: str) -> int:
    """Return the largest resident set that `program` has in a process of its own."""
    asking = "fields = dict(line.split(':', 1) for line in open('/proc/self/status'))"
    asking += "\nprint(fields['VmHWM'].split()[0])"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\n{asking}"], capture_output=True, check=True, timeout=60
    )
    return int(done.stdout.split()[-1]) * 1024


def tried(fix: Fix) -> list[Sequence[str]]:
    return [point.option_names for point in fix.points]


@pytest.mark.usefixtures("equal_latency", "one_process_each")
def test_the_options_that_save_are_found_and_combined(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("disable-constant-folding", "disable-prepacking", "patterns-off")
    fix = memdiag.fix(sample_model("tied_if", 8, external=True), sizes=[], only=["options"])
    assert tried(fix)[:1] == [()]
    both = {"disable-constant-folding", "disable-prepacking"}
    assert any({*one} == both for one in tried(fix))
    # Folding alone saves nothing here, for what is not folded is packed: only both together do.
    assert {*fix.chosen} == both
    assert fix.before is not None
    assert fix.after is not None
    assert fix.before.anonymous_bytes - fix.after.anonymous_bytes > 6 * MIB
    (chosen,) = [point for point in fix.points if point.option_names == fix.chosen]
    assert chosen.on_front
    assert chosen == fix.chosen_point
    assert chosen.session_options == {"session.disable_prepacking": "1"}
    assert chosen.figures == fix.after
    assert "InferenceSession" in fix.program
    for name in both:
        assert any(note.startswith(f"{name}: ") and note.endswith(".") for note in fix.notes)
    assert [each.inputs for each in fix.latencies] != []
    assert fix.largest_difference is not None
    # One for each point, and one more of the defaults and of the chosen point to confirm it.
    assert fix.session_count >= len(fix.points) + 2


@pytest.mark.slow
def test_the_program_takes_what_the_chosen_point_took(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("disable-constant-folding", "disable-prepacking")
    fix = memdiag.fix(sample_model("tied_if", 32), max_slowdown=100, sizes=[1], only=["options"])
    assert fix.before is not None
    assert fix.after is not None
    plain = f"import onnxruntime\nonnxruntime.InferenceSession({fix.model!r})\n"
    saved = high_water_bytes(plain) - high_water_bytes(fix.program)
    assert saved > 16 * MIB
    assert abs(saved - (fix.before.peak_bytes - fix.after.peak_bytes)) < 12 * MIB


@pytest.mark.slow
def test_of_points_within_the_budget_the_fastest_is_chosen(
    sample_model: SampleModel, only: Callable[..., None]
) -> None:
    only("disable-prepacking")
    model = sample_model("plain_mlp", 16)
    roomy = memdiag.fix(
        model, budget={"peak": 1 << 40}, max_slowdown=100, sizes=[1], only=["options"]
    )
    assert all(point.fits and point.ratio for point in roomy.points)
    assert roomy.chosen == ()
    tight = memdiag.fix(model, budget={"steady": 1}, max_slowdown=100, sizes=[1], only=["options"])
    assert not any(point.fits for point in tight.points)
    assert "nothing fits the budget of " in repr(tight)


@pytest.mark.usefixtures("unchanged_memory")
def test_ctrl_c_gives_the_best_so_far(sample_model: SampleModel, only: Callable[..., None]) -> None:
    only("disable-prepacking", "patterns-off")

    def interrupt(words: str) -> None:
        if "disable-prepacking" in words:
            raise KeyboardInterrupt

    fix = memdiag.fix(sample_model("plain_mlp"), sizes=[], on_progress=interrupt, only=["options"])
    assert tried(fix) == [(), ("patterns-off",)]
    assert any("interrupted" in note for note in fix.notes)


@pytest.mark.usefixtures("unchanged_memory")
@pytest.mark.parametrize(
    ("max_difference", "expected"), [(None, [()]), (0.01, [(), ("denormal-as-zero",)])]
)
def test_options_that_change_values_or_that_a_release_lacks_are_left_out(
    sample_model: SampleModel,
    monkeypatch: pytest.MonkeyPatch,
    max_difference: float | None,
    expected: list[Sequence[str]],
) -> None:
    missing = TuningOption(name="x", does="x.", hurts="x.", is_available=lambda runtime: False)
    (changing,) = [option for option in tuning_options() if option.name == "denormal-as-zero"]
    monkeypatch.setattr("memdiag.api.fix_scope.tuning_options", lambda: (missing, changing))
    model = sample_model("plain_mlp")
    fix = memdiag.fix(model, max_difference=max_difference, sizes=[], only=["options"])
    assert tried(fix) == expected

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memdiag.measurement.job import Job
from memdiag.prediction.runtime import Runtime
from memdiag.records.fix import Point
from memdiag.remedies.option import Option
from memdiag.remedies.options import options
from memdiag.workflows.snippet import snippet


def point(*chosen: Option) -> Point:
    job = Job(model=Path("m.onnx"))
    for one in chosen:
        job = one.added_to(job)
    return Point(
        options=tuple(one.name for one in chosen),
        session_options=dict(job.options),
        environment=dict(job.environment),
        run_options=dict(job.run_options),
        disabled_optimizers=tuple(job.disabled_optimizers),
        shared_arena=job.shared_arena,
        saved_options={name: text for one in chosen for name, text in one.saved.items()},
        figures=None,
        ratio=None,
        low=None,
        high=None,
        on_front=False,
        fits=True,
        problem="",
    )


@pytest.mark.parametrize("option", options(), ids=lambda option: option.name)
def test_the_program_runs_as_it_stands(
    option: Option, sample_model: Callable[..., Path], tmp_path: Path
) -> None:
    if not option.applies(Runtime.installed()):
        pytest.skip("not on this machine")
    model = tmp_path / "m.onnx"
    model.write_bytes(sample_model("plain_mlp").read_bytes())
    program = snippet(str(model), point(option))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for name, value in option.environment.items():
        assert f"export {name}={value}" in program


def test_a_path_with_quotes_is_written_as_python_needs_it() -> None:
    program = snippet('it\'s "a" \\ model.onnx', point())
    compile(program, "snippet", "exec")
    assert repr('it\'s "a" \\ model.onnx') in program

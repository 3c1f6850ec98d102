"""The bug report for onnxruntime's tracker."""

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

from memdiag.errors import UsageError
from memdiag.records.profile import Input, Profile
from memdiag.records.schemas import ReportedRecord
from memdiag.reports import report_of
from tests.reports import comparisons, estimates, fix_records, growths, profiles, runs, tied_xray
from tests.reports.rendering import markdown, replaced

HEADINGS = ["To reproduce", "Platform", "ONNX Runtime Version or Commit ID", "Model File"]
"""The questions of the tracker's form that follow the description."""

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    graph (float[n, 3] left, int64[3] right) => (float[n, 3] result) {
        converted = Cast <to = 1> (right)
        result = Add (left, converted)
    }
"""


def issue(record: ReportedRecord) -> str:
    return report_of(record).render(record, "issue").decode()


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.*)$", text, re.MULTILINE)


def program_of(text: str) -> str:
    block = re.search(r"(`{3,})python\n(.*?)\n\1", text, re.DOTALL)
    assert block
    return block[2]


@pytest.mark.parametrize(
    ("record", "facts"),
    [
        pytest.param(
            tied_xray.with_attribution(),
            ["1.31.1", "Linux", "x86_64", "memdiag profile", "ort.InferenceSession"],
            id="profile",
        ),
        pytest.param(
            profiles.failed(), ["Protobuf parsing failed", "memdiag profile"], id="failed"
        ),
        pytest.param(runs.server(), ["1.32.0", "memdiag run -- "], id="run"),
        pytest.param(growths.leak(), ["1.32.0", "memdiag leak "], id="growth"),
        pytest.param(
            comparisons.versions(), ["1.24.4, 1.30.9, 1.31.1", "memdiag compare "], id="comparison"
        ),
    ],
)
def test_an_issue_describes_the_problem_and_answers_the_questions_of_the_form(
    record: ReportedRecord, facts: list[str]
) -> None:
    text = issue(record)
    assert text.startswith(markdown(record).rstrip())
    assert headings(text)[-len(HEADINGS) :] == HEADINGS
    assert [fact for fact in facts if fact not in text] == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (estimates.grid(), "'issue' is not a report format of a"),
        (fix_records.verified(), "'issue' is not a report format of a fix"),
        (comparisons.optimizers(), "a comparison of optimizers is no report on onnxruntime"),
    ],
    ids=["estimate", "fix", "optimizers"],
)
def test_records_that_say_nothing_of_the_runtime_have_no_issue(
    record: ReportedRecord, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        issue(record)


def profile_of(path: Path) -> Profile:
    shapes = {"left": ("float", (2, 3)), "right": ("int64", (3,))}
    return replaced(
        profiles.tied_if(),
        model__path=str(path),
        session__options={
            "intra_op_num_threads": "1",
            "enable_mem_pattern": "0",
            "graph_optimization_level": "basic",
            "session.disable_prepacking": "1",
        },
        session__environment={"MALLOC_ARENA_MAX": "1"},
        session__run_options={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        session__disabled_optimizers=("ConstantFolding",),
        session__runs=2,
        inputs=tuple(
            Input(name=name, dtype=dtype, shape=shape, source="generated", note="")
            for name, (dtype, shape) in shapes.items()
        ),
    )


def test_the_program_of_an_issue_runs_with_the_settings_of_the_session(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(MODEL), tmp_path / "private.onnx")
    text = issue(profile_of(tmp_path / "private.onnx"))
    assert "# export MALLOC_ARENA_MAX=1" in text
    program = [sys.executable, "-c", program_of(text)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["imported", "loaded", "run"]


@pytest.mark.parametrize("name", ["--> <script>", "a\nb", "```", "'; import os #"])
def test_hostile_names_do_not_leave_their_place(name: str) -> None:
    text = issue(replaced(profiles.tied_if(), model__path=f"{name}.onnx"))
    compile(program_of(text), "program", "exec")
    assert headings(text)[-len(HEADINGS) :] == HEADINGS

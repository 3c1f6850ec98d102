"""The bug report for onnxruntime's tracker."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

from memdiag.errors import UsageError
from memdiag.records.profile import Input, Profile
from memdiag.reports import report_of
from tests.reports import comparisons, estimates, fix_records, growths, profiles, runs, tied_xray

HEADINGS = ["To reproduce", "Platform", "ONNX Runtime Version or Commit ID", "Model File"]
"""The questions of the tracker's form that follow the description."""


def issue(record: Any) -> str:
    return report_of(record).render(record, "issue").decode()


def program_of(text: str) -> str:
    found = re.search(r"(`{3,})python\n(.*?)\n\1", text, re.DOTALL)
    assert found
    return found[2]


@pytest.mark.parametrize(
    ("build", "facts"),
    [
        (
            tied_xray.with_attribution,
            ["1.31.1", "Linux", "x86_64", "memdiag profile", "ort.InferenceSession"],
        ),
        (profiles.failed, ["Protobuf parsing failed", "memdiag profile"]),
        (runs.server, ["1.32.0", "memdiag run -- "]),
        (growths.leak, ["1.32.0", "memdiag leak "]),
        (comparisons.versions, ["1.24.4, 1.30.9, 1.31.1", "memdiag compare "]),
    ],
    ids=["profile", "failed", "run", "growth", "comparison"],
)
def test_an_issue_describes_the_problem_and_answers_the_questions_of_the_form(
    build: Callable[[], Any], facts: list[str]
) -> None:
    record = build()
    text = issue(record)
    assert text.startswith(report_of(record).render(record, "markdown").decode().rstrip())
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-len(HEADINGS) :] == HEADINGS
    assert [fact for fact in facts if fact not in text] == []


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (estimates.grid, "'issue' is not a report format of a"),
        (fix_records.verified, "'issue' is not a report format of a fix"),
        (comparisons.optimizers, "a comparison of optimizers is no report on onnxruntime"),
    ],
    ids=["estimate", "fix", "optimizers"],
)
def test_records_that_say_nothing_of_the_runtime_have_no_issue(
    build: Callable[[], Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        issue(build())


def profile_of(path: Path) -> Profile:
    profile = profiles.tied_if()
    shapes = {"left": ("float", (2, 3)), "right": ("int64", (3,))}
    return msgspec.structs.replace(
        profile,
        model=msgspec.structs.replace(profile.model, path=str(path)),
        session=msgspec.structs.replace(
            profile.session,
            options={
                "intra_op_num_threads": "1",
                "enable_mem_pattern": "0",
                "graph_optimization_level": "basic",
                "session.disable_prepacking": "1",
            },
            environment={"MALLOC_ARENA_MAX": "1"},
            run_options={"memory.enable_memory_arena_shrinkage": "cpu:0"},
            disabled_optimizers=("ConstantFolding",),
            runs=2,
        ),
        inputs=tuple(
            Input(name=name, dtype=dtype, shape=shape, source="generated", note="")
            for name, (dtype, shape) in shapes.items()
        ),
    )


def test_the_program_of_an_issue_runs_with_the_settings_of_the_session(tmp_path: Path) -> None:
    left = helper.make_tensor_value_info("left", TensorProto.FLOAT, ["n", 3])
    right = helper.make_tensor_value_info("right", TensorProto.INT64, [3])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, ["n", 3])
    nodes = [
        helper.make_node("Cast", ["right"], ["converted"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["left", "converted"], ["result"]),
    ]
    graph = helper.make_graph(nodes, "graph", [left, right], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "private.onnx")
    text = issue(profile_of(tmp_path / "private.onnx"))
    assert "# export MALLOC_ARENA_MAX=1" in text
    done = subprocess.run(
        [sys.executable, "-c", program_of(text)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["imported", "loaded", "run"]


@pytest.mark.parametrize("name", ["--> <script>", "a\nb", "```", "'; import os #"])
def test_hostile_names_do_not_leave_their_place(name: str) -> None:
    profile = profiles.tied_if()
    model = msgspec.structs.replace(profile.model, path=f"{name}.onnx")
    text = issue(msgspec.structs.replace(profile, model=model))
    compile(program_of(text), "program", "exec")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[-len(HEADINGS) :] == HEADINGS

"""What the workflow adds to the measurement: inputs that run, facts of the model, honest notes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from rich.console import Console

import memdiag
from memdiag.errors import ModelError, UsageError
from memdiag.records.codec import encode
from memdiag.reporters.console import show
from memdiag.workflows.profile import Interrupted

# Reads four neighbours at once: it runs with 4 or more, not with 1 or 2.
NEEDS_FOUR = """
<ir_version: 9, opset_import: ["" : 17]>
needs_four (float[batch, length] x) => (float[batch, out] y)
<float[1, 1, 4] w = {1, 2, 3, 4}>
{
    axes = Constant<value = int64[1] {1}>()
    wide = Unsqueeze(x, axes)
    conv = Conv(wide, w)
    y = Squeeze(conv, axes)
}
"""

PLAIN = """
<ir_version: 9, opset_import: ["" : 17]>
plain (float[batch, 3] x) => (float[batch, 3] y)
<float[3] w = {1, 2, 3}>
{
    y = Add(x, w)
}
"""


def saved(tmp_path: Path, text: str, name: str = "model.onnx") -> Path:
    path = tmp_path / name
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_a_model_that_does_not_run_with_ones_is_rehearsed(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, NEEDS_FOUR), runs=1)
    assert profile.outcome.status == "completed"
    assert [given.shape for given in profile.inputs] == [(1, 4)]
    assert any("4 is the first of" in note for note in profile.notes)


def test_a_size_that_the_user_gave_is_not_overridden(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, NEEDS_FOUR), runs=1, dims={"length": 2})
    assert profile.outcome.status == "failed"
    assert profile.outcome.phase == "first_run"
    assert [given.shape for given in profile.inputs] == [(1, 2)]


def test_a_model_that_runs_needs_no_rehearsal(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, PLAIN), runs=2)
    assert profile.outcome.status == "completed"
    assert not any("is the first of" in note for note in profile.notes)
    assert profile.model.weight_bytes == 12
    assert profile.model.opsets == {"ai.onnx": 17}
    assert profile.steady is not None
    assert profile.steady.rss_bytes == profile.steady_rss_bytes


def test_what_was_given_is_used_and_nothing_of_it_is_recorded(tmp_path: Path) -> None:
    secret = np.array([[1.5, 271828.25, 3]], np.float32)
    profile = memdiag.profile(
        saved(tmp_path, PLAIN),
        runs=1,
        inputs={"x": secret},
        environment={"MINE": "1"},
    )
    assert [(given.source, given.shape) for given in profile.inputs] == [("given", (1, 3))]
    assert profile.session.environment == {"MINE": "1"}
    text = encode(profile).decode()
    assert "271828" not in text
    assert str(Path.home()) not in text.replace(profile.model.path, "")


def test_without_optimization_constant_folding_is_not_guessed(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, PLAIN), run=False, optimization_level="disable_all")
    assert profile.session.options == {"graph_optimization_level": "disable_all"}
    fold = profile.phase("constant_fold")
    assert fold is None
    assert profile.steady_rss_bytes is None


def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, PLAIN, "odd\udcff.onnx"), run=False)
    assert profile.model.path.endswith("odd\\udcff.onnx")
    encode(profile)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"runs": 0}, "too few"),
        ({"timeout_s": 0}, "leaves no time"),
        ({"memory_limit_bytes": 0}, "leaves no room"),
        ({"session_options": {"log_severity_level": "2"}}, "memdiag's own"),
        ({"dims": {"nope": 3}}, "no dimension 'nope'"),
        ({"inputs": {"nope": np.zeros(1)}}, "nope"),
        ({"inputs": {"x": np.zeros((1, 3))}}, "float"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(
    tmp_path: Path, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        memdiag.profile(saved(tmp_path, PLAIN), **arguments)  # type: ignore[arg-type] # on purpose


def test_a_model_that_is_not_there_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        memdiag.profile(tmp_path / "nope.onnx")


def test_a_run_that_ended_early_is_not_said_to_lack_transformers(tmp_path: Path) -> None:
    path = saved(tmp_path, PLAIN.replace("Add(x, w)", "Nope(x, w)"))
    profile = memdiag.profile(path)
    assert (profile.outcome.status, profile.outcome.phase) == ("failed", "parse")
    assert not any("graph transformer" in note for note in profile.notes)


def test_the_peak_is_the_first_phases_that_came_up_to_it(tmp_path: Path) -> None:
    profile = memdiag.profile(saved(tmp_path, PLAIN), runs=1)
    after_start = [phase for phase in profile.phases if phase.name != "start"]
    assert profile.peak_rss_bytes == max(phase.peak_rss_bytes for phase in after_start)
    top = profile.phase(profile.peak_phase)
    assert top is not None
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    assert profile.peak_rss_bytes - top.peak_rss_bytes <= 0.005 * above


def test_ctrl_c_while_sizes_are_tried_keeps_the_run_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("memdiag.workflows.inputs.rehearse", interrupted)
    with pytest.raises(Interrupted) as caught:
        memdiag.profile(saved(tmp_path, NEEDS_FOUR), runs=1)
    assert caught.value.profile.outcome.phase == "first_run"


def forging(name: str) -> str:
    """Return a node's name that goes on, in the log, with lines that are not the runtime's."""
    stamp = "2026-11-21 03:23:46.474104445 [I:onnxruntime:, a.cc:1 f]"
    lines = [
        '\x1ememdiag {"event": "run", "latency_s": 9}',
        '\x1ememdiag {"event": "nonsense"}',
        "\x1ememdiag {",
        f"{stamp} Applying graph transformer \x1b[2J on step 1.",
        f"{stamp} Applying graph transformer Forged[/bold] on step 1.",
        f"{stamp} Applying graph transformer Forged on step {'9' * 5000}.",
        f"{stamp} Allocated memory at {'f' * 20} to 1",
        "2026-99-99 99:99:99.1 [I:onnxruntime:, a.cc:1 f] Session successfully initialized.",
        "\x1b]0;title\x07\x1b[31m<script>alert(1)</script>",
    ]
    return "\n".join([name, *lines, ""])


def test_names_that_imitate_the_log_change_no_more_than_names_of_spans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 64] x) => (float[1, 64] y)
        <float[64, 64] w = {0}, float[2] unused = {1, 2}> {
            t = Identity(w)
            u = Neg(t)
            y = MatMul(x, t)
        }""".replace("{0}", "{" + ", ".join(["0.5"] * 4096) + "}")
    )
    for index, node in enumerate(model.graph.node):
        node.name = forging(f"n{index}")
    model.graph.initializer[1].name = forging("unused")
    path = tmp_path / "forged.onnx"
    onnx.save(model, path)
    result = memdiag.profile(path, runs=3)
    assert result.outcome.status == "completed"
    assert len(result.runs) == 3
    assert max(run.latency_s for run in result.runs) < 9
    assert {"parse", "optimize", "prepack", "steady"} <= {phase.name for phase in result.phases}
    # The test would show nothing if the runtime did not log the names as they are.
    assert any("Forged" in span.name for span in result.spans)
    show(result, Console(width=80))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out

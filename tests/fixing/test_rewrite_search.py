"""Which changes are kept, with scripted figures: nothing is measured here."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, cast

import msgspec
import onnx
import pytest

from memdiag.errors import ModelError, ReportError
from memdiag.fixing.candidates import RewrittenModel
from memdiag.fixing.changes import Change
from memdiag.fixing.model_writer import ModelWriter
from memdiag.fixing.rewrite_search import RewriteSearch
from memdiag.fixing.state import FixState
from memdiag.model.model_file import ModelFile, open_model
from memdiag.records.fix import RemedyStatus
from memdiag.rewrites.model_editor import ModelEditor
from memdiag.rewrites.rewrite import Rewriter
from memdiag.rewrites.saving import write_rewritten_model
from memdiag.runner.job import Deadline, Job, TimeLimitReached
from memdiag.units import MIB
from memdiag.verify.model_evaluator import ModelEvaluator
from tests.fixing.renamed import finding, renaming, write
from tests.fixing.scripted_evaluator import ScriptedEvaluator


@pytest.fixture(autouse=True)
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let onnx.checker run in this process: these models do not crash it."""

    def checker_error(model: Path, *limits: object) -> str:
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            return str(error)
        return ""

    monkeypatch.setattr("memdiag.verify.validity.checker_error", checker_error)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ModelFile]:
    with open_model(write(tmp_path / "m.onnx")) as opened:
        yield opened


@dataclass
class Ended:
    result: RewrittenModel | None
    state: FixState
    evaluator: ScriptedEvaluator

    @property
    def staged(self) -> str:
        """The name of the staged model's graph."""
        assert self.result is not None
        return onnx.load(self.result.output.files[0]).graph.name

    @property
    def statuses(self) -> dict[str, RemedyStatus]:
        return {one.name: one.status for one in self.state.outcomes}

    def reason(self, name: str) -> str:
        (reason,) = [one.reason for one in self.state.outcomes if one.name == name]
        return reason


Run = Callable[..., Ended]


@pytest.fixture
def run(file: ModelFile, tmp_path: Path) -> Run:
    """A function that searches rules, each a list of rewriters, with what models take."""

    def searched(
        *rules: Sequence[Rewriter],
        limit: float = 1.05,
        saved: Sequence[int] = (),
        seconds: float = inf,
        **made: Any,
    ) -> Ended:
        evaluator = ScriptedEvaluator(Job(model=file.path), **made)
        deadline = Deadline(time.monotonic() + seconds)
        state = FixState(writer=ModelWriter(file, tmp_path / "out.onnx"), deadline=deadline)
        findings = [finding(f"rule {number}") for number in range(len(rules))]
        for number, nbytes in enumerate(saved):
            findings[number] = msgspec.structs.replace(findings[number], bytes=nbytes)
        changes = [
            tuple(Change(rewriter, (found,)) for rewriter in rewriters)
            for found, rewriters in zip(findings, rules, strict=True)
        ]
        search = RewriteSearch(
            state,
            cast(ModelEvaluator, evaluator),
            limit,
            lambda words: None,
            end=deadline.at,
        )
        return Ended(search.run(changes), state, evaluator)

    return searched


def test_the_best_of_a_rule_is_kept(run: Run, tmp_path: Path) -> None:
    rewriters = [renaming("good", "_1"), renaming("best", "_2"), renaming("useless", "_3")]
    ended = run(rewriters, sizes={"g_1": 60, "g_2": 40})
    assert ended.statuses == {"good": "rejected", "best": "applied", "useless": "rejected"}
    assert ended.reason("good").startswith("best takes less (peak 40 MiB instead of 60 MiB")
    assert "saves nothing" in ended.reason("useless")
    assert ended.result is not None
    assert ended.result.figures.peak_bytes == 40 * MIB
    assert not ended.result.same_kernels
    assert ended.staged == "g_2"
    assert not (tmp_path / "out.onnx").exists()  # it is staged


def test_a_change_has_to_save_beside_what_was_accepted(run: Run, tmp_path: Path) -> None:
    rules = [renaming("a", "_1")], [renaming("b", "_2")], [renaming("c", "_3")]
    # What b spares alone, a spares already; c spares more on top of a.
    ended = run(*rules, sizes={"g_1": 60, "g_1_2": 60, "g_1_3": 50})
    assert ended.statuses == {"a": "applied", "b": "rejected", "c": "applied"}
    assert ended.evaluator.measured == ["g_1", "g_1_2", "g_1_3"]
    assert ended.staged == "g_1_3"


def test_only_what_is_clearly_slower_is_refused(run: Run) -> None:
    rules = [renaming("a", "_1")], [renaming("slow", "_2")]
    ended = run(*rules, sizes={"g_1": 60, "g_1_2": 40}, ratios={"g_1": 1.1, "g_1_2": 2})
    assert ended.statuses == {"a": "applied", "slow": "rejected"}
    assert "slower: 2.00" in ended.reason("slow")


def exact(name: str, to: str) -> Rewriter:
    return renaming(name, to, arithmetic="same")


def test_what_keeps_the_kernels_is_first_tried_together(run: Run) -> None:
    rules = [exact("a", "_1")], [renaming("b", "_2")], [exact("c", "_3")]
    ended = run(*rules, sizes={"g_1_3": 50, "g_1_3_2": 40})
    assert ended.statuses == {"a": "applied", "b": "applied", "c": "applied"}
    assert ended.evaluator.measured == ["g_1_3", "g_1_3_2"]
    assert "all of these together" in ended.reason("a")
    assert ended.staged == "g_1_3_2"


@pytest.mark.parametrize(
    ("saved", "seconds", "measured"),
    [
        ((10, 50, 30), 600, ["g_2", "g_2_1_3"]),
        ((30, 50, 30), 600, ["g_1_3", "g_1_3_2"]),  # together these save more
        ((10, 50, 30), inf, ["g_1_3", "g_1_3_2"]),
        ((10, 50, 30), 5, []),  # measuring takes 10 s
    ],
)
def test_in_limited_time_what_is_expected_to_save_most_is_tried_first(
    run: Run, saved: Sequence[int], seconds: float, measured: list[str]
) -> None:
    rules = [exact("a", "_1")], [renaming("b", "_2")], [exact("c", "_3")]
    sizes = {"g_1_3": 80, "g_2": 50, "g_1_3_2": 40, "g_2_1_3": 40}
    ended = run(*rules, saved=saved, seconds=seconds, sizes=sizes)
    assert ended.evaluator.measured == measured
    assert {*ended.statuses.values()} == ({"applied"} if measured else {"untried"})


def test_what_saves_nothing_together_is_tried_alone(run: Run) -> None:
    rules = [exact("a", "_1")], [exact("c", "_3")]
    ended = run(*rules, sizes={"g_1": 50})
    assert ended.statuses == {"a": "applied", "c": "rejected"}
    assert ended.result is not None
    assert ended.result.same_kernels


def test_a_slow_comparison_of_the_same_kernels_is_repeated_in_another_session(run: Run) -> None:
    def status(rewriter: Rewriter, *, again: float) -> RemedyStatus:
        sizes, ratios, later = {"g_1": 60}, {"g_1": 2.0}, {"g_1": again}
        return run([rewriter], sizes=sizes, ratios=ratios, later=later).statuses["a"]

    assert status(exact("a", "_1"), again=1.0) == "applied"
    assert status(exact("a", "_1"), again=2.0) == "rejected"
    assert status(renaming("a", "_1"), again=1.0) == "rejected"


def test_the_same_model_is_measured_once(run: Run) -> None:
    ended = run([renaming("one", "_1"), renaming("twin", "_1")], sizes={"g_1": 60})
    assert ended.statuses == {"one": "applied", "twin": "rejected"}
    assert ended.reason("twin") == "it gives the same model as one alone"
    assert ended.evaluator.measured == ["g_1"]


def test_time_counts_where_memory_is_nearly_the_same(run: Run) -> None:
    rewriters = [renaming("slow", "_1"), renaming("quick", "_2")]
    ended = run(rewriters, sizes={"g_1": 58, "g_2": 60}, ratios={"g_1": 1.04, "g_2": 0.95})
    assert ended.statuses == {"slow": "rejected", "quick": "applied"}
    assert "takes as much, and less time" in ended.reason("slow")


def test_of_equals_the_exact_one_is_kept_or_else_the_first(run: Run) -> None:
    sizes = {"g_1": 60, "g_2": 60, "g_3": 60}
    ended = run(
        [renaming("reordered", "_1"), exact("exact", "_2"), exact("later", "_3")], sizes=sizes
    )
    assert [name for name, status in ended.statuses.items() if status == "applied"] == ["exact"]
    assert "changes no bit" in ended.reason("reordered")
    assert "exact is as good, as far as it is certain (" in ended.reason("later")


def stored(name: str, to: str, storage: str) -> Rewriter:
    """Return a rewriter that also says how weights are stored."""
    renamer = renaming(name, to)

    def apply(editor: ModelEditor, finding: Any) -> bool:
        editor.storage = storage  # type: ignore[assignment] # one of the three words
        return renamer.apply(editor, finding)

    return renamer._replace(apply=apply)


def test_of_equals_the_one_that_stands_alone_is_kept(run: Run, tmp_path: Path) -> None:
    # References need 64 bytes of alignment, which this model's single weight is given.
    sizes = {"g_1": 60, "g_2": 60, "g_3": 60}
    in_two, alone = stored("external", "_1", "external"), renaming("embedded", "_2")
    ended = run([in_two, alone], sizes=sizes)
    assert [name for name, status in ended.statuses.items() if status == "applied"] == ["embedded"]
    assert "in fewer files" in ended.reason("external")


def test_a_slower_or_broken_or_unsafe_one_is_rejected_with_the_reason(run: Run) -> None:
    rewriters = [
        renaming("slow", "_1"),
        renaming("broken", "_2"),
        renaming("unsafe", "_4", safe=False),
    ]
    ended = run(
        rewriters,
        sizes={"g_1": 10, "g_2": 10, "g_4": 10},
        ratios={"g_1": 1.4},
        broken=["g_2"],
    )
    assert ended.result is None
    assert "slower: 1.40" in ended.reason("slow")
    assert ended.reason("broken") == "it cannot run: it ended."
    assert ended.statuses["unsafe"] == "refused"


ENDS = (TimeLimitReached, KeyboardInterrupt)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_leaves_the_best_so_far(run: Run, tmp_path: Path, end: type[BaseException]) -> None:
    rules = (
        [renaming("first", "_1")],
        [renaming("second", "_2"), renaming("endless", "_3"), renaming("never", "_4")],
        [renaming("last", "_5")],
    )
    sizes = {"g_1": 60, "g_1_2": 50, "g_1_3": 40, "g_1_4": 30}
    ended = run(*rules, sizes=sizes, ends={"g_1_3": end})
    assert ended.statuses == {
        "first": "applied",
        "second": "applied",
        "endless": "untried",
        "never": "untried",
        "last": "untried",
    }
    assert ended.staged == "g_1_2"
    assert ended.result is not None
    assert ended.result.figures.peak_bytes == 50 * MIB
    assert len(ended.state.notes) == 1


def test_a_time_limit_before_anything_is_judged_writes_nothing(run: Run, tmp_path: Path) -> None:
    ended = run([renaming("a", "_1")], sizes={"g_1": 60}, ends={"g_1": TimeLimitReached})
    assert ended.result is None
    assert ended.statuses == {"a": "untried"}
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_what_was_measured_but_not_compared_in_time_has_its_figures(run: Run) -> None:
    ends = {"g_1": TimeLimitReached}
    ended = run([renaming("a", "_1")], sizes={"g_1": 60}, ends=ends, ends_after=1)
    (outcome,) = ended.state.outcomes
    assert outcome.status == "untried"
    assert outcome.reason == (
        "the time limit ended its comparison (peak 100 MiB → 60 MiB, steady 100 MiB → 60 MiB)"
    )


def test_a_second_ctrl_c_while_the_model_is_written_leaves_the_original(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelWriter, "stage", interrupted)
    ended = run([renaming("a", "_1")], sizes={"g_1": 60})
    assert (ended.result, ended.state.ended_by) == (None, "interrupt")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_an_interrupt_before_anything_is_judged_leaves_what_is_untried(
    run: Run, tmp_path: Path
) -> None:
    ends: dict[str, type[BaseException]] = {"g_1": KeyboardInterrupt}
    ended = run([renaming("a", "_1")], sizes={"g_1": 60}, ends=ends)
    assert (ended.result, ended.state.ended_by) == (None, "interrupt")
    (remedy,) = ended.state.outcomes
    assert remedy.status == "untried"
    assert remedy.reason == "the search was interrupted before it was tried"
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_time_alone_is_worth_a_change_once(run: Run) -> None:
    ended = run(
        [renaming("quick", "_1")],
        [renaming("nothing", "_2")],
        sizes={},
        ratios={"g_1": 0.5, "g_1_2": 0.5},
    )
    assert ended.statuses == {"quick": "applied", "nothing": "rejected"}


def invalid(name: str, spoil: Callable[[ModelEditor], None]) -> Rewriter:
    """Return a rewriter that also spoils the model."""
    renamer = renaming(name, f"_{name}")

    def apply(editor: ModelEditor, finding: Any) -> bool:
        spoil(editor)
        return renamer.apply(editor, finding)

    return renamer._replace(apply=apply)


def newer(editor: ModelEditor) -> None:
    editor.model.ir_version = 10


def nameless(editor: ModelEditor) -> None:
    editor.model.graph[0].domain = "nowhere"


def test_an_invalid_model_is_not_even_measured(run: Run) -> None:
    rewriters = [invalid("newer", newer), invalid("nameless", nameless)]
    ended = run(rewriters, sizes={"g_newer": 10, "g_nameless": 10})
    assert ended.evaluator.measured == []
    assert "version 10 of the IR instead of 9" in ended.reason("newer")
    assert "onnx.checker rejects it" in ended.reason("nameless")


def test_what_cannot_be_written_is_a_note_unless_something_else_helps(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(editor: ModelEditor, path: Path, storage: Any) -> tuple[Path, ...]:
        if str(editor.model.graph.name).endswith("_1"):
            raise ReportError("out.onnx: cannot be written (No space left on device).")
        return write_rewritten_model(editor, path, storage)

    monkeypatch.setattr("memdiag.fixing.model_writer.write_rewritten_model", full)
    large, small = renaming("large", "_1"), renaming("small", "_2")
    quick = run([large], sizes={"g_1": 10})
    assert quick.result is None
    assert "no rewritten model was written: out.onnx: cannot be" in quick.state.notes[-1]
    ended = run([large, small], sizes={"g_2": 60})
    assert ended.statuses == {"large": "rejected", "small": "applied"}
    assert "No space left" in ended.reason("large")


def test_findings_that_cannot_be_answered_do_not_spoil_the_others(
    file: ModelFile, tmp_path: Path
) -> None:
    def refuse(one: Any) -> str | None:
        return "it is an output" if "kept" in one.weights else None

    state = FixState(writer=ModelWriter(file, tmp_path / "out.onnx"))
    rewriter = renaming("some", "_1", refuse=refuse)
    findings = (finding("rule", "kept"), finding("rule", "a"), finding("rule", "b"))
    found = state.possible(Change(rewriter, findings))
    assert found is not None
    change, editor = found
    assert change.weights == ("a", "b")
    assert editor.model.graph.name == "g_1"
    (refused,) = state.outcomes
    assert (refused.status, refused.reason, refused.weights) == (
        "refused",
        "it is an output",
        ("kept",),
    )
    # What was not decided by then is untried, and nothing else.
    cut = FixState(writer=state.writer)
    cut.possible(Change(rewriter, findings))
    cut.record_untried([(Change(rewriter, findings),)], "no time")
    assert [(each.status, each.weights) for each in cut.outcomes] == [
        ("refused", ("kept",)),
        ("untried", ("a", "b")),
    ]
    assert state.possible(Change(rewriter, findings[:1])) is None
    state.accepted.append(change)
    assert state.possible(Change(rewriter, findings[1:])) is None
    assert state.outcomes[-1].reason == "it changes nothing"


def test_a_graph_that_cannot_be_rewritten_is_a_reason_and_no_error(
    file: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> ModelEditor:
        raise ModelError("g: its output is a map.")

    monkeypatch.setattr(ModelWriter, "editor", unsupported)
    state = FixState(writer=ModelWriter(file, tmp_path / "out.onnx"))
    assert state.possible(Change(renaming("some", "_1"), (finding("rule"),))) is None
    (refused,) = state.outcomes
    assert refused.status == "refused"
    assert refused.reason == "the graph cannot be rewritten (g: its output is a map.)"

import msgspec
import pytest

from memdiag.programs import rules
from memdiag.programs.rules import ProgramDetector, program_detectors, program_findings
from memdiag.records.run import HighWaterRun, ProgramFinding
from tests.programs.rules.records import (
    MIB,
    PID,
    memory,
    model,
    process,
    program,
    runs,
    session,
    xray,
)


def test_the_costliest_finding_is_first() -> None:
    threads = session(1, intra_op_threads=64)
    idle = session(2, model=model("/m/idle.onnx"), last_run_s=9.0)
    slack = session(
        3,
        model=model("/m/slack.onnx"),
        shapes=[runs(99), runs(1, (999, 8))],
        memory=memory(slack=600 * MIB),
    )
    peak = HighWaterRun(
        session=3, t_s=9.0, peak_rss_bytes=900 * MIB, shapes={"x": (999, 8)}, latency_s=0.01
    )
    found, notes = program_findings(program(threads, idle, slack, peaks=(peak,)))
    assert [each.name for each in found] == [
        "rare-large-input",
        "idle-session",
        "threads-beyond-cpus",
    ]
    assert notes == ()


@pytest.mark.parametrize(
    ("callers", "slack", "rules_found"),
    [
        pytest.param(24, (90, 10), ["threads-beyond-cpus", "arena-slack"], id="of the callers"),
        pytest.param(24, (40, 60), ["arena-slack", "threads-beyond-cpus"], id="of another session"),
        pytest.param(4, (90, 10), ["arena-slack"], id="few callers"),
    ],
)
def test_callers_that_explain_slack_come_before_it(
    callers: int, slack: tuple[int, int], rules_found: list[str]
) -> None:
    sizes = [memory(slack=size * MIB) for size in slack]
    sessions = session(1, run_threads=callers, memory=sizes[0]), session(2, memory=sizes[1])
    found, _ = program_findings(
        program(
            *(msgspec.structs.replace(each, model=model(f"/{each.number}")) for each in sessions),
            processes=(process(cpus_allowed=2.0),),
            xrays=(xray(PID, slack=100 * MIB),),
        )
    )
    assert [each.name for each in found] == rules_found
    for each in found:
        if each.name == "threads-beyond-cpus":
            assert each.bytes is None
            assert f"at most {slack[0]} MiB of arena slack" in each.message


def test_a_program_without_waste_has_no_findings() -> None:
    assert program_findings(program(session())) == ((), ())
    assert program_findings(program()) == ((), ())


def test_a_defect_of_a_rule_loses_its_findings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: object) -> object:
        raise ZeroDivisionError("by zero")

    first, *others = program_detectors()
    ours = (ProgramDetector(first.rule, broken, ""), *others)  # type: ignore[arg-type]
    monkeypatch.setattr(rules, "program_detectors", lambda: ours)
    found, (note,) = program_findings(program(session(last_run_s=9.0)))
    assert [each.name for each in found] == ["idle-session"]
    assert "rule duplicate-session failed" in note
    assert "ZeroDivisionError: by zero" in note


def test_a_watched_program_names_the_rules_that_were_not_checked() -> None:
    assert program_findings(program(processes=(process(),), is_watched=True)) == ((), ())
    run = program(processes=(process(),), xrays=(xray(PID),), is_watched=True)
    _, (note,) = program_findings(run)
    assert "idle-session" in note
    for checked in ("arena-slack", "malloc-retained", "weights-in-workers", "duplicate-session"):
        assert checked not in note
    other = process(onnxruntime=None)
    assert program_findings(program(processes=(other,), is_watched=True)) == ((), ())


@pytest.mark.parametrize(
    ("duplicates", "first"), [(11, "duplicate-session"), (9, "malloc-retained")]
)
def test_what_malloc_retains_comes_after_findings_that_save_nearly_as_much(
    monkeypatch: pytest.MonkeyPatch, duplicates: int, first: str
) -> None:
    sizes = {"malloc-retained": 100, "duplicate-session": duplicates}

    def only(detector: ProgramDetector) -> ProgramDetector:
        finding = ProgramFinding(
            name=detector.rule.name,
            sessions=(),
            bytes=sizes[detector.rule.name] * MIB,
            message="",
            remedy="",
        )
        return detector._replace(detect=lambda run: iter([finding]))

    ours = tuple(only(each) for each in program_detectors() if each.rule.name in sizes)
    monkeypatch.setattr(rules, "program_detectors", lambda: ours)
    found, _ = program_findings(program())
    assert [each.name for each in found][:1] == [first]

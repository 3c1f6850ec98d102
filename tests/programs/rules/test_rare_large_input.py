import pytest

from memdiag.records.run import HighWaterRun, InputShapes
from tests.programs.rules.records import MIB, findings, memory, program, runs, session

RULE = "rare-large-input"
USUAL = runs(99, (1, 128))
LARGE = (64, 512)


def peak(
    shape: tuple[int, ...] = LARGE, number: int = 1, t_s: float = 50.0, mib: int = 900
) -> HighWaterRun:
    return HighWaterRun(
        session=number, t_s=t_s, peak_rss_bytes=mib * MIB, shapes={"x": shape}, latency_s=0.01
    )


def test_one_large_input_sets_the_size_of_the_arena() -> None:
    slack = memory(slack=600 * MIB, reserved=2000 * MIB)
    large = session(shapes=[USUAL, runs(4, LARGE)], memory=slack)
    peaks = (peak((1, 128), t_s=3.0, mib=300), peak(), peak((1, 128), t_s=60.0, mib=902))
    (found,) = findings(RULE, program(large, peaks=peaks))
    assert found.sessions == (1,)
    assert found.bytes == 600 * MIB
    assert "keeps 600 MiB (of 1.95 GiB reserved addresses) that are free" in found.message
    assert "a run with x: 64×512. Of 103 runs 4 had such inputs" in found.message
    assert "95 % had at most 1/256 of their elements" in found.message
    assert 'add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")' in found.remedy


def test_only_resident_slack_counts() -> None:
    reserved = memory(slack=60 * MIB, reserved=600 * MIB)
    large = session(shapes=[USUAL, runs(1, LARGE)], memory=reserved)
    assert findings(RULE, program(large, peaks=(peak(),))) == []


@pytest.mark.parametrize(
    ("shapes", "slack", "peaks"),
    [
        pytest.param([USUAL, runs(1, LARGE)], 60 * MIB, [peak()], id="little slack"),
        pytest.param([USUAL, runs(6, LARGE)], 600 * MIB, [peak()], id="not rare"),
        pytest.param([USUAL, runs(1, (1, 200))], 600 * MIB, [peak((1, 200))], id="not much larger"),
        pytest.param([runs(18), runs(1, LARGE)], 600 * MIB, [peak()], id="few runs"),
        pytest.param([USUAL, runs(1, LARGE)], 600 * MIB, [], id="no run raised the mark"),
        pytest.param(
            [USUAL, runs(1, LARGE)], 600 * MIB, [peak(), peak((1, 128), t_s=60.0, mib=2000)],
            id="a usual run raised the mark later",
        ),
        pytest.param([USUAL, runs(1, LARGE)], 600 * MIB, [peak(number=2)], id="another session"),
    ],
)  # fmt: skip
def test_no_rare_large_input(
    shapes: list[InputShapes], slack: int, peaks: list[HighWaterRun]
) -> None:
    found = session(shapes=shapes, memory=memory(slack=slack))
    assert findings(RULE, program(found, peaks=tuple(peaks))) == []


def test_without_an_xray_there_is_no_slack() -> None:
    unknown = session(shapes=[USUAL, runs(1, LARGE)], memory=None)
    assert findings(RULE, program(unknown, peaks=(peak(),))) == []

from memdiag.records.run import HighWaterRun, InputShapes, ProgramRun, SessionMemory
from tests.programs.rules.cases import Case, assert_findings
from tests.programs.rules.records import MIB, memory, program, runs, session

RULE = "rare-large-input"
USUAL = runs(99, (1, 128))
LARGE = (64, 512)
MUCH = memory(slack=600 * MIB)


def peak(
    shape: tuple[int, ...] = LARGE, number: int = 1, t_s: float = 50.0, mib: int = 900
) -> HighWaterRun:
    return HighWaterRun(
        session=number, t_s=t_s, peak_rss_bytes=mib * MIB, shapes={"x": shape}, latency_s=0.01
    )


def recorded(
    *shapes: InputShapes,
    slack: SessionMemory | None = MUCH,
    peaks: tuple[HighWaterRun, ...] = (peak(),),
) -> ProgramRun:
    return program(session(shapes=shapes, memory=slack), peaks=peaks)


CASES = {
    "one large input sets the size of the arena": Case(
        recorded(
            USUAL,
            runs(4, LARGE),
            slack=memory(slack=600 * MIB, reserved=2000 * MIB),
            peaks=(peak((1, 128), t_s=3.0, mib=300), peak(), peak((1, 128), t_s=60.0, mib=902)),
        ),
        (1,),
        600 * MIB,
        "Of 103 runs 4 had such inputs",
    ),
    "reserved slack that is not resident": Case(
        recorded(USUAL, runs(1, LARGE), slack=memory(slack=60 * MIB, reserved=600 * MIB))
    ),
    "little slack": Case(recorded(USUAL, runs(1, LARGE), slack=memory(slack=60 * MIB))),
    "no X-ray": Case(recorded(USUAL, runs(1, LARGE), slack=None)),
    "not rare": Case(recorded(USUAL, runs(6, LARGE))),
    "not much larger": Case(recorded(USUAL, runs(1, (1, 200)), peaks=(peak((1, 200)),))),
    "few runs": Case(recorded(runs(18), runs(1, LARGE))),
    "no run raised the mark": Case(recorded(USUAL, runs(1, LARGE), peaks=())),
    "a usual run raised the mark later": Case(
        recorded(USUAL, runs(1, LARGE), peaks=(peak(), peak((1, 128), t_s=60.0, mib=2000)))
    ),
    "another session raised the mark": Case(
        recorded(USUAL, runs(1, LARGE), peaks=(peak(number=2),))
    ),
}


def test_findings() -> None:
    assert_findings(RULE, CASES)

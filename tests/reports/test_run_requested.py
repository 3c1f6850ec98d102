"""The lines that `memdiag xray FOLDER` prints."""

from memdiag.programs.xrays.xray_requests import XrayAnswer, XrayedProcess, XrayedSession
from memdiag.reports.run.requested import xray_answer_lines
from tests.reports.attributions import owner
from tests.reports.runs import MIB, memory


def test_owners_are_listed_by_process_and_session() -> None:
    process = XrayedProcess(
        pid=7,
        command=("/usr/bin/python", "/app/main.py"),
        owners=(
            owner("weights", "packed", 40 * MIB),
            owner("weights", "original", 20 * MIB),
            owner("arena", "slack", 30 * MIB),
            owner("python", "objects", 10 * MIB),
        ),
        sessions=(
            XrayedSession(number=1, model="a.onnx", memory=memory(60, 1, 300, resident=30)),
            XrayedSession(number=2, model=None, memory=memory(None, None, None)),
        ),
    )
    assert xray_answer_lines(XrayAnswer(asked=1, processes=(process,))) == [
        "X-rays of 1 process were added to the recording.",
        "process 7 (python main.py), 100 MiB: weights 60 MiB, arena slack 30 MiB, Python 10 MiB",
        "  session 1 (a.onnx): weight copies 60 MiB; arena 1.0 MiB in use, 30 MiB slack",
        "  session 2 (model from bytes): nothing was identified",
    ]


def test_a_process_that_could_not_be_examined_is_noted() -> None:
    failed = XrayAnswer(asked=2, processes=(), failures=("process 8: no X-ray: it has ended",))
    assert xray_answer_lines(failed) == [
        "X-rays of 0 processes of 2 were added to the recording.",
        "note: process 8: no X-ray: it has ended",
    ]
    (nothing,) = xray_answer_lines(XrayAnswer(asked=0, processes=()))
    assert nothing.startswith("No process of the recording uses onnxruntime")

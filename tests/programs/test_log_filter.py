import pytest

from memdiag.programs.log_filter import LogFilter, SessionLog

INFO = b"2026-11-23 03:00:00.123456789 [I:onnxruntime:memdiag-1, session.cc:1 Init] Initializing."
WARNING = (
    b"\x1b[0;93m2026-11-23 03:00:00.1 [W:onnxruntime:memdiag-1, graph.cc:2 Clean] Removing 'w'."
)
RESTORED = b"\x1b[0;93m2026-11-23 03:00:00.1 [W:onnxruntime:, graph.cc:2 Clean] Removing 'w'."
OTHER = b"2026-11-23 03:00:00.1 [I:onnxruntime:mine, session.cc:1 Init] Initializing."
FOREIGN = b"2026-11-23 03:00:00.1 [I:onnxruntime:memdiag-7, session.cc:1 Init] Initializing."
LOGS = {1: SessionLog(severity=2, logid="")}


@pytest.mark.parametrize(
    ("written", "passed"),
    [
        (b"plain text\n", b"plain text\n"),
        (INFO + b"\n", b""),
        (WARNING + b"\n", RESTORED + b"\n"),
        (OTHER + b"\n", OTHER + b"\n"),
        (FOREIGN + b"\n", FOREIGN + b"\n"),
        (b"before\n" + INFO + b"\nafter\n", b"before\nafter\n"),
        (b"50 %\r", b"50 %\r"),
        (b"\r1" + INFO + b"\n\r2", b"\r1\r2"),
        (b"\r50%" + WARNING + b"\n", b"\r50%" + RESTORED + b"\n"),
        (b"\r1" + OTHER + b"\n", b"\r1" + OTHER + b"\n"),
        (b"no line break", b"no line break"),
        (b"\x00\xff\xfe\n", b"\x00\xff\xfe\n"),
        (b"2026 was a year", b"2026 was a year"),
    ],
)
def test_only_the_log_of_recorded_sessions_is_taken_out(written: bytes, passed: bytes) -> None:
    log_filter = LogFilter()
    first, _ = log_filter.feed(written, LOGS)
    assert first + log_filter.finish() == passed


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_pieces_of_any_size_give_the_same(size: int) -> None:
    written = b"one\n" + INFO + b"\n2026-1x\n\r1" + WARNING + b"\n\x1b[31mred\x1b[m\n2026"
    log_filter = LogFilter()
    passed, found = bytearray(), []
    for start in range(0, len(written), size):
        some, lines = log_filter.feed(written[start : start + size], LOGS)
        passed += some
        found += lines
    passed += log_filter.finish()
    assert bytes(passed) == b"one\n2026-1x\n\r1" + RESTORED + b"\n\x1b[31mred\x1b[m\n2026"
    assert found == [(1, INFO), (1, WARNING)]


def test_what_cannot_become_a_log_line_is_passed_on_at_once() -> None:
    passed, _ = LogFilter().feed(b"Password: ", LOGS)
    assert passed == b"Password: "


def test_a_session_at_the_program_s_own_verbose_severity_logs_everything() -> None:
    logs = {1: SessionLog(severity=0, logid="mine")}
    passed, found = LogFilter().feed(INFO + b"\n", logs)
    assert passed == INFO.replace(b"memdiag-1", b"mine") + b"\n"
    assert found == [(1, INFO)]

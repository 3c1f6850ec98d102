"""X-rays at peaks that last."""

from memdiag.programs.recorded_program import RecordedProgram
from memdiag.programs.xrays.process_xrays import ProcessXrays

NEAR_PEAK = 0.97
PEAK_LASTS_S = 3.0
MIN_XRAY_PEAK_GROWTH = 1.1
"""An X-ray is taken once the memory has stayed for 3 s within 3 % of a peak that is 10 % above the
last examined peak."""

MAX_XRAY_SHARE = 0.05
"""Share of the time for which X-rays at peaks may run."""


class PeakXrays:
    """Notices peaks that last, and starts X-rays there.

    Args:
        program: the program, whose samples show the peaks.
        xrays: takes the X-rays.
    """

    def __init__(self, program: RecordedProgram, xrays: ProcessXrays) -> None:
        self._program = program
        self._xrays = xrays
        self._near_since_s = 0.0
        self._near_since_rss_bytes = 0
        self._examined_rss_bytes = 0

    def step(self, now_s: float) -> None:
        """Take X-rays if the memory has stayed near a new peak for a while."""
        rss_bytes = self._program.rss_bytes
        is_near = rss_bytes >= NEAR_PEAK * self._program.peak_rss_bytes
        is_growing = NEAR_PEAK * rss_bytes > self._near_since_rss_bytes
        if is_growing or not is_near:
            self._near_since_s, self._near_since_rss_bytes = now_s, rss_bytes
        has_grown = rss_bytes >= MIN_XRAY_PEAK_GROWTH * self._examined_rss_bytes
        is_affordable = self._xrays.duration_s <= MAX_XRAY_SHARE * now_s
        has_lasted = now_s >= self._near_since_s + PEAK_LASTS_S
        if not (has_grown and is_affordable and has_lasted) or self._xrays.pending:
            return
        if self._program.live_with_onnxruntime:
            self._examined_rss_bytes = rss_bytes
        self._xrays.start_all("peak")

"""The limits of a budget as lines on the timeline: how high, and over which phases."""

from dataclasses import dataclass

from memdiag.records.profile import Profile
from memdiag.reports.views import timeline
from memdiag.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit: resident bytes of the whole process, and from when to when, in seconds."""

    label: str
    rss_bytes: int
    start_s: float
    end_s: float
    is_exceeded: bool


def build(profile: Profile) -> tuple[Limit, ...]:
    """Return a line for each limit on resident memory that `profile` was held to."""
    judgement = profile.judgement
    if judgement is None:
        return ()
    over = {breach.figure for breach in judgement.breaches if breach.against == "budget"}
    bands = timeline.bands(profile.spans)
    found = []
    for name, limit in judgement.budget.limits.items():
        phases = {name} if name not in ("peak", "process_peak") else {band.phase for band in bands}
        own = [band for band in bands if band.phase in phases]
        if not own:
            continue
        base = 0 if name == "process_peak" else profile.baseline_rss_bytes
        found.append(
            Limit(
                label=f"budget {name} {format_size(limit)}",
                rss_bytes=base + limit,
                start_s=min(band.start_s for band in own),
                end_s=max(band.end_s for band in own),
                is_exceeded=name in over,
            )
        )
    return tuple(found)

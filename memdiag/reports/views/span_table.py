"""The spans that moved memory: which graph transformer or step grew it, and by how much."""

from collections import Counter
from dataclasses import dataclass

from memdiag.records.profile import PeakKind, PhaseName, Profile, Span
from memdiag.reports.views.text import plain
from memdiag.units import MIB, format_duration, format_size

_SMALLEST_GROWTH = MIB
_NOTABLE_SHARE = 0.05
_OF_TRANSFORMERS = ("optimize", "constant_fold")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """One span in figures: `peak_growth_bytes` is its peak above where it started."""

    name: str
    phase: PhaseName
    step: int | None
    modified: bool | None
    duration_s: float
    peak_growth_bytes: int
    peak_kind: PeakKind
    net_bytes: int

    @property
    def title(self) -> str:
        """The span's name with its step: ``ConstantFolding, step 1``."""
        return self.name if self.step is None else f"{self.name}, step {self.step}"

    @property
    def sentence(self) -> str:
        """What the span did, in words: ``+1000 MiB at its peak, +500 MiB kept``."""
        if self.peak_growth_bytes == 0 and self.net_bytes < 0:
            return f"{format_size(-self.net_bytes)} given back"
        kind = " (sampled)" if self.peak_kind == "sampled" else ""
        peak = f"{format_size(self.peak_growth_bytes, signed=True)} at its peak{kind}"
        if self.net_bytes > 0:
            return f"{peak}, {format_size(self.net_bytes, signed=True)} kept"
        if self.net_bytes < 0:
            return f"{peak}, {format_size(-self.net_bytes)} given back"
        return f"{peak}, nothing kept"

    @property
    def duration(self) -> str:
        """The span's duration in words."""
        return format_duration(self.duration_s)

    @property
    def peak_growth(self) -> str:
        """The growth at the peak, signed, with its unit."""
        return format_size(self.peak_growth_bytes, signed=True)

    @property
    def net(self) -> str:
        """What stayed, signed, with its unit."""
        return format_size(self.net_bytes, signed=True)

    @property
    def changed(self) -> str:
        """What the runtime said of a transformer: whether it changed the graph."""
        return "" if self.modified is None else "changed" if self.modified else "unchanged"


def build(profile: Profile) -> tuple[SpanRow, ...]:
    """Return every span that tells more than its phase does, largest movement of memory first.

    That is every span of the phases in which graph transformers run, and those of any other
    phase in which memory moved more than once.
    """
    rows = [row(span) for span in profile.spans]
    moves = Counter(each.phase for each in rows if max(_movement(each)) >= _SMALLEST_GROWTH)
    telling = (each for each in rows if each.phase in _OF_TRANSFORMERS or moves[each.phase] > 1)
    return tuple(sorted(telling, key=_movement, reverse=True))


def notable(profile: Profile, *, limit: int = 6) -> tuple[SpanRow, ...]:
    """Return the spans worth naming in a summary: at least 1 MiB and 5 % of the whole peak."""
    above = profile.peak_rss_bytes - profile.baseline_rss_bytes
    smallest = max(_SMALLEST_GROWTH, above * _NOTABLE_SHARE)
    return tuple(each for each in build(profile) if max(_movement(each)) >= smallest)[:limit]


def responsible(profile: Profile, phase: PhaseName) -> SpanRow | None:
    """Return the span that made `phase` grow most, or None where none stands out by 1 MiB."""
    rows = [each for each in build(profile) if each.phase == phase]
    grown = max(rows, key=lambda each: each.net_bytes, default=None)
    if grown is None or grown.net_bytes < _SMALLEST_GROWTH:
        grown = max(rows, key=_movement, default=None)
    return grown if grown and max(_movement(grown)) >= _SMALLEST_GROWTH else None


def row(span: Span) -> SpanRow:
    """Return `span` in figures."""
    return SpanRow(
        name=plain(span.name),
        phase=span.phase,
        step=span.step,
        modified=span.modified,
        duration_s=span.end_s - span.start_s,
        peak_growth_bytes=max(0, span.peak_rss_bytes - span.start_rss_bytes),
        peak_kind=span.peak_kind,
        net_bytes=span.net_rss_bytes,
    )


def _movement(each: SpanRow) -> tuple[int, int]:
    return each.peak_growth_bytes, abs(each.net_bytes)

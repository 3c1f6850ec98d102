"""How copies came and went: those in use when each phase ended, by kind."""

from dataclasses import dataclass

from memdiag.records.profile import Profile
from memdiag.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """The copies at the end of one phase: ``original 61 MiB, packed 61 MiB``, or ``none``."""

    phase: str
    count: int
    kinds: str

    @property
    def sentence(self) -> str:
        """The row in words."""
        return f"copies after {self.phase}: {self.count:,}, {self.kinds}"


def build(profile: Profile) -> tuple[PhaseRow, ...]:
    """Return a row for each phase at whose end an X-ray was taken."""
    rows = []
    for taken in profile.phase_attributions:
        copies = [copy for copy in taken.attribution.copies if copy.live is not False]
        sizes: dict[str, int] = {}
        for copy in copies:
            sizes[copy.kind] = sizes.get(copy.kind, 0) + copy.resident_bytes
        ordered = sorted(sizes.items(), key=lambda item: -item[1])
        kinds = ", ".join(f"{kind} {format_size(size)}" for kind, size in ordered)
        rows.append(PhaseRow(phase=taken.phase, count=len(copies), kinds=kinds or "none"))
    return tuple(rows)

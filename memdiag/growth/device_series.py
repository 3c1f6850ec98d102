"""The memory on a GPU over the moments: a whole, and its parts.

The whole is the first of these figures that is known at most moments. All but the last are of the
process alone:

- ``process``: what NVML reports for it. It has everything, context and code included.
- ``allocations``: what its allocations take, by CUPTI.
- ``arena``: onnxruntime's arenas, which their bookkeeping in the heap lists. Nothing has to be
  installed for that, and other processes can be read so, too.
- ``device``: what cudaMemGetInfo reports for all processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memdiag.records.growth import DeviceBasis, DeviceMoment, DevicePart, Moment

MIN_KNOWN_SHARE = 0.75
"""Share of the moments at which a figure must be known to be the whole."""


def _arena_bytes(device: DeviceMoment) -> int | None:
    if device.arena_used_bytes is None or device.arena_free_bytes is None:
        return None
    return device.arena_used_bytes + device.arena_free_bytes


def _library_bytes(device: DeviceMoment) -> int | None:
    return None if device.libraries is None else sum(device.libraries.values())


_Figure = Callable[[DeviceMoment], int | None]

_WHOLES: Mapping[DeviceBasis, _Figure] = {
    "process": lambda device: device.process_bytes,
    "allocations": lambda device: device.allocated_bytes,
    "arena": _arena_bytes,
    "device": lambda device: device.used_bytes,
}
_PARTS: Mapping[DevicePart, _Figure] = {
    "arena": lambda device: device.arena_used_bytes,
    "empty_arena": lambda device: device.arena_free_bytes,
    "libraries": _library_bytes,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSeries:
    """The memory on a GPU at the moments at which its whole is known.

    Attributes:
        basis: the figure that the whole is.
        moments: the moments.
        whole: the bytes of the whole at each of them.
        parts: the bytes of each part. A part that is not known at all of the moments is missing,
            and counts to ``rest``.
    """

    basis: DeviceBasis
    moments: tuple[Moment, ...]
    whole: tuple[int, ...]
    parts: Mapping[DevicePart, tuple[int, ...]]

    @property
    def has_all_parts(self) -> bool:
        """Whether no part is missing."""
        return self.parts.keys() >= _PARTS.keys()

    def bytes_of(self, part: DevicePart, index: int) -> int:
        """Return the bytes of a part at the moment at `index`; 0 if they count to the rest."""
        return self.parts[part][index] if part in self.parts else 0

    @property
    def libraries(self) -> tuple[Mapping[str, int], ...]:
        """The bytes of each library at the moments, by name; none where they are not known."""
        return tuple((moment.device and moment.device.libraries) or {} for moment in self.moments)


def device_series(moments: Sequence[Moment]) -> DeviceSeries | None:
    """Return the memory on the GPU at `moments`; None if it is not known at any."""
    devices = [moment.device for moment in moments if moment.device is not None]
    counts = {
        basis: sum(whole_of(device) is not None for device in devices)
        for basis, whole_of in _WHOLES.items()
    }
    if not any(counts.values()):
        return None
    most_known = max(counts, key=counts.__getitem__)
    often_known = (
        basis for basis, count in counts.items() if count >= MIN_KNOWN_SHARE * len(devices)
    )
    basis = next(often_known, most_known)
    known = [
        (moment, moment.device, whole)
        for moment in moments
        if moment.device is not None and (whole := _WHOLES[basis](moment.device)) is not None
    ]
    parts: dict[DevicePart, tuple[int, ...]] = {}
    for part, part_of in _PARTS.items():
        sizes = tuple(size for _, device, _ in known if (size := part_of(device)) is not None)
        if len(sizes) == len(known):
            parts[part] = sizes
    whole_bytes = tuple(whole for _, _, whole in known)
    parts["rest"] = tuple(
        whole - sum(sizes[index] for sizes in parts.values())
        for index, whole in enumerate(whole_bytes)
    )
    return DeviceSeries(
        basis=basis,
        moments=tuple(moment for moment, _, _ in known),
        whole=whole_bytes,
        parts=parts,
    )

"""The attribution: who owns each resident byte of a process (schema ``memdiag.attribution/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record, SavableRecord

ATTRIBUTION_SCHEMA: Final = "memdiag.attribution/1"

OwnerKind = Literal[
    "weights",
    "kv_cache",
    "external_data",
    "arena",
    "allocator_retained",
    "runtime_libraries",
    "provider_libraries",
    "python",
    "other_libraries",
    "mapped_files",
    "thread_stacks",
    "other_heap",
    "unnamed",
]
"""``weights``: copies, by kind; ``kv_cache``: keys and values that a profile's generation feeds to
its next call, named by their formula; ``external_data``: mapped files of the model, except for
copies; ``arena``: the runtime's arena, except for weights in it; ``allocator_retained``: freed
blocks that malloc retains; ``provider_libraries``: execution providers, and libraries that only
they use; ``python``: the interpreter, extension modules and Python's heap; ``mapped_files``: files
other than libraries, and shared memory; ``other_heap``: other blocks of malloc in use; ``unnamed``:
the rest."""

ARENA_IN_USE_NAME: Final = "in use"
ARENA_SLACK_NAME: Final = "slack"
ARENA_UNKNOWN_NAME: Final = "in use or slack"
"""Names of the owners of kind ``arena``. The last one has the arenas whose chunks are not known, or
are not consistent."""

HEAP_IN_USE_NAME: Final = "blocks in use"
HEAP_UNKNOWN_NAME: Final = "blocks in use or retained"
"""Names of the owners of kind ``other_heap``. The second one has the heap of an allocator whose
freed blocks are not known, together with memory that the program itself maps."""

PYTHON_MODULES: Final = "interpreter and extension modules"
"""Name of the owner of kind ``python`` that has the pages of libraries. The others have objects."""

CopyKind = Literal["original", "transposed", "packed", "reordered", "dequantized", "cast", "fused"]
"""``fused``: values in any layout that the runtime computed from weights (a Conv with its
BatchNormalization, a folded product), found in the model that it saves after optimizing."""


WHOLE_FILE_COPY_NAME: Final = "(the model's file)"
"""The name of copies of the whole file, in programs that loaded the model from bytes."""


class Owner(Record, frozen=True, kw_only=True):
    """One owner and its resident bytes. Each byte has exactly one owner.

    Attributes:
        private_bytes: the part of `bytes` that no other process maps.
    """

    kind: OwnerKind
    name: str
    bytes: int
    private_bytes: int


class Backing(Record, frozen=True, kw_only=True):
    """The memory of a copy: anonymous, or mapped from a file at `offset`.

    Attributes:
        file: the name of the file without its folders.
    """

    kind: Literal["anonymous", "file"]
    file: str | None = None
    offset: int | None = None


class SearchedModel(Record, frozen=True, kw_only=True):
    """A model whose weights were searched.

    Attributes:
        name: the file name, with as many folders as are needed to distinguish it from others.
    """

    name: str
    weight_bytes: int


class Copy(Record, frozen=True, kw_only=True):
    """One occurrence of a weight's content in memory.

    Attributes:
        weights: the names of all weights with this content.
        parameters: details of the layout, such as block sizes.
        bytes: the size of the copy at `address`; `resident_bytes` of them are resident.
        verified_bytes: the bytes that were compared with the model.
        in_use: True in a block in use, False in a freed block that malloc or the arena keeps, None
            if unknown.
        made_by: the origin, with the node, as far as it is known: ``parse``, a graph transformer,
            ``prepack`` (a kernel, before the first run) or ``kernel`` (a kernel that ran).
        models: indices into the attribution's `models` of the models with this content; empty if
            only one model was searched.
        private_bytes: the part of `resident_bytes` that no other process maps; None for copies in
            mapped files.
    """

    weights: tuple[str, ...]
    layout: str
    kind: CopyKind
    parameters: dict[str, str]
    bytes: int
    resident_bytes: int
    address: int
    backing: Backing
    verified_bytes: int
    in_use: bool | None
    made_by: str | None
    models: tuple[int, ...] = ()
    private_bytes: int | None = None


class ArenaUsage(Record, frozen=True, kw_only=True):
    """One arena of onnxruntime.

    Attributes:
        session: the number of the session to which it belongs; None if it is not known.
        used_bytes, slack_bytes: the bytes of its chunks in use, and of free ones, resident or not.
        resident_slack_bytes: the resident bytes of the free ones.
        resident_used_bytes: the resident bytes of the chunks in use, without weights.
    """

    session: int | None
    used_bytes: int
    slack_bytes: int
    resident_slack_bytes: int
    resident_used_bytes: int


class DeviceArena(Record, frozen=True, kw_only=True):
    """An arena of onnxruntime in the memory of another device. None of its bytes is resident.

    Attributes:
        device: onnxruntime's name of the memory, such as ``Cuda``.
        used_bytes, slack_bytes: the bytes of its chunks in use, and of free ones.
        used_ranges, slack_ranges: their addresses on the device, start and end (exclusive), with
            adjacent ones joined.
    """

    device: str
    used_bytes: int
    slack_bytes: int
    used_ranges: tuple[tuple[int, int], ...] = ()
    slack_ranges: tuple[tuple[int, int], ...] = ()


class Unidentifiable(Record, frozen=True, kw_only=True):
    """Weights whose content cannot be distinguished from other data; they are not searched.

    Attributes:
        reason: the reason.
        count: the number of weights.
        bytes: their size in the model.
        weights: the first of their names.
    """

    reason: str
    count: int
    bytes: int
    weights: tuple[str, ...]


class ScanTiming(Record, frozen=True, kw_only=True):
    """Durations of the X-ray, and the bytes that it read and compared."""

    total_s: float
    scan_s: float
    verify_s: float
    scanned_bytes: int
    verified_bytes: int

    @property
    def scan_gb_per_s(self) -> float | None:
        """The speed of the scan in 10**9 bytes per second; None if nothing was scanned."""
        return self.scanned_bytes / self.scan_s / 1e9 if self.scan_s > 0 else None


class Attribution(SavableRecord, frozen=True, kw_only=True):
    """The owners of the memory of process `pid` at one moment, without its content.

    Attributes:
        resident_bytes: the sum of the owners' bytes.
        baseline_bytes: the resident bytes before the model was loaded; None if unknown.
        named_share: the share of the memory above the baseline that has a name; of all memory
            without a baseline.
        indistinct: weights that were not searched.
        partial: whether some memory could not be read.
        notes: sentences on what could not be read.
        models: the models whose weights were searched.
        arenas: the arenas in host memory whose chunks are consistent.
        device_arenas: the arenas of other devices.
        allocator: the malloc of the process, such as ``glibc`` or ``jemalloc``, by its libraries;
            None if none was recognised.

    Raises:
        ValueError: the owners do not sum up, or a figure is out of bounds.
    """

    schema: Literal["memdiag.attribution/1"]
    pid: int
    resident_bytes: int
    baseline_bytes: int | None
    named_share: float
    owners: tuple[Owner, ...]
    copies: tuple[Copy, ...]
    indistinct: tuple[Unidentifiable, ...]
    partial: bool
    notes: tuple[str, ...]
    timing: ScanTiming
    models: tuple[SearchedModel, ...] = ()
    arenas: tuple[ArenaUsage, ...] = ()
    allocator: str | None = None
    device_arenas: tuple[DeviceArena, ...] = ()

    def __post_init__(self) -> None:
        owner_bytes = sum(owner.bytes for owner in self.owners)
        if owner_bytes != self.resident_bytes:
            raise ValueError(
                f"the owners have {owner_bytes} bytes, {self.resident_bytes} are resident"
            )
        if any(owner.bytes < 0 for owner in self.owners):
            raise ValueError("an owner has less than no bytes")
        if not 0 <= self.named_share <= 1:
            raise ValueError("the named share is not between 0 and 1")
        for copy in self.copies:
            if not all(0 <= model < len(self.models) for model in copy.models):
                raise ValueError(f"the copy at {copy.address:#x} is of a model that is not listed")
            if not 0 <= copy.resident_bytes <= copy.bytes >= copy.verified_bytes >= 0:
                raise ValueError(f"the copy at {copy.address:#x} has parts larger than itself")

    def bytes_of(self, kind: OwnerKind, name: str | None = None) -> int:
        """Return the bytes of all owners of `kind` together, or of those called `name`."""
        owners = (owner for owner in self.owners if owner.kind == kind)
        return sum(owner.bytes for owner in owners if name in (None, owner.name))

    @property
    def arena_slack_bytes(self) -> int:
        """The free bytes that onnxruntime's arenas keep."""
        return self.bytes_of("arena", ARENA_SLACK_NAME)

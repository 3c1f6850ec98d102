"""The attribution: who owns each resident byte of a process (schema ``memdiag.attribution/1``)."""

from typing import Final, Literal

from memdiag.records.base import Record, Savable

ATTRIBUTION_SCHEMA: Final = "memdiag.attribution/1"

OwnerKind = Literal[
    "weights",
    "external_data",
    "arena",
    "allocator_retained",
    "runtime_libraries",
    "python",
    "other_libraries",
    "mapped_files",
    "thread_stacks",
    "other_heap",
    "unnamed",
]
"""``weights``: copies, named by their kind; ``external_data``: the model's own files, mapped, where
they are no copy already; ``arena``: the runtime's arena, apart from the weights in it;
``allocator_retained``: freed blocks that malloc keeps; ``python``: the interpreter, extension
modules and Python's heap; ``mapped_files``: files that are no libraries, and shared memory;
``other_heap``: blocks of malloc in use for anything else; ``unnamed``: the rest."""

CopyKind = Literal["original", "transposed", "packed", "reordered", "dequantized", "cast", "fused"]
"""``fused``: values that the runtime computed from weights (a Conv with its BatchNormalization, a
folded product), recognised through the model that it saves after optimizing, whatever their
layout."""


MODEL_FILE: Final = "(the model's file)"
"""In place of a weight's name, in copies of the whole file: a program loaded it from bytes."""

Verification = Literal["full", "sampled"]
"""``full``: every byte of a copy was compared that the layout defines; ``sampled``: of copies above
1 MiB a spread of blocks."""


class Owner(Record, frozen=True, kw_only=True):
    """One owner and the resident bytes it has; no byte has two owners."""

    kind: OwnerKind
    name: str
    bytes: int


class Backing(Record, frozen=True, kw_only=True):
    """What is behind a copy's memory: nothing (``anonymous``), or a file from `offset` bytes on.

    `file` is the file's name without its folders.
    """

    kind: Literal["anonymous", "file"]
    file: str | None = None
    offset: int | None = None


class SearchedModel(Record, frozen=True, kw_only=True):
    """A model whose weights were looked for: its file name, with as many of its folders as it takes
    to tell it from the others, and the bytes of its weights."""

    name: str
    weight_bytes: int


class Copy(Record, frozen=True, kw_only=True):
    """One occurrence of a weight's content in memory.

    `weights` are the names of all weights with this content. `parameters` say more of the layout,
    such as block sizes. `bytes` is the extent at `address`, `resident_bytes` its resident part,
    `verified_bytes` how much of it was compared with the model. `live` is True in a block in
    use, False in one that malloc or the arena keeps after it was freed, None where not known.
    `made_by` names what made it, and for which node, as far as that is known: ``parse``, a graph
    transformer, ``prepack`` (a kernel, ahead of the first run) or ``kernel`` (one that ran).
    `models` are the indices, in the attribution's `models`, of all models with this content; empty
    where no more than one model was looked for.
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
    live: bool | None
    made_by: str | None
    models: tuple[int, ...] = ()


class AddressRange(Record, frozen=True, kw_only=True):
    """Where an owner's resident bytes lie: `resident_bytes` of them in `bytes` from `start` on.

    `owner` is the owner's place in the attribution's `owners`, `copy` that of the copy it holds
    a part of in its `copies` (None where it holds none, or one too small to be listed apart).

    Parts of one owner that lie close may be joined to one range, over what lies between them: that
    may not be resident, or be others', whose ranges then begin within this one. The resident bytes
    of a range are the owner's alone.
    """

    start: int
    bytes: int
    resident_bytes: int
    owner: int
    copy: int | None


class Indistinct(Record, frozen=True, kw_only=True):
    """Weights that no content tells from others, with the reason; they are never guessed.

    `bytes` is their size in the model; `weights` the first of their names, `count` how many they
    are.
    """

    reason: str
    count: int
    bytes: int
    weights: tuple[str, ...]


class ScanTiming(Record, frozen=True, kw_only=True):
    """What the X-ray took: the whole in seconds, and the scan with the bytes it read."""

    total_s: float
    scan_s: float
    verify_s: float
    scanned_bytes: int
    verified_bytes: int

    @property
    def scan_gb_per_s(self) -> float | None:
        """The scan's speed in 10**9 bytes a second; None where nothing was scanned."""
        return self.scanned_bytes / self.scan_s / 1e9 if self.scan_s > 0 else None


class Attribution(Savable, frozen=True, kw_only=True):
    """Who owns what in process `pid` at one moment; addresses, sizes and names, never content.

    The owners' bytes sum to `resident_bytes`. `baseline_bytes` is what was resident before the
    model was loaded, None for a process that was not seen then. `named_share` is the part
    with a name of what is resident above the baseline (of all, without one). `verification` says
    how the copies were compared with the model. `partial` says that not all could be read; `notes`
    tell what, in sentences. `ranges` are where each owner's bytes lie, ordered by address (empty
    in records that were saved without them). `models` are the models whose weights were looked
    for.

    Raises:
        ValueError: the owners or the ranges do not sum up, or a figure is out of bounds.
    """

    schema: Literal["memdiag.attribution/1"]
    pid: int
    resident_bytes: int
    baseline_bytes: int | None
    named_share: float
    owners: tuple[Owner, ...]
    copies: tuple[Copy, ...]
    indistinct: tuple[Indistinct, ...]
    verification: Verification
    partial: bool
    notes: tuple[str, ...]
    timing: ScanTiming
    ranges: tuple[AddressRange, ...] = ()
    models: tuple[SearchedModel, ...] = ()

    def __post_init__(self) -> None:
        owned = sum(owner.bytes for owner in self.owners)
        if owned != self.resident_bytes:
            raise ValueError(f"the owners have {owned} bytes, {self.resident_bytes} are resident")
        if any(owner.bytes < 0 for owner in self.owners):
            raise ValueError("an owner has less than no bytes")
        if not 0 <= self.named_share <= 1:
            raise ValueError("the named share is not between 0 and 1")
        for copy in self.copies:
            if not all(0 <= model < len(self.models) for model in copy.models):
                raise ValueError(f"the copy at {copy.address:#x} is of a model that is not listed")
            if not 0 <= copy.resident_bytes <= copy.bytes >= copy.verified_bytes >= 0:
                raise ValueError(f"the copy at {copy.address:#x} has more parts than bytes")
        if self.ranges:
            self._check_ranges()

    def _check_ranges(self) -> None:
        placed = [0] * len(self.owners)
        reached = 0
        for one in self.ranges:
            if not 0 <= one.resident_bytes <= one.bytes or one.start < reached:
                raise ValueError(f"the range at {one.start:#x} is out of order or of bounds")
            if not 0 <= one.owner < len(self.owners):
                raise ValueError(f"the range at {one.start:#x} has an owner that is not listed")
            if one.copy is not None and not 0 <= one.copy < len(self.copies):
                raise ValueError(f"the range at {one.start:#x} has a copy that is not listed")
            placed[one.owner] += one.resident_bytes
            reached = one.start
        if placed != [owner.bytes for owner in self.owners]:
            raise ValueError("the ranges do not have the bytes of their owners")

    def bytes_of(self, kind: OwnerKind) -> int:
        """Return the bytes of all owners of `kind` together."""
        return sum(owner.bytes for owner in self.owners if owner.kind == kind)

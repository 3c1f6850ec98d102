"""Blocks of malloc that came into use and stayed: their sizes, numbers and contents."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from memdiag.attribution.process_memory import ProcessMemory
from memdiag.growth.moment import MemoryMoment
from memdiag.model.model_file import ModelFile
from memdiag.records.growth import GrowingBlocks
from memdiag.records.weights import qualified_name

MAX_RECORDED_SIZES = 12
"""Sizes of blocks in a record."""

MIN_BLOCKS_SHARE = 0.01
"""Share of all growth below which a size of blocks is left out."""

MIN_CONTENT_SHARE = 0.5
"""The program keeps a content if it is recognised at this share of the readings or more."""

_MAX_COMPARED = 4096  # blocks of a size whose content is compared
_MAX_CONTENT_OFFSET = 160  # from the start of a block to its content: headers and alignment
_MIN_PREFIX_BYTES = 32  # shorter values also occur by chance, in blocks with stale content

_WEIGHT_PREFIX_BYTES = 64
_MAX_RATIO = 1.05  # of a block to the weight it contains


class KnownContent(NamedTuple):
    """Content to recognise in a block of malloc.

    Attributes:
        description: such as "input 'x'".
        prefix: its first bytes.
        nbytes: the size of the whole content in bytes; 0 if it is not known. A block that contains
            it has about the same size.
    """

    description: str
    prefix: bytes
    nbytes: int = 0

    def fits(self, block_bytes: int) -> bool:
        """Return whether a block of `block_bytes` may have this content."""
        max_bytes = self.nbytes * _MAX_RATIO + _MAX_CONTENT_OFFSET
        return not self.nbytes or self.nbytes <= block_bytes <= max_bytes


def known_weights(model_file: ModelFile) -> list[KnownContent]:
    """Return the contents of the weights of an open model whose raw bytes are in a file."""
    return [
        KnownContent(
            f"weight {qualified_name(weight)!r}",
            bytes(model_file.raw_bytes(weight)[:_WEIGHT_PREFIX_BYTES]),
            weight.nbytes,
        )
        for weight in model_file.weights
        if weight.file is not None
    ]


def growing_blocks(
    pid: int, before: MemoryMoment, after: MemoryMoment, contents: Iterable[KnownContent]
) -> tuple[GrowingBlocks, ...]:
    """Return the sizes of blocks whose number grew, with their contents, most bytes first.

    Args:
        pid: the process, which has been waiting since `after`.
        before: the memory after the warm-up.
        after: the memory now.
        contents: the contents to recognise.

    Raises:
        XrayError: the process cannot be read.
    """
    earlier_starts = set(before.blocks[:, 0].tolist())
    distinct_contents = [
        content
        for content in contents
        if len(content.prefix) >= _MIN_PREFIX_BYTES and any(content.prefix)
    ]
    lengths = after.blocks[:, 1] - after.blocks[:, 0]
    blocks = []
    with ProcessMemory(pid) as memory:
        for grown_size in grown_blocks(before, after):
            starts = after.blocks[lengths == grown_size.block_bytes, 0].tolist()
            new_starts = np.array(
                [start for start in starts if start not in earlier_starts], np.int64
            )
            fitting_contents = [
                content for content in distinct_contents if content.fits(grown_size.block_bytes)
            ]
            content = _block_content(
                memory, new_starts[-_MAX_COMPARED:], grown_size.block_bytes, fitting_contents
            )
            blocks.append(msgspec.structs.replace(grown_size, content=content))
    return tuple(blocks)


def recognised_contents(
    pid: int, before: MemoryMoment, after: MemoryMoment, starts: Mapping[str, tuple[str, int]]
) -> dict[int, str]:
    """Return descriptions of the values in blocks that came into use, by the size of the blocks.

    Args:
        pid: the process, which has been waiting since `after`.
        before: the memory before the blocks came into use.
        after: the memory now.
        starts: the first bytes of values in hexadecimal, and their sizes in bytes, by description.

    Raises:
        XrayError: the process cannot be read.
    """
    if not starts:
        return {}
    values = [
        KnownContent(name, bytes.fromhex(start), nbytes) for name, (start, nbytes) in starts.items()
    ]
    grown = growing_blocks(pid, before, after, values)
    return {block.block_bytes: block.content for block in grown if block.content}


def repeated_contents(readings: Sequence[Mapping[int, str]], sizes: Set[int]) -> dict[int, str]:
    """Return the contents of blocks of `sizes` that were recognised again and again.

    A program that keeps copies has a copy of each run. numpy also caches a few freed blocks of each
    size, which still have the content of some run.

    Args:
        readings: at each reading the contents that `recognised_contents` returned.
        sizes: the sizes in bytes of the blocks whose number grows steadily.
    """
    growing_readings = [
        {size: reading[size] for size in reading.keys() & sizes} for reading in readings
    ]
    counts = Counter(content for contents in growing_readings for content in set(contents.values()))
    return {
        size: content
        for contents in growing_readings
        for size, content in contents.items()
        if counts[content] >= MIN_CONTENT_SHARE * len(readings)
    }


def grown_blocks(
    before: MemoryMoment,
    after: MemoryMoment,
    *,
    sizes: frozenset[int] = frozenset(),
    contents: Mapping[int, str] = MappingProxyType({}),
) -> tuple[GrowingBlocks, ...]:
    """Return the sizes of blocks whose number grew, without reading contents.

    Args:
        before: the memory after the warm-up.
        after: the memory at the end.
        sizes: the sizes of blocks whose number grows steadily. Only these are returned, or all
            sizes if `sizes` is empty.
        contents: known contents, by the size of the blocks.
    """
    runs = after.moment.run - before.moment.run
    count_by_size = {
        size: count - before.block_counts.get(size, 0)
        for size, count in after.block_counts.items()
        if count > before.block_counts.get(size, 0) and (size in sizes or not sizes)
    }
    total_bytes = sum(size * count for size, count in count_by_size.items())
    large_sizes = [
        size
        for size in count_by_size
        if size * count_by_size[size] >= MIN_BLOCKS_SHARE * total_bytes
    ]
    large_sizes.sort(key=lambda size: -size * count_by_size[size])
    return tuple(
        GrowingBlocks(
            block_bytes=size,
            blocks=count_by_size[size],
            blocks_per_run=count_by_size[size] / runs if runs else None,
            content=contents.get(size, ""),
        )
        for size in large_sizes[:MAX_RECORDED_SIZES]
    )


def _block_content(
    memory: ProcessMemory, starts: np.ndarray, size: int, contents: Sequence[KnownContent]
) -> str:
    """Return the description of a content that a block has; empty if no block has one."""
    if not contents or not len(starts):
        return ""
    length = min(size, _MAX_CONTENT_OFFSET + max(len(content.prefix) for content in contents))
    blocks, _ = memory.read_blocks(starts, length)
    for block in blocks:
        data = block.tobytes()
        for content in contents:
            if content.prefix[: size - 16] in data:
                return content.description
    return ""

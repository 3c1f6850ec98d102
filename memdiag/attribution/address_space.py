"""Address space of a running process: its regions, and their resident bytes.

Regions and their resident bytes come from ``/proc/PID/smaps``, single pages from
``/proc/PID/pagemap`` (Documentation/admin-guide/mm/pagemap.rst in the kernel's sources: bit 63
present, bit 61 a page of a file or of shared memory, bit 56 mapped by this process alone). Not
every present page is part of the resident set: the kernel counts neither the shared page of zeros
(memory that was read but never written) nor the clock pages of the vdso. They are left out here,
so that the resident ranges sum to the kernel's figure.
"""

import mmap
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memdiag.attribution import intervals
from memdiag.attribution.intervals import ByteRanges
from memdiag.errors import XrayError

PAGE_BYTES = mmap.PAGESIZE

_PRESENT_BIT = np.uint64(1 << 63)
_FILE_PAGE_BIT = np.uint64(1 << 61)
_EXCLUSIVE_BIT = np.uint64(1 << 56)
_MAX_ENTRIES_PER_READ = 1 << 17
_SMAPS_HEADER = re.compile(
    rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)"
)
_SMAPS_FIELD = re.compile(rb"(\w+): +(\d+) kB")
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")
_DELETED_SUFFIX = " (deleted)"


@dataclass(frozen=True, kw_only=True)
class Region:
    """One mapping of a process, as listed by the kernel.

    Attributes:
        start: first address.
        end: address after the last byte.
        permissions: as in smaps, such as ``rw-p``.
        offset: bytes from the start of the file to the mapping.
        device: (major, minor) of the file's device.
        inode: the file's inode; 0 without a file.
        path: the mapped file, the kernel's name in brackets such as ``[heap]``, or empty.
        deleted: whether the file was deleted.
        rss: resident bytes according to the kernel.
        anonymous: resident bytes that no file backs.
    """

    start: int
    end: int
    permissions: str
    offset: int
    device: tuple[int, int]
    inode: int
    path: str
    deleted: bool
    rss: int
    anonymous: int

    @property
    def size(self) -> int:
        """Bytes of the mapping, resident or not."""
        return self.end - self.start

    @property
    def name(self) -> str:
        """The file's name without its folders, or the kernel's name for the region."""
        return self.path.rpartition("/")[2]

    @property
    def file_backed(self) -> bool:
        """Whether a file, or shared memory, is mapped here."""
        return self.inode != 0

    @property
    def nameless(self) -> bool:
        """Whether this is anonymous memory from mmap, without a name of its own."""
        return self.inode == 0 and (not self.path or self.path.startswith("[anon"))


@dataclass(frozen=True, kw_only=True, eq=False)
class AddressSpace:
    """The regions of a process at one moment, and their resident bytes.

    Attributes:
        pid: the process.
        regions: the regions, in the order of addresses.
        resident: resident byte ranges of all regions.
        anonymous: resident byte ranges that no file backs.
        exclusive: resident byte ranges that no other process maps.
        partial: whether the process ended while it was read.
        drift_bytes: sum over regions of the difference between the resident pages and the kernel's
            count: the bytes that a running process changed while they were read.
    """

    pid: int
    regions: tuple[Region, ...]
    resident: ByteRanges
    anonymous: ByteRanges
    exclusive: ByteRanges
    partial: bool
    drift_bytes: int

    @property
    def resident_bytes(self) -> int:
        """Bytes of the resident set: the sum of all resident ranges."""
        return intervals.total_bytes(self.resident)

    @property
    def mapped_names(self) -> set[str]:
        """The names of the files that the process maps, among them the libraries it has loaded."""
        return {region.name for region in self.regions if region.file_backed}

    def resident_bytes_of(self, ranges: ByteRanges) -> int:
        """Return the number of resident bytes in the set `ranges`."""
        return intervals.total_bytes(intervals.intersect(self.resident, ranges))

    def region_at(self, address: int) -> Region | None:
        """Return the region that contains `address`; None if there is none."""
        low, high = 0, len(self.regions)
        while low < high:
            middle = (low + high) // 2
            if self.regions[middle].end <= address:
                low = middle + 1
            else:
                high = middle
        if low < len(self.regions) and self.regions[low].start <= address:
            return self.regions[low]
        return None


def read_address_space(pid: int) -> AddressSpace:
    """Return the current address space of process `pid`.

    Raises:
        XrayError: the process does not exist, or access is denied.
    """
    smaps, pagemap = _open_proc_file(pid, "smaps"), -1
    try:
        pagemap = _open_proc_file(pid, "pagemap")
        regions = tuple(_ascending_regions(parse_smaps(_read_whole_file(smaps))))
        if not regions:
            raise no_such_process(pid)
        return _measured_address_space(pid, regions, pagemap)
    finally:
        os.close(smaps)
        if pagemap >= 0:
            os.close(pagemap)


def parse_smaps(text: bytes) -> Iterator[Region]:
    """Yield the regions in the text of a ``smaps`` file."""
    header: tuple[bytes, ...] | None = None
    fields: dict[bytes, int] = {}
    for line in text.split(b"\n"):
        if field := _SMAPS_FIELD.match(line):
            fields[field[1]] = int(field[2]) * 1024
        elif match := _SMAPS_HEADER.fullmatch(line):
            if header:
                yield _parsed_region(header, fields)
            header, fields = match.groups(), {}
    # If the process ends while it is read, the last region may have no figures.
    if header and b"Rss" in fields:
        yield _parsed_region(header, fields)


def access_denied(pid: int) -> XrayError:
    """Return the error for a process whose memory may not be read."""
    return XrayError(
        f"process {pid}: no permission to read its memory. Run memdiag as the same user or with "
        "CAP_SYS_PTRACE, and check that the sysctl kernel.yama.ptrace_scope allows it."
    )


def no_such_process(pid: int) -> XrayError:
    """Return the error for a process that does not exist."""
    return XrayError(f"process {pid} does not exist. Give the id of a running process.")


def is_file(region: Region, files: Iterable[Path]) -> bool:
    """Return whether `region` maps one of `files`, by its real path or by device and inode."""
    for file in files:
        if region.path == os.path.realpath(file):
            return True
        try:
            status = file.stat()
        except OSError:
            continue
        device = (os.major(status.st_dev), os.minor(status.st_dev))
        if (device, status.st_ino) == (region.device, region.inode):
            return True
    return False


def _open_proc_file(pid: int, name: str) -> int:
    try:
        return os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError) as error:
        if isinstance(error, FileNotFoundError) and os.path.exists(f"/proc/{pid}"):
            raise XrayError(
                f"process {pid}: /proc has no {name} file on this system. "
                "Run memdiag outside the sandbox that hides it."
            ) from error
        raise no_such_process(pid) from error
    except PermissionError as error:
        raise access_denied(pid) from error
    except OSError as error:
        raise XrayError(
            f"process {pid}: its {name} file in /proc cannot be opened ({error.strerror}). "
            "Run memdiag outside the sandbox that hides it."
        ) from error


def _read_whole_file(file: int) -> bytes:
    chunks = []
    try:
        while chunk := os.read(file, 1 << 20):
            chunks.append(chunk)
    except ProcessLookupError:
        pass  # the process ended: use the part that was read
    except PermissionError:
        return b""  # the process executed a program of another user
    return b"".join(chunks)


def _parsed_region(header: tuple[bytes, ...], fields: dict[bytes, int]) -> Region:
    start, end, permissions, offset, major, minor, inode, escaped_path = header
    # The kernel escapes only line feeds in a name, as octal numbers.
    path = _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), os.fsdecode(escaped_path))
    deleted = path.endswith(_DELETED_SUFFIX) and path.startswith("/")
    return Region(
        start=int(start, 16),
        end=int(end, 16),
        permissions=permissions.decode(),
        offset=int(offset, 16),
        device=(int(major, 16), int(minor, 16)),
        inode=int(inode),
        path=path.removesuffix(_DELETED_SUFFIX) if deleted else path,
        deleted=deleted,
        rss=fields.get(b"Rss", 0),
        anonymous=fields.get(b"Anonymous", 0),
    )


def _ascending_regions(regions: Iterable[Region]) -> Iterator[Region]:
    """Yield `regions` except those that overlap earlier ones: the map may change during reading."""
    last_end = 0
    for region in regions:
        if last_end <= region.start and region.end < intervals.LAST_ADDRESS:
            last_end = region.end
            yield region


def _measured_address_space(pid: int, regions: tuple[Region, ...], pagemap: int) -> AddressSpace:
    resident, anonymous = [intervals.empty_ranges()], [intervals.empty_ranges()]
    exclusive = [intervals.empty_ranges()]
    partial, drift = False, 0
    for region in regions:
        if not region.rss:
            continue
        flags = _page_flags(region, pagemap)
        if flags is None:
            partial = True
            break
        counted_pages = _resident_pages(flags, region)
        drift += abs(int(counted_pages.sum()) * PAGE_BYTES - region.rss)
        resident.append(_page_ranges(counted_pages, region.start))
        anonymous.append(_page_ranges(counted_pages & (flags & _FILE_PAGE_BIT == 0), region.start))
        exclusive.append(_page_ranges(counted_pages & (flags & _EXCLUSIVE_BIT != 0), region.start))
    return AddressSpace(
        pid=pid,
        regions=regions,
        resident=intervals.union(*resident),
        anonymous=intervals.union(*anonymous),
        exclusive=intervals.union(*exclusive),
        partial=partial,
        drift_bytes=drift,
    )


def _page_flags(region: Region, pagemap: int) -> NDArray[np.uint64] | None:
    """Return the entry of each page up to the last resident one; None if the process ended."""
    page_count = region.size // PAGE_BYTES
    chunks: list[NDArray[np.uint64]] = []
    position, resident_pages = 0, 0
    while position < page_count:
        entry_count = min(_MAX_ENTRIES_PER_READ, page_count - position)
        try:
            data = os.pread(pagemap, entry_count * 8, (region.start // PAGE_BYTES + position) * 8)
        except OSError:
            return None
        if len(data) < entry_count * 8:
            return None
        chunk = np.frombuffer(data, np.uint64)
        chunks.append(chunk)
        position += entry_count
        # Some programs reserve terabytes: stop at the kernel's count of resident pages.
        resident_pages += int(((chunk & _PRESENT_BIT != 0) & ~_may_be_zeros(chunk, region)).sum())
        if resident_pages * PAGE_BYTES >= region.rss:
            break
    return np.concatenate(chunks)


def _may_be_zeros(flags: NDArray[np.uint64], region: Region) -> NDArray[np.bool_]:
    """Return which pages may be the shared page of zeros.

    It is never exclusive. Only its huge version is marked as a page of a file.
    """
    marks = _EXCLUSIVE_BIT | _FILE_PAGE_BIT if region.file_backed else _EXCLUSIVE_BIT
    may_be_zeros: NDArray[np.bool_] = np.equal(flags & marks, 0)
    return may_be_zeros


def _resident_pages(flags: NDArray[np.uint64], region: Region) -> NDArray[np.bool_]:
    """Return which pages the kernel counts as resident, given its count.

    Pages of zeros cannot be distinguished from pages shared with a forked process, except by
    number: if a region has both, the first ones are assumed to count.
    """
    is_present: NDArray[np.bool_] = np.not_equal(flags & _PRESENT_BIT, 0)
    surplus = int(is_present.sum()) - region.rss // PAGE_BYTES
    if surplus > 0:
        ambiguous = np.flatnonzero(is_present & _may_be_zeros(flags, region))
        is_present[ambiguous[max(len(ambiguous) - surplus, 0) :]] = False
    return is_present


def _page_ranges(pages: NDArray[np.bool_], start: int) -> ByteRanges:
    """Return the runs of true pages as byte ranges, for a region that starts at `start`."""
    steps = np.diff(np.concatenate(([False], pages, [False])).astype(np.int8))
    first, last = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return np.stack((first, last), axis=1).astype(np.int64) * PAGE_BYTES + start

"""Modules of a process: programs and libraries, with the memory that belongs to each.

Besides the pages of its file, a module has zero-initialised variables: anonymous memory after the
mapped data, which the kernel may join with the next mapping. Its size is read from the module's
own header in memory (ELF-64, program headers of type PT_LOAD; see elf(5)).
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from memdiag.attribution import intervals
from memdiag.attribution.address_space import PAGE_BYTES, AddressSpace, Region
from memdiag.attribution.intervals import ByteRanges
from memdiag.attribution.process_memory import ProcessMemory

ModuleKind = Literal["runtime", "provider", "python", "other"]

_ELF_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD = 1
_ELF_HEADERS_BYTES = 4096
_FILE_HEADER = struct.Struct("<32xQ14xHH")  # offset, size and number of the program headers
_PROGRAM_HEADER = struct.Struct("<I12xQ16xQ8x")  # type, virtual address, size in memory

_PYTHON_MODULE_PATH = re.compile(
    r".*/(site-packages|dist-packages|lib-dynload)/.*"
    r"|.*/(lib)?python[\d.]*\w*(\.so[\d.]*)?"
    r"|.*\.(cpython-\w+(-[\w-]+)?|abi3)\.so"
)
_PROVIDER_FILE_NAME = re.compile(
    r"libonnxruntime_providers_(?!shared\b)\w+\.\w+"
    r"|lib(openvino|tbb|dnnl)[\w.-]*"
    r"|lib(cuda|cudart|cublas|cublasLt|cudnn|cufft|curand|nvinfer|nvonnxparser|nvrtc|nvJitLink)"
    r"(_\w+)?[.-][\w.-]*"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedModule:
    """A program or library in memory.

    Attributes:
        path: the file.
        kind: ``runtime`` (onnxruntime), ``provider`` (an execution provider of onnxruntime, and the
            libraries that it uses), ``python`` or ``other``.
        ranges: byte ranges of its pages, including zero-initialised variables.
    """

    path: str
    kind: ModuleKind
    ranges: ByteRanges


def module_kind(path: str, *, with_runtime: bool = True) -> ModuleKind:
    """Return the kind of the module at `path`, by its name and folder.

    `with_runtime` states whether the process has onnxruntime: other programs use some of the same
    libraries as its execution providers.
    """
    if with_runtime and _PROVIDER_FILE_NAME.fullmatch(path.rpartition("/")[2]):
        return "provider"
    if "onnxruntime" in path.rpartition("/")[2] or "/onnxruntime/" in path:
        return "runtime"
    return "python" if _PYTHON_MODULE_PATH.fullmatch(path) else "other"


def read_modules(space: AddressSpace, memory: ProcessMemory) -> tuple[LoadedModule, ...]:
    """Return the modules in `space` in the order of addresses, each loaded copy separately."""
    modules = tuple(_loaded_modules(space, memory))
    with_runtime = any(module_kind(path) == "runtime" for path, _ in modules)
    return tuple(
        LoadedModule(path=path, kind=module_kind(path, with_runtime=with_runtime), ranges=ranges)
        for path, ranges in modules
    )


def _loaded_modules(space: AddressSpace, memory: ProcessMemory) -> Iterator[tuple[str, ByteRanges]]:
    """Yield the path and the pages of each module."""
    buffer = np.zeros(_ELF_HEADERS_BYTES, np.uint8)
    # A library that is only read as a file has a header, but no executable mapping.
    executable_files = {
        (region.device, region.inode) for region in space.regions if "x" in region.permissions
    }
    last_end = 0
    for region in space.regions:
        is_loaded = region.file_backed and (region.device, region.inode) in executable_files
        if not is_loaded or region.offset or region.start < last_end:
            continue
        bytes_read = memory.read_into(region.start, buffer)
        ranges = _loaded_ranges(region, buffer[:bytes_read].tobytes())
        if len(ranges):
            last_end = int(ranges[-1, 1])
            yield region.path, ranges


def _loaded_ranges(region: Region, head: bytes) -> ByteRanges:
    """Return the pages of the module that `region` maps and whose file starts with `head`."""
    if not head.startswith(_ELF_MAGIC) or len(head) < _FILE_HEADER.size:
        return intervals.empty_ranges()
    table_offset, header_bytes, header_count = _FILE_HEADER.unpack_from(head)
    spans: list[tuple[int, int]] = []
    for index in range(header_count):
        header_offset = table_offset + index * header_bytes
        if header_bytes < _PROGRAM_HEADER.size or header_offset + header_bytes > len(head):
            break
        segment_type, address, nbytes = _PROGRAM_HEADER.unpack_from(head, header_offset)
        if segment_type == _PT_LOAD and address + nbytes < intervals.LAST_ADDRESS - region.end:
            spans.append(
                (
                    address // PAGE_BYTES * PAGE_BYTES,
                    -(-(address + nbytes) // PAGE_BYTES) * PAGE_BYTES,
                )
            )
    if not spans:
        return intervals.empty_ranges()
    load_address = region.start - min(start for start, _ in spans)
    return intervals.normalized_ranges(
        [(load_address + start, load_address + end) for start, end in spans]
    )

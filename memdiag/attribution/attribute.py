"""The X-ray as a whole: read a process, find the weights in it, and give every byte an owner."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from memdiag.attribution.address_space import AddressSpace, read_address_space
from memdiag.attribution.heap import Heap
from memdiag.attribution.intervals import Ranges
from memdiag.attribution.mapped import mapped_weights
from memdiag.attribution.owners import Arena, BaselinePages, Extent, divide
from memdiag.attribution.placing import place
from memdiag.attribution.process_memory import ProcessMemory
from memdiag.attribution.search import Found, search
from memdiag.attribution.subjects import (
    FEW_VALUES,
    FILE,
    Subject,
    content_probe,
    qualified,
    subjects,
    whole_file,
)
from memdiag.attribution.surroundings import Surroundings, read_surroundings
from memdiag.graph.reader import ModelFile
from memdiag.records.attribution import (
    Attribution,
    Backing,
    Copy,
    CopyKind,
    Indistinct,
    ScanTiming,
    SearchedModel,
)


class Looked(NamedTuple):
    """A model as the X-ray looks for it: read once, for any number of processes and moments."""

    model: ModelFile
    subjects: tuple[Subject, ...]
    indistinct: tuple[Indistinct, ...]
    fused: bool = False
    """Whether these are not the user's weights, but what the runtime computed from them."""


def look_for(model: ModelFile) -> Looked:
    """Return `model` with its weights grouped by content."""
    found, indistinct = subjects(model)
    return Looked(model, (*found, *whole_file(model)), indistinct)


def look_for_fused(optimized: ModelFile, original: Looked) -> Looked:
    """Return the weights of the runtime's `optimized` model that `original` does not have.

    Those without distinct content are counted, unless they are small.
    """
    known = {content_probe(subject.values) for subject in original.subjects}
    names = frozenset(qualified(weight) for weight in original.model.weights)
    found, indistinct = subjects(optimized, known=names)
    new = tuple(one for one in found if content_probe(one.values) not in known)
    constant = tuple(group for group in indistinct if group.reason == FEW_VALUES)
    return Looked(optimized, new, constant, fused=True)


def attribute(
    pid: int,
    models: Sequence[Looked],
    *,
    baseline: BaselinePages | None = None,
    arena: Arena | None = None,
    sampled: bool = False,
) -> Attribution:
    """Return who owns what is resident in process `pid`.

    Nothing is written to the process, and nothing is brought into its memory. Without a `baseline`
    figures are of the whole process.

    Raises:
        XrayError: the process cannot be read.
    """
    started = time.perf_counter()

    def release() -> None:
        for one in models:
            one.model.release()

    with ProcessMemory(pid) as memory:
        space = read_address_space(pid)
        surroundings = read_surroundings(space, memory)
        searched = search(
            space,
            memory,
            [subject for one in models for subject in one.subjects],
            release,
            sampled=sampled,
        )
        ended = memory.ended
    fused = {subject for one in models if one.fused for subject in one.subjects}
    searched_models = [one for one in models if not one.fused]
    owning = _Owning(searched_models)
    copies = [
        _copy(found, space, surroundings, found.subject in fused, owning.of(found.subject))
        for found in searched.found
    ]
    copies += _mapped_copies(space, searched_models)
    division = divide(
        space,
        [Extent(copy.address, copy.bytes, copy.kind) for copy in copies],
        surroundings,
        baseline=baseline,
        arena=arena,
        model_files=[path for one in models for path in one.model.files],
    )
    copies.sort(key=lambda copy: -copy.bytes)
    partial = space.partial or ended
    return Attribution(
        schema="memdiag.attribution/1",
        pid=pid,
        resident_bytes=division.resident_bytes,
        baseline_bytes=division.baseline_bytes,
        named_share=division.named_share,
        owners=division.owners,
        copies=tuple(copies),
        indistinct=tuple(group for one in models for group in one.indistinct),
        verification="sampled" if sampled else "full",
        partial=partial,
        notes=tuple(_notes(space, surroundings.heap, partial)),
        timing=ScanTiming(
            total_s=round(time.perf_counter() - started, 6),
            scan_s=round(searched.scan_s, 6),
            verify_s=round(searched.verify_s, 6),
            scanned_bytes=searched.scanned_bytes,
            verified_bytes=searched.verified_bytes,
        ),
        ranges=place(division.owned, _extents(copies)),
        models=tuple(
            SearchedModel(name=name, weight_bytes=sum(each.nbytes for each in one.model.weights))
            for name, one in zip(
                _names([one.model.path for one in searched_models]), searched_models, strict=True
            )
        ),
    )


def missing(looked: Looked, attribution: Attribution) -> int:
    """Return the bytes of the weights of `looked` of which no copy in use was found."""
    seen = {name for copy in attribution.copies if copy.live is not False for name in copy.weights}
    seen.add(FILE)
    return sum(one.values.nbytes for one in looked.subjects if not seen & {*one.names})


def _copy(
    found: Found,
    space: AddressSpace,
    surroundings: Surroundings,
    fused: bool,
    models: tuple[int, ...],
) -> Copy:
    copy, address = found.copy, found.address
    extent = np.array([[address, address + copy.nbytes]], np.int64)
    kind: CopyKind = "fused" if fused else copy.kind  # type: ignore[assignment] # the layouts' kinds are the records'
    return Copy(
        weights=found.subject.names,
        layout=copy.layout,
        kind=kind,
        parameters=copy.parameters,
        bytes=copy.nbytes,
        resident_bytes=space.resident_bytes_of(extent),
        address=address,
        backing=Backing(kind="anonymous"),
        verified_bytes=found.verified_bytes,
        live=surroundings.live(address, copy.nbytes),
        made_by=None,
        models=models,
    )


class _Owning:
    """Which of several models have the content of a subject."""

    def __init__(self, models: Sequence[Looked]) -> None:
        self._models: dict[tuple[int, bytes], set[int]] = {}
        if len(models) > 1:
            for index, one in enumerate(models):
                for subject in one.subjects:
                    self._models.setdefault(content_probe(subject.values), set()).add(index)

    def of(self, subject: Subject) -> tuple[int, ...]:
        """Return the indices of the models with the content; empty for a single model."""
        if not self._models:
            return ()
        return tuple(sorted(self._models.get(content_probe(subject.values), ())))


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the file names of `paths`, with as many folders as it takes to tell them apart."""
    parts = [path.absolute().parts for path in paths]
    found = []
    for mine in parts:
        others = [one for one in parts if one != mine]
        length = next(
            (n for n in range(1, len(mine)) if all(one[-n:] != mine[-n:] for one in others)), 1
        )
        # A file name need not be text, but a record is.
        found.append("/".join(mine[-length:]).encode(errors="backslashreplace").decode())
    return found


def _extents(copies: Sequence[Copy]) -> Ranges:
    pairs = [(copy.address, copy.address + copy.bytes) for copy in copies]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _mapped_copies(space: AddressSpace, models: Sequence[Looked]) -> list[Copy]:
    """Return the weights that are mapped from files; those that models share count once."""
    found: dict[tuple[int, int], Copy] = {}
    for index, looked in enumerate(models):
        names = {name: subject.names for subject in looked.subjects for name in subject.names}
        for mapped in mapped_weights(space, looked.model):
            nbytes = mapped.weight.length or 0
            copy = Copy(
                weights=names.get(qualified(mapped.weight), (qualified(mapped.weight),)),
                layout="original",
                kind="original",
                parameters={},
                bytes=nbytes,
                resident_bytes=mapped.resident_bytes,
                address=mapped.address,
                backing=Backing(kind="file", file=mapped.file, offset=mapped.offset),
                # The kernel itself says that these pages are the file's.
                verified_bytes=mapped.resident_bytes,
                live=True,
                made_by=None,
                models=(index,) if len(models) > 1 else (),
            )
            same = found.get((mapped.address, nbytes))
            if same is not None and index not in same.models:
                copy = msgspec.structs.replace(same, models=(*same.models, *copy.models))
            found[mapped.address, nbytes] = copy
    return list(found.values())


def _notes(space: AddressSpace, heap: Heap, partial: bool) -> list[str]:
    notes = []
    if partial:
        notes.append("the process ended while it was read: what had been read is reported")
    if heap.allocator != "glibc":
        name = f"{heap.allocator}, not glibc's" if heap.allocator else "not glibc's"
        notes.append(f"the allocator is {name}: freed blocks cannot be told from live ones")
    if space.drift_bytes:
        notes.append(
            f"the process ran while it was read: {space.drift_bytes:,} bytes moved meanwhile"
        )
    return notes

"""Models whose weights an X-ray found several times in a process, as several sessions have them.

``memdiag watch`` and ``memdiag xray`` both use this module, so that their findings are the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memdiag.programs.session_facts import sharing_advice
from memdiag.programs.xray_facts import copies_by_form, is_private, weight_copies
from memdiag.records.attribution import Attribution, Copy
from memdiag.units import MIB

_MIN_REPEATED_BYTES = MIB
_MIN_REPEATED_SHARE = 0.8
"""Share of a model's weights in memory that further copies must repeat to belong to another
session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedModel:
    """A model whose weights a process has several times.

    Attributes:
        name: the name of the model.
        count: the most copies in the same layout that a weight has.
        bytes: the resident bytes of the copies beyond the first in each layout.
        private_bytes: the part of these bytes that no other process maps.
    """

    name: str
    count: int
    bytes: int
    private_bytes: int

    @property
    def evidence(self) -> str:
        """The evidence, for a sentence about the bytes."""
        return (
            f"further copies of nearly all weights of {self.name} (up to {self.count} copies in the"
            " same layout, a sign of several sessions of the model)"
        )

    @property
    def remedy(self) -> str:
        """The advice, in sentences."""
        return (
            f"{sharing_advice(())} If sessions must differ, share weights between them with"
            " SessionOptions.add_initializer."
        )


def repeated_models(attribution: Attribution) -> Iterator[RepeatedModel]:
    """Yield each model whose weights nearly all have further copies in private memory.

    Kernels of several nodes may each pack the same weight in a single session. Therefore weights
    that no kernel packed, such as biases, must also be repeated, or the process must have more
    arenas than models. A session that has no arena or never ran has no memory in an arena.
    """
    copies_by_model = weight_copies(attribution)
    has_more_arenas = len(attribution.arenas) > len(copies_by_model)
    for key, copies in copies_by_model.items():
        copy_groups = list(copies_by_form(copies))
        repeated_groups = [group for group in copy_groups if len(group) > 1]
        extra_copies = [copy for group in repeated_groups for copy in group[1:] if is_private(copy)]
        extra_bytes = sum(copy.resident_bytes for copy in extra_copies)
        is_whole = _single_copy_bytes(repeated_groups) >= _MIN_REPEATED_SHARE * _single_copy_bytes(
            copy_groups
        )
        if len(repeated_groups) < 2 or not is_whole or extra_bytes < _MIN_REPEATED_BYTES:
            continue
        if has_more_arenas or _has_repeated_originals(copy_groups):
            yield RepeatedModel(
                name=key.name,
                count=max(map(len, repeated_groups)),
                bytes=extra_bytes,
                private_bytes=sum(copy.private_bytes or 0 for copy in extra_copies),
            )


def _single_copy_bytes(copy_groups: Sequence[Sequence[Copy]]) -> int:
    """Return the sum of one copy's bytes over all layouts."""
    return sum(group[0].bytes for group in copy_groups)


def _has_repeated_originals(copy_groups: Sequence[Sequence[Copy]]) -> bool:
    """Return whether nearly all weights in their original layout have a copy too many.

    A session has an original for each name, since weights with other names may be equal.
    """
    original_groups = [group for group in copy_groups if group[0].kind == "original"]
    repeated_count = sum(len(group) > len(group[0].weights) for group in original_groups)
    return repeated_count > 0 and repeated_count >= _MIN_REPEATED_SHARE * len(original_groups)

"""Models whose weights an X-ray found several times in a process, as several sessions have them.

``memdiag watch`` and ``memdiag xray`` come to the same finding by it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memdiag.programs.session_facts import sharing_advice
from memdiag.programs.xray_facts import is_private, same_form, weight_copies
from memdiag.records.attribution import Attribution, Copy
from memdiag.units import MIB

_MIN_REPEATED_BYTES = MIB
_MIN_REPEATED_SHARE = 0.8
"""Share of a model's weights in memory that further copies must repeat, to be those of another
session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedModel:
    """A model whose weights a process has several times.

    Attributes:
        name: the name of the model.
        count: how many copies in the same layout a weight has at most.
        bytes: the resident bytes of the copies beyond the first in each layout.
        private_bytes: the part of them that no other process maps.
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

    Kernels of several nodes may each pack the same weight in a single session. Therefore the
    weights that no kernel packed must be repeated as well, such as biases, or the process must have
    more arenas than models. A session that has no arena or never ran has no memory in an arena.
    """
    by_model = weight_copies(attribution)
    has_more_arenas = len(attribution.arenas) > len(by_model)
    for key, copies in by_model.items():
        forms = list(same_form(copies))
        repeated = [form for form in forms if len(form) > 1]
        extra = [copy for form in repeated for copy in form[1:] if is_private(copy)]
        extra_bytes = sum(copy.resident_bytes for copy in extra)
        is_whole = _single_copy_bytes(repeated) >= _MIN_REPEATED_SHARE * _single_copy_bytes(forms)
        if len(repeated) < 2 or not is_whole or extra_bytes < _MIN_REPEATED_BYTES:
            continue
        if has_more_arenas or _has_repeated_originals(forms):
            yield RepeatedModel(
                name=key.name,
                count=max(map(len, repeated)),
                bytes=extra_bytes,
                private_bytes=sum(copy.private_bytes or 0 for copy in extra),
            )


def _single_copy_bytes(forms: Sequence[Sequence[Copy]]) -> int:
    """Return the sum of one copy's bytes over all layouts."""
    return sum(form[0].bytes for form in forms)


def _has_repeated_originals(forms: Sequence[Sequence[Copy]]) -> bool:
    """Return whether nearly all weights in their original layout have a copy too many.

    A session has an original for each name, since weights with other names may be equal.
    """
    originals = [form for form in forms if form[0].kind == "original"]
    repeated = sum(len(form) > len(form[0].weights) for form in originals)
    return repeated > 0 and repeated >= _MIN_REPEATED_SHARE * len(originals)

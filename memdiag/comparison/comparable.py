"""Figures of two columns that can be compared."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from memdiag.records.comparison import Metric
from memdiag.records.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Comparable:
    """The figures of two columns that can be compared.

    Attributes:
        excluded: the metrics that cannot be compared, each with the reason.
        remarks: notes on the metrics that are compared.
    """

    excluded: dict[Metric, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def allows(self, metric: Metric) -> bool:
        """Return whether `metric` may be compared."""
        return metric not in self.excluded

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each reason why metrics are not compared, and the remarks."""
        reasons: dict[str, list[Metric]] = {}
        for metric, reason in self.excluded.items():
            reasons.setdefault(reason, []).append(metric)
        excluded = (
            f"{_listed(metrics)} {_verb(metrics)} not compared: {reason}"
            for reason, metrics in reasons.items()
        )
        return (*excluded, *self.remarks)


def comparability_of(before: Profile, after: Profile) -> Comparable:
    """Return which figures of two saved profiles can be compared."""
    excluded: dict[Metric, str] = {"outputs": "saved profiles contain none"}
    excluded |= dict.fromkeys(("load", "latency"), "the profiles were not taken in turn")
    remarks = tuple(_different_settings(before, after))
    if _shapes(before) != _shapes(after):
        if _is_same_model(before, after):
            excluded |= dict.fromkeys(("peak", "steady"), "they ran with different inputs")
        else:
            remarks += (
                "the models ran with inputs of different shapes, which count towards their memory",
            )
    elif (before.session.runs is None) != (after.session.runs is None):
        excluded |= dict.fromkeys(("peak", "steady"), "one of them was not run")
    if before.peak_kind != after.peak_kind:
        excluded["peak"] = "one is exact and the other the largest of samples"
    return Comparable(excluded=excluded, remarks=remarks)


def _different_settings(before: Profile, after: Profile) -> Iterator[str]:
    """Yield a sentence with the settings that only one of both has, or has with another value."""
    settings = [_settings(each) for each in (before, after)]
    only = [", ".join(sorted(one - other)) for one, other in (settings, settings[::-1])]
    parts = [
        f"the {place} ran with {names}"
        for place, names in zip(("first", "second"), only, strict=True)
        if names
    ]
    if parts:
        yield " and ".join(parts)


def _settings(profile: Profile) -> set[str]:
    session = profile.session
    named = session.options | session.run_options | session.environment
    settings = {f"{name}={value}" for name, value in named.items()}
    settings |= {f"{name} disabled" for name in session.disabled_optimizers}
    return settings | ({"the file's bytes"} if session.load_from == "bytes" else set())


def _shapes(profile: Profile) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {value.name: (value.dtype, value.shape) for value in profile.inputs}


def _is_same_model(before: Profile, after: Profile) -> bool:
    """Return whether the models have equal sizes in weights and nodes: the file may have moved."""
    sizes = [(each.model.weight_bytes, each.model.node_count) for each in (before, after)]
    return sizes[0] == sizes[1]


def _verb(metrics: list[Metric]) -> str:
    return "are" if len(metrics) > 1 or metrics == ["outputs"] else "is"


def _listed(metrics: list[Metric]) -> str:
    *first, last = metrics
    return f"{', '.join(first)} and {last}" if first else last

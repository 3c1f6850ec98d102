"""What can be compared of two profiles that were not measured together."""

from dataclasses import dataclass, field

from memdiag.records.comparison import Metric
from memdiag.records.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Comparable:
    """What of two columns means nothing side by side: metrics, each with the reason in words.

    `remarks` are what is to know of what is compared. `raced` says that they were measured
    together, and latencies are compared by runs in turn.
    """

    barred: dict[Metric, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    raced: bool = True

    def allows(self, metric: Metric) -> bool:
        """Return whether `metric` may be compared."""
        return metric not in self.barred

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not compared, a sentence for each reason, and the remarks."""
        reasons: dict[str, list[Metric]] = {}
        for metric, reason in self.barred.items():
            reasons.setdefault(reason, []).append(metric)
        barred = (
            f"{_listed(metrics)} {_verb(metrics)} not compared: {reason}"
            for reason, metrics in reasons.items()
        )
        return (*barred, *self.remarks)


def compare_profiles(one: Profile, other: Profile) -> Comparable:
    """Return what of two saved profiles cannot be compared."""
    barred: dict[Metric, str] = {"outputs": "saved profiles contain none"}
    machines = tuple(
        f"{each.environment.cpu}, {each.environment.cpu_count} processors" for each in (one, other)
    )
    if machines[0] != machines[1]:
        reason = f"they were taken on {machines[0]} and on {machines[1]}"
        barred |= dict.fromkeys(("load", "latency"), reason)
    threads = tuple(each.session.options.get("intra_op_num_threads", "0") for each in (one, other))
    if threads[0] != threads[1]:
        reason = f"they ran with {_threads(threads[0])} and with {_threads(threads[1])}"
        barred |= dict.fromkeys(("load", "latency"), reason)
    systems = tuple(each.environment.platform.partition("-")[0] for each in (one, other))
    if systems[0] != systems[1]:
        reason = f"{systems[0]} and {systems[1]} count resident memory in different ways"
        barred |= dict.fromkeys(("peak", "steady", "kept"), reason)
    remarks: tuple[str, ...] = ()
    if _shapes(one) != _shapes(other):
        if _is_one_model(one, other):
            barred |= dict.fromkeys(("peak", "steady", "latency"), "they ran with different inputs")
        else:
            remarks = (
                "the models ran with inputs of different shapes, which count towards their memory",
            )
    elif (one.session.runs is None) != (other.session.runs is None):
        barred |= dict.fromkeys(("peak", "steady", "latency"), "one of them was not run")
    if one.peak_kind != other.peak_kind:
        barred["peak"] = "one is exact and the other the largest of samples"
    return Comparable(barred=barred, remarks=remarks, raced=False)


def _shapes(profile: Profile) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {one.name: (one.dtype, one.shape) for one in profile.inputs}


def _is_one_model(one: Profile, other: Profile) -> bool:
    """Return whether the models are as large, in weights and nodes: the file may have moved."""
    sizes = [(each.model.weight_bytes, each.model.node_count) for each in (one, other)]
    return sizes[0] == sizes[1]


def _threads(option: str) -> str:
    return "the runtime's choice of threads" if option == "0" else f"{option} threads"


def _verb(metrics: list[Metric]) -> str:
    return "are" if len(metrics) > 1 or metrics == ["outputs"] else "is"


def _listed(metrics: list[Metric]) -> str:
    *first, last = metrics
    return f"{', '.join(first)} and {last}" if first else last

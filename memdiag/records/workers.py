"""Several processes, sessions or callers of a model: what they take, and what they share."""

from typing import Literal

from memdiag.records.attribution import OwnerKind
from memdiag.records.base import Record

ForkAfter = Literal["import", "load"]
"""The moment at which workers are forked from one process."""


NO_WORKERS = "no workers were measured"
"""The start of the note of a profile whose workers were requested and could not be measured."""


class WorkerMemory(Record, frozen=True, kw_only=True):
    """The memory of one process, or the sum over several.

    Attributes:
        rss_bytes: the resident set; shared pages count to each process.
        pss_bytes: the proportional set: a page that several processes map counts to each of them by
            an equal part, so that a sum counts it once.
        uss_bytes: the unique set: pages that no other process maps.
    """

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int


class WorkerOwner(Record, frozen=True, kw_only=True):
    """One owner of memory, added up over all workers.

    Attributes:
        kind, name: the owner, as in an attribution.
        bytes: resident bytes; shared pages count to each process.
        private_bytes: the part that no other process maps.
        proportional_bytes: the part of the proportional sets.
    """

    kind: OwnerKind
    name: str
    bytes: int
    private_bytes: int
    proportional_bytes: int


class WorkerWeight(Record, frozen=True, kw_only=True):
    """The copies of one weight content, added up over all workers.

    Attributes:
        weights: the names of the weights with this content.
        layouts: the layouts of the copies.
        copies: the number of copies.
        bytes: resident bytes; shared pages count to each process.
        private_bytes: the part that no other process maps.
        proportional_bytes: the part of the proportional sets.
    """

    weights: tuple[str, ...]
    layouts: tuple[str, ...]
    copies: int
    bytes: int
    private_bytes: int
    proportional_bytes: int


class Arrangement(Record, frozen=True, kw_only=True):
    """One way to have a model several times, and what it took.

    Attributes:
        processes: the number of processes with sessions.
        sessions: the number of sessions in each process.
        callers: the number of threads that run a session at once.
        fork_after: when the processes were forked from one; None for processes that were started
            one by one.
        shares_prepacked: whether the model was saved once with its packed weights, which all
            processes map.
        each: the memory of each process at steady state.
        together: the sum over all processes, and that from which they were forked.
        latency_s: the median latency of a run; None if several processes ran at once.
    """

    processes: int
    sessions: int
    callers: int
    fork_after: ForkAfter | None
    shares_prepacked: bool
    each: tuple[WorkerMemory, ...]
    together: WorkerMemory
    latency_s: float | None


class Workers(Record, frozen=True, kw_only=True):
    """What more processes, sessions or callers of a model cost, and why.

    Attributes:
        one: one process with one session and one caller.
        asked: the arrangement that was asked for.
        one_more_bytes: what one more process, session or caller costs: the difference of the
            proportional sets of `asked` and `one`, divided by the number that `asked` has more.
        owners: the owners of memory in `asked`, the largest proportional set first.
        weights: the weights in `asked`, the largest proportional set first.
        proportional_bytes: the proportional sets of the processes in `asked` by the kernel, at the
            moment of their X-rays: what the owners have adds up to it. Other processes that map the
            same libraries change it.
        alternatives: other arrangements with the same number of processes or callers, measured.
        notes: sentences about what could not be measured.
    """

    one: Arrangement
    asked: Arrangement
    one_more_bytes: int
    owners: tuple[WorkerOwner, ...]
    weights: tuple[WorkerWeight, ...]
    proportional_bytes: int
    alternatives: tuple[Arrangement, ...] = ()
    notes: tuple[str, ...] = ()

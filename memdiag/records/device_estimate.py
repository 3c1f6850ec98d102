"""What sessions will take on a GPU, predicted (schema ``memdiag.gpu/1``)."""

from typing import Final, Literal

from msgspec import field

from memdiag.records.base import Record, SavableRecord
from memdiag.records.device import Ledger
from memdiag.records.dimension import Dimension

DEVICE_ESTIMATE_SCHEMA: Final = "memdiag.gpu/1"


class DeviceFit(Record, frozen=True, kw_only=True):
    """How much of a model fits into a limit.

    Attributes:
        is_searched: whether the largest size was searched for.
        largest_size: the largest size of the searched dimensions with which one process with one
            session fits; None if not even 1 does, if the model has no free dimension, or without a
            search.
        sessions: how many sessions fit, at the given sizes, if one process has all of them.
        processes: how many processes with one session each fit at the given sizes.
    """

    is_searched: bool
    largest_size: int | None
    sessions: int
    processes: int


class DeviceConfiguration(Record, frozen=True, kw_only=True):
    """A configuration, and what a process with one session takes with it.

    Attributes:
        changes: the options that differ from the given ones, as text such as
            ``arena_extend_strategy=kSameAsRequested``; empty for the given configuration.
        low_bytes, high_bytes: what it takes, without and with working memory of convolutions.
        fit: what fits into the limit; None without a limit.
    """

    changes: tuple[str, ...]
    low_bytes: int
    high_bytes: int
    fit: DeviceFit | None = None


class DeviceEstimate(SavableRecord, frozen=True, kw_only=True):
    """What a process with one session takes on a GPU, before it runs.

    Attributes:
        model: the path of the model.
        onnxruntime: the release that it is for.
        provider_options: the options of the CUDA provider, as given.
        options: session options by name, as given.
        dimensions: the free dimensions, with the sizes of the first runs.
        runs: the sizes of the runs by name, in order; each is run several times.
        ledger: the owners after these runs, without working memory of convolutions.
        context_device: the device on which the context was measured; empty if it was given.
        unknown_values: the number of values whose sizes only a run shows. They count as nothing.
        limit_bytes: the limit; None without one.
        searched: the dimensions whose largest size was searched for; empty without a limit.
        configurations: the given configuration, and others that take less or the same.
        notes: limits and assumptions of the estimate.
        duration_s: the time it took.
    """

    schema: Literal["memdiag.gpu/1"] = DEVICE_ESTIMATE_SCHEMA
    model: str
    onnxruntime: str
    provider_options: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    dimensions: tuple[Dimension, ...] = ()
    runs: tuple[dict[str, int], ...]
    ledger: Ledger
    context_device: str
    unknown_values: int = 0
    limit_bytes: int | None = None
    searched: tuple[str, ...] = ()
    configurations: tuple[DeviceConfiguration, ...]
    notes: tuple[str, ...] = ()
    duration_s: float

    def __post_init__(self) -> None:
        """Refuse a record without the given configuration."""
        if not self.configurations:
            raise ValueError("an estimate has no configuration")

    @property
    def given(self) -> DeviceConfiguration:
        """The given configuration."""
        return self.configurations[0]

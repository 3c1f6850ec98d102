"""All events that a recording receives, with their fields.

An event is one line of JSON on the socket of the recorder: an object with the fields of its class,
and its name in the field ``event``. The first event of a connection also has two fields for the
socket: ``secret``, which proves that the recorder has started the sender, and ``pid``.

===================  ===========================  ==================================  ======
event                sender                       moment                              waits
===================  ===========================  ==================================  ======
``importing``        ``hook/startup``             before onnxruntime is imported      no
``hello``            ``hook/sessions``            onnxruntime was imported; a fork    no
``hook_failed``      ``hook/channel``,            the hook has failed                 no
                     ``hook/startup``
``create``           ``hook/creation``            before a session is created         yes
``created``          ``hook/creation``            after it was created, or failed     yes
``first_run``        ``hook/runs``                before the first run of a session   yes
``first_run_done``   ``hook/runs``                after the first run                 yes
``runs``             ``hook/runs``                twice a second at most, and at the  no
                                                  end
``peak``             ``hook/runs``                after a run that raised the mark    no
``between_runs``     ``hook/between_runs``        between two runs, and after the     yes
                                                  last one, for ``leak``
``released``         ``hook/creation``            the program has released a session  no
``stderr_filtered``  ``hook/record_sessions``     before a profile is written         yes
``stderr_restored``  ``hook/record_sessions``     after a profile was written         yes
``exit``             ``hook/sessions``            the process ends                    yes
``xray``             ``control.request_xray``     ``memdiag xray FOLDER``             yes
===================  ===========================  ==================================  ======

A process of the hook that waits gives its event a number, ``asks``, and receives a line of JSON
with this number as ``answers``, and with ``peak_rss_bytes``: the peak of the process until then, in
bytes. The peak is missing if the event was lost. ``xray`` has no number: its answer is a
`control.XrayAnswer`.

``create`` and ``stderr_filtered`` may come with two descriptors: the reading end of a pipe to which
standard error of the process will go, and its standard error until then, unless that was closed.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, convert, field

from memdiag.records.growth import LargestInput

EventShapes = dict[str, tuple[int, ...]] | None
"""The shapes of inputs by name; None for runs that are not counted by their shapes."""


class BaseEvent(Struct, frozen=True, kw_only=True, tag_field="event"):
    """An event."""


class Importing(BaseEvent, frozen=True, kw_only=True, tag="importing"):
    """A process with the hook starts to import onnxruntime."""


class Hello(BaseEvent, frozen=True, kw_only=True, tag="hello"):
    """A process introduces itself.

    Attributes:
        forked_from: the process that it was forked from, if that has recorded sessions; else None.
        sessions: the numbers of the sessions that it inherited from that process.
        onnxruntime: the version of onnxruntime.
        build: the distribution that provides it, such as onnxruntime-gpu.
        python: the version of Python.
        executable: the Python interpreter; empty if it is not known.
        import_path: the folders from which it imports modules.
        telemetry: whether its environment leaves onnxruntime's telemetry on.
    """

    forked_from: int | None
    sessions: tuple[int, ...]
    onnxruntime: str
    build: str
    python: str
    executable: str
    import_path: tuple[str, ...]
    telemetry: bool


class HookFailed(BaseEvent, frozen=True, kw_only=True, tag="hook_failed"):
    """The hook has failed, so sessions may be missing.

    Attributes:
        message: the error.
    """

    message: str


class SessionEvent(BaseEvent, frozen=True, kw_only=True):
    """An event of one session.

    Attributes:
        session: its number in its process, or in the process that it was inherited from.
    """

    session: int


class SessionModelSource(Struct, frozen=True, kw_only=True):
    """Source of a session's model: a path or bytes.

    Attributes:
        path: the path of the model; None if the session is created from bytes.
        bytes: the number of these bytes; None for a path.
        address: the address of the bytes in the memory of the process; None for a path.
        digest: a hash of a part of the bytes (`hook/creation.sampled_digest`); None for a path.
    """

    path: str | None
    bytes: int | None
    address: int | None = None
    digest: str | None = None


class Create(SessionEvent, frozen=True, kw_only=True, tag="create"):
    """A session is going to be created.

    Attributes:
        model: the model.
        callers: file, line and function of the callers outside onnxruntime, the nearest first.
        options: the session options that differ from their defaults.
        config: the config entries that change memory.
        providers: the execution providers that the program asks for.
        threads: the numbers of intra-op and inter-op threads; 0 for the default.
        severity: the lowest severity that the session would log without memdiag (0 verbose to 4
            fatal).
        logid: the logid that the program gave to the session.
    """

    model: SessionModelSource
    callers: tuple[tuple[str, int, str], ...]
    options: dict[str, str]
    config: dict[str, str]
    providers: tuple[str, ...]
    threads: tuple[int, int]
    severity: int
    logid: str


class Created(SessionEvent, frozen=True, kw_only=True, tag="created"):
    """A creation has ended. After an error, it has only the first two fields.

    Attributes:
        latency_s: the duration of the creation in seconds.
        error: the error; None if the creation succeeded.
        providers: the execution providers of the session.
        address: the address of the C++ object of the session.
        ran_meanwhile: the numbers of other sessions of the process that ran during the creation.
    """

    latency_s: float
    error: str | None = None
    providers: tuple[str, ...] = ()
    address: int | None = None
    ran_meanwhile: tuple[int, ...] = ()


class FirstRun(SessionEvent, frozen=True, kw_only=True, tag="first_run"):
    """A session is going to run for the first time in this process."""


class FirstRunDone(SessionEvent, frozen=True, kw_only=True, tag="first_run_done"):
    """The first run has ended."""


class ShapeRuns(Struct, frozen=True, array_like=True):
    """The runs with inputs of the same shapes.

    Attributes:
        shapes: the shapes.
        runs: the number of runs until now.
        total_s: the sum of their latencies in seconds.
        min_s: the shortest latency in seconds.
        max_s: the longest latency in seconds.
    """

    shapes: EventShapes
    runs: int
    total_s: float
    min_s: float
    max_s: float


class RunCounts(SessionEvent, frozen=True, kw_only=True, tag="runs"):
    """The counts of runs that have changed since the last event.

    Attributes:
        runs: the counts, which replace earlier ones of the same shapes.
        threads: the most threads that were in runs at the same time.
        last_run_age_s: seconds since the end of the last run.
        keeps_bytes: whether the session has the bytes from which it was created.
    """

    runs: tuple[ShapeRuns, ...]
    threads: int
    last_run_age_s: float
    keeps_bytes: bool


class RaisedPeak(SessionEvent, frozen=True, kw_only=True, tag="peak"):
    """A run has raised the high-water mark of the process.

    Attributes:
        shapes: the shapes of its inputs.
        peak_rss_bytes: the mark.
        latency_s: the duration of the run in seconds.
    """

    shapes: EventShapes
    peak_rss_bytes: int
    latency_s: float


class BetweenRuns(BaseEvent, frozen=True, kw_only=True, tag="between_runs"):
    """The threads of the process wait between two runs so that the memory can be read.

    The answer also has ``wait_s``, the seconds until memdiag reads the memory again.

    Attributes:
        runs: the number of runs of all sessions until now.
        largest_input: the inputs of the first run whose inputs had the most bytes; None if not
            known.
        alive: how many inputs and outputs of earlier runs are alive, and how many there were, by
            description, such as "output 'y'".
        kept_from: file, line and function of the callers of an earlier run whose value is still
            alive, the nearest first, by description of the value.
        starts: the first bytes of values of an earlier run in hexadecimal, and the sizes of the
            values in bytes, by description.
        sizes: the mean bytes of the values of all runs until now, by description.
        runs_in_flight: the number of runs of other threads that are under way.
        at_exit: whether the program is ending: it may have dropped its values already.
    """

    runs: int
    largest_input: LargestInput | None
    alive: dict[str, tuple[int, int]]
    starts: dict[str, tuple[str, int]]
    sizes: dict[str, float]
    kept_from: dict[str, tuple[tuple[str, int, str], ...]] = field(default_factory=dict)
    runs_in_flight: int = 0
    at_exit: bool = False


class Released(SessionEvent, frozen=True, kw_only=True, tag="released"):
    """The program has released a session."""


class StderrFiltered(BaseEvent, frozen=True, kw_only=True, tag="stderr_filtered"):
    """The log of sessions must be taken out of standard error from now on."""


class StderrRestored(BaseEvent, frozen=True, kw_only=True, tag="stderr_restored"):
    """Standard error is restored. The sender waits until the contents of the pipe are written."""


class Exit(BaseEvent, frozen=True, kw_only=True, tag="exit"):
    """The process, or the recording in it, ends. It has sent the last counts of runs.

    Attributes:
        process_ends: False if only the recording of the process ends.
    """

    process_ends: bool


class XrayRequest(BaseEvent, frozen=True, kw_only=True, tag="xray"):
    """A user asks for an X-ray of each process that uses onnxruntime.

    Attributes:
        secret: the secret, as in the first event of each connection.
    """

    secret: str


HookEvent = (
    Importing
    | Hello
    | HookFailed
    | Create
    | Created
    | FirstRun
    | FirstRunDone
    | RunCounts
    | RaisedPeak
    | BetweenRuns
    | Released
    | StderrFiltered
    | StderrRestored
    | Exit
)


def hook_event(fields: Mapping[str, Any]) -> HookEvent:
    """Return the event of the hook with these `fields`.

    Names of files may contain surrogates, which msgspec does not decode but converts.

    Raises:
        msgspec.ValidationError: there is no such event, or a field is missing or has a wrong type.
    """
    event: HookEvent = convert(fields, HookEvent)
    return event

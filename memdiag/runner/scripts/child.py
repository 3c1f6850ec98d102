"""Load and run one model, and wait at each step until the parent has read the memory.

The protocol: the parent writes one line of JSON, the job, to our standard input. At each step we
write one line of JSON, an event, to standard error, where the runtime's log lines mark the phases
inside session creation, and then wait for a line on standard input. Each event starts with the
secret of the job, which no name in a model can contain.

The events in order, with waiting unless stated otherwise: `versions` (without waiting), `ready`
(runtime imported, inputs read), `created` (the session), and unless the job has no runs
`first_run`, a `run` for each later run, and `steady`; then `trimmed` and `end`. An exception is an
`error` event instead, the last one.

In a job with `generation` the first run is the prompt, and each later run receives outputs of the
run before it. Before `first_run` and `steady`, the events `cache` (without waiting) have the
addresses of the values that are fed; the first of several has `first`.

In a job that `records_device`, events about the device (see `device`) precede each step and an
error, and after `end` the session is deleted for one more step, `deleted`. If the field
`has_device` of `end` is true, the parent may answer it with requests to `copy` address ranges of
the device, each of which gets an event `device_block`, before it lets us continue.

The file must stay small and import little: all of its memory counts to the measured process.
It runs under other environments' interpreters too, hence the old-fashioned syntax.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memdiag.runner.scripts import contents, device, kv_cache
elif __name__ == "__main__":
    import contents
    import kv_cache

PR_SET_PDEATHSIG = 1
SIGKILL = 9
SEVERITY_VERBOSE = 0
SEVERITY_INFO = 1
SEVERITY_WARNING = 2
SEVERITY_FATAL = 4
EVENT_MARK = b"\x1ememdiag "
MAX_EVENT_BYTES = 4096  # PIPE_BUF of Linux: a write up to this size is atomic
MAX_ERROR_MESSAGE = 2000
SCRIPTS_FOLDER = os.path.dirname(os.path.abspath(__file__))
DEVICE_PROVIDERS = (
    "CUDAExecutionProvider",
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
)
NOT_IN_NUMPY = re.compile(r"tensor\((bfloat16|float[468]\w+|u?int[24])\)")
RETURNS_OF_FREED_HEAP: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("malloc_trim", (0,)),  # glibc
    ("mallctl", (b"thread.tcache.flush", None, None, None, 0)),  # jemalloc
    ("mallctl", (b"arena.4096.purge", None, None, None, 0)),  # 4096: all arenas, since jemalloc 5
    ("mi_collect", (1,)),  # mimalloc
    ("MallocExtension_ReleaseFreeMemory", ()),  # tcmalloc
)
"""Functions that return freed heap to the system, with their arguments."""


class ParentChannel:
    """The line to the parent: events out, one acknowledgement in for each.

    Events go where the runtime's log goes, so that their order with its lines is kept.
    """

    def __init__(self) -> None:
        # The model's libraries may print or read: they get the log and nothing.
        self._in = os.fdopen(os.dup(0), "rb", buffering=0)
        null_device = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_device, 0)
        os.close(null_device)
        os.dup2(2, 1)
        self._mark = EVENT_MARK

    def start(self) -> Any:
        """Return the job; end this process when the parent ends."""
        job = self.receive()
        self._mark = EVENT_MARK + job["secret"].encode() + b" "
        die_with_parent(job["parent"])
        return job

    def receive(self) -> Any:
        """Return the parent's next line; end the process when the parent is gone."""
        line = self._in.readline()
        if not line:
            os._exit(3)
        return json.loads(line)

    def send(self, event: str, **fields: object) -> None:
        """Write one event without waiting."""
        fields["event"] = event
        line = self._mark + json.dumps(fields).encode() + b"\n"
        while len(line) > MAX_EVENT_BYTES and fields.get("message"):
            message = str(fields["message"])
            fields["message"] = message[: len(message) // 2]
            line = self._mark + json.dumps(fields).encode() + b"\n"
        # One atomic write: no other thread's line can come between.
        os.write(2, line)

    def step(self, event: str, **fields: object) -> None:
        """Write one event and wait until the parent has read the memory."""
        self.send(event, **fields)
        self.receive()


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(3)


def convert(current: Any, text: str, name: str) -> Any:
    """Return `text` as the type of the attribute's `current` value."""
    if isinstance(current, bool):
        bool_by_text = {
            "1": True,
            "true": True,
            "on": True,
            "0": False,
            "false": False,
            "off": False,
        }
        if text.lower() not in bool_by_text:
            raise ValueError(f"session option {name} must be true or false, not {text!r}")
        return bool_by_text[text.lower()]
    if isinstance(current, int):
        return int(text)
    if isinstance(current, str):
        return text
    members = getattr(type(current), "__members__", None)
    if members:
        for member, value in members.items():
            short_name = member.replace("ORT_", "")
            if text.upper() in (member, short_name, short_name.replace("ENABLE_", "")):
                return value
        raise ValueError(
            "session option {} takes one of {}, not {!r}".format(name, ", ".join(members), text)
        )
    raise ValueError(f"session option {name} cannot be set from the command line")


def session_options(onnxruntime: Any, job: dict[str, Any]) -> Any:
    """Return the SessionOptions of the job, with verbose logging."""
    options = onnxruntime.SessionOptions()
    for name, text in job["options"].items():
        if name == "register_custom_ops_library":
            options.register_custom_ops_library(text)
            continue
        current_value = None if name.startswith("_") else getattr(options, name, None)
        if current_value is not None and not callable(current_value):
            setattr(options, name, convert(current_value, text, name))
        elif "." in name:
            options.add_session_config_entry(name, text)
        else:
            import difflib  # its memory would count to the measured process

            names = [
                attribute
                for attribute in dir(options)
                if not attribute.startswith("_") and not callable(getattr(options, attribute))
            ]
            close_names = difflib.get_close_matches(name, names, 1)
            suggestion = f" (did you mean {close_names[0]}?)" if close_names else ""
            raise ValueError(
                "there is no session option called {}{}; this onnxruntime has {} and config entries"
                " such as session.disable_prepacking".format(name, suggestion, ", ".join(names))
            )
    if job.get("shared_arena"):
        share_arena(onnxruntime, options)
    options.log_severity_level = SEVERITY_VERBOSE
    return options


def share_arena(onnxruntime: Any, options: Any) -> None:
    """Register an arena that grows by the requested size only, and have the session use it."""
    bindings = onnxruntime.capi.onnxruntime_pybind11_state
    memory_info = bindings.OrtMemoryInfo(
        "Cpu", bindings.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, bindings.OrtMemType.DEFAULT
    )
    # No limit; extend by the requested size; default sizes of chunks.
    onnxruntime.create_and_register_allocator(memory_info, bindings.OrtArenaCfg(0, 1, -1, -1))
    options.add_session_config_entry("session.use_env_allocators", "1")


def run_options(onnxruntime: Any, job: dict[str, Any]) -> Any:
    """Return RunOptions as the job asks for them."""
    options = onnxruntime.RunOptions()
    for name, text in job["run_options"].items():
        options.add_run_config_entry(name, text)
    return options


def check_providers(onnxruntime: Any, names: list[str]) -> None:
    """Refuse a provider that this runtime lacks: the runtime would only warn and use another."""
    available = onnxruntime.get_available_providers()
    for name in names:
        if name not in available:
            raise ValueError(
                "this onnxruntime has no provider called {}; it has {}".format(
                    name, ", ".join(available)
                )
            )


def load_inputs(onnxruntime: Any, numpy: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the feeds that the parent saved for us, by input name."""
    feeds = {}
    for entry in entries:
        arrays = [numpy.load(path, allow_pickle=False) for path in entry["files"]]
        if entry["onnx_type"] is not None:
            make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
            arrays = [make(array, entry["onnx_type"]) for array in arrays]
        feeds[entry["name"]] = arrays if entry["sequence"] else arrays[0]
    return feeds


def model_source(job: dict[str, Any], options: Any) -> str | bytes:
    """Return the first argument of InferenceSession: the path, or the file's bytes."""
    if job["load_from"] == "path":
        return str(job["model"])
    folder = "session.model_external_initializers_file_folder_path"
    if folder not in job["options"]:
        # Without a path the runtime would look for external data in the working directory.
        options.add_session_config_entry(folder, os.path.dirname(os.path.abspath(job["model"])))
    with open(job["model"], "rb") as file:
        return file.read()


def create_session(onnxruntime: Any, options: Any, job: dict[str, Any]) -> Any:
    """Return a session of the job's model."""
    return onnxruntime.InferenceSession(
        model_source(job, options),
        options,
        providers=[(name, job["provider_options"].get(name, {})) for name in job["providers"]],
        disabled_optimizers=job["disabled_optimizers"],
        # Otherwise a provider that fails is replaced by the CPU's, in a second attempt that would
        # be measured with the first. Before 1.23 the argument has no effect.
        enable_fallback=False,
    )


def runner(onnxruntime: Any, session: Any) -> Any:
    """Return a function that runs `session`: its own `run`, unless numpy lacks an output's type.

    Then the outputs are OrtValues, and inputs can be neither texts nor sequences.
    """
    if not any(NOT_IN_NUMPY.search(output.type) for output in session.get_outputs()):
        return session.run
    value_type = onnxruntime.OrtValue

    def as_value(name: str, feed: Any) -> Any:
        if isinstance(feed, value_type):
            return feed
        if isinstance(feed, list) or feed.dtype.kind in "OU":
            raise ValueError(
                f"input {name!r} is text or a sequence, which onnxruntime does not take from Python"
                " where an output has a type that numpy lacks"
            )
        return value_type.ortvalue_from_numpy(feed)

    def run(names: Any, feeds: dict[str, Any], options: Any = None) -> Any:
        values = {name: as_value(name, feed) for name, feed in feeds.items()}
        return session.run_with_ort_values(names, values, options)

    return run


def send_cache(channel: ParentChannel, cache: kv_cache.Generation | None) -> None:
    """Send the addresses of the values that the next run receives."""
    for index, ranges in enumerate([] if cache is None else cache.ranges()):
        channel.send("cache", first=not index, ranges=ranges)


def device_recorder(channel: ParentChannel, job: dict[str, Any], runtime: Any) -> Any:
    """Return the recorder of the device; None, without loading it, if the job does not need it."""
    if not job["records_device"]:
        return None
    sys.path.insert(0, SCRIPTS_FOLDER)
    recorder_module: Any = __import__("device")
    sys.path.remove(SCRIPTS_FOLDER)
    recorder = recorder_module.DeviceRecorder(
        channel.send,
        getattr(runtime, "cuda_version", ""),
        uses_cupti=job["records_allocations"],
    )
    recorder.mark("start", is_alive=False)
    return recorder


def send_known_options(channel: ParentChannel, session: Any) -> None:
    """Send the names of the options that the session's provider of the device has."""
    for provider, options in session.get_provider_options().items():
        if provider in DEVICE_PROVIDERS:
            channel.send("device_options", provider=provider, known=sorted(options))


def mark_device(recorder: device.DeviceRecorder | None, name: str, inputs: str = "") -> None:
    """Report the device at a moment after the session was created on it."""
    if recorder is not None:
        recorder.mark(name, inputs)


def inputs_name(job: dict[str, Any], call: int) -> str:
    """Return a name for the inputs of a call, from 0, that calls with the same sizes share."""
    if job["generation"] is not None:
        return f"call {call}"
    # The second call has the first of the later inputs, with the sizes of the first call's.
    return f"inputs {max(0, call - 1) % max(1, len(job['later_feeds']))}"


def timed_run(run: Any, feeds: dict[str, Any], options: Any) -> tuple[Any, float]:
    """Return the outputs of a run, and its seconds."""
    started = time.perf_counter()
    outputs = run(None, feeds, options)
    return outputs, time.perf_counter() - started


def first_run(
    channel: ParentChannel,
    recorder: device.DeviceRecorder | None,
    job: Any,
    session: Any,
    run: Any,
    feeds: Any,
    later: Any,
    options: Any,
) -> kv_cache.Generation | None:
    """Run with `feeds`; return the cache of a generation, whose steps also get `later`."""
    outputs, latency_s = timed_run(run, feeds, options)
    cache = None
    if job["generation"] is not None:
        cache = kv_cache.Generation(session, job["generation"], later)
        cache.keep(outputs)
    outputs = None
    send_cache(channel, cache)
    mark_device(recorder, "first run", inputs_name(job, 0))
    channel.step("first_run", latency_s=latency_s)
    return cache


def later_runs(
    channel: ParentChannel,
    recorder: device.DeviceRecorder | None,
    job: Any,
    run: Any,
    varied: Any,
    later: Any,
    cache: Any,
    options: Any,
) -> None:
    """Do the job's runs, with the inputs `later` in turn or with what `cache` has for each step."""
    runs = job["runs"]
    for number in range(runs):
        varied[number % len(later)].change()
        feeds = later[number % len(later)] if cache is None else cache.step_feeds(number, runs)
        outputs, latency_s = timed_run(run, feeds, options)
        if cache is not None:
            cache.keep(outputs)
            feeds = {}  # the past is no longer needed
        outputs = None
        mark_device(recorder, "run", inputs_name(job, number + 1))
        channel.step("run", latency_s=latency_s)
    send_cache(channel, cache)
    channel.step("steady")


def end_runs(channel: ParentChannel, recorder: device.DeviceRecorder | None) -> None:
    """Report the end, and copy memory of the device as often as the parent asks for it."""
    channel.send("end", has_device=recorder is not None)
    answer = channel.receive()
    while recorder is not None and isinstance(answer, dict):
        recorder.copy(answer["copy"])
        answer = channel.receive()
    if recorder is not None:
        recorder.end_copies()


def trim() -> bool:
    """Return freed heap to the system; return whether the allocators of this process can."""
    symbols = ctypes.CDLL(None)
    possible = False
    for name, arguments in RETURNS_OF_FREED_HEAP:
        function = getattr(symbols, name, None)
        if function is not None:
            function(*arguments)
            possible = True
    return possible


def main() -> None:
    """Do the job step by step; an exception becomes an `error` event."""
    channel = ParentChannel()
    job = channel.start()
    stage = "import"
    recorder = None
    try:
        import numpy
        import onnxruntime

        onnxruntime.set_default_logger_severity(SEVERITY_VERBOSE)
        channel.send("versions", onnxruntime=onnxruntime.__version__, python=sys.version.split()[0])
        # Before anything can call CUDA.
        recorder = device_recorder(channel, job, onnxruntime)
        stage = "options"
        options = session_options(onnxruntime, job)
        check_providers(onnxruntime, job["providers"])
        stage = "inputs"
        feeds = load_inputs(onnxruntime, numpy, job["feeds"])
        later = [load_inputs(onnxruntime, numpy, entries) for entries in job["later_feeds"]]
        later = later or [feeds]
        varied = [
            contents.Contents(numpy, values, entries)
            for values, entries in zip(later, job["later_feeds"] or [job["feeds"]])  # noqa: B905 # Python 3.9
        ]
        options_of_runs = run_options(onnxruntime, job)
        channel.step("ready")

        stage = "create"
        session = create_session(onnxruntime, options, job)
        if not any(name in DEVICE_PROVIDERS for name in session.get_providers()):
            recorder = None
        if recorder is not None:
            send_known_options(channel, session)
        mark_device(recorder, "session")
        channel.step("created", providers=session.get_providers())

        if job["runs"] is not None:
            stage = "run"
            run = runner(onnxruntime, session)
            cache = first_run(
                channel, recorder, job, session, run, feeds, later[0], options_of_runs
            )
            # Regions of arenas are logged at level INFO. They are needed only for a device.
            severity = SEVERITY_WARNING if recorder is None else SEVERITY_INFO
            onnxruntime.set_default_logger_severity(severity)
            options_of_runs.log_severity_level = SEVERITY_WARNING
            later_runs(channel, recorder, job, run, varied, later, cache, options_of_runs)

        stage = "trim"
        channel.step("trimmed", possible=trim())
        end_runs(channel, recorder)
        if job["records_device"]:
            session = run = cache = None
            if recorder is not None:
                recorder.mark("deleted", is_alive=False)
            channel.step("deleted")
    except Exception as error:
        if recorder is not None:
            recorder.mark("failed", is_alive=stage in ("run", "trim"))
        channel.step(
            "error", stage=stage, kind=type(error).__name__, message=str(error)[:MAX_ERROR_MESSAGE]
        )
        os._exit(1)
    # Tearing the session down would only take time: the kernel frees it all.
    os._exit(0)


if __name__ == "__main__":
    # Our own folder must not shadow anybody's modules.
    sys.path.pop(0)
    main()

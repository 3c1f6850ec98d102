"""Names of processes, models, sessions and shapes of a program, as plain text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from memdiag.growth.growth_sentences import is_calibrator
from memdiag.records.run import ProgramProcess, ProgramRun, ProgramSession
from memdiag.reports.text import plain, shortened
from memdiag.units import format_size

_MAX_WORD = 60
_MAX_SHAPE_INPUTS = 3
_MAX_NUMBER_RANGES = 6
_MULTIPROCESSING_NAMES = {
    "spawn": "multiprocessing worker",
    "forkserver": "multiprocessing server",
    "resource_tracker": "multiprocessing tracker",
}


def model_names(recording: ProgramRun) -> Mapping[str, str]:
    """Return the name of each model by its key: the file name.

    A file name that several models share gets as many folders as distinguish them.
    """
    names = {session.model_key: _bytes_model_name(session) for session in recording.sessions}
    paths = {session.model.path for session in recording.sessions if session.model.path}
    parts = {path: PurePath(path).parts for path in paths}
    tails = Counter(own[-count:] for own in parts.values() for count in range(1, len(own) + 1))
    for path, own in parts.items():
        counts = range(1, len(own))
        count = next((count for count in counts if tails[own[-count:]] == 1), len(own))
        names[path] = plain(str(PurePath(*own[-count:])))
    return names


def _bytes_model_name(session: ProgramSession) -> str:
    size = session.model.bytes
    return "model from bytes" if size is None else f"model of {format_size(size)} from bytes"


def session_name(session: ProgramSession, models: Mapping[str, str]) -> str:
    """Return ``session 2 (model.onnx)``, or whose it is if onnxruntime calibrates with it."""
    whose = " of the calibration" if is_calibrator(session.created_at) else ""
    return f"session {session.number}{whose} ({shortened(models[session.model_key], _MAX_WORD)})"


def created_text(session: ProgramSession) -> str:
    """Return ``ocr: main.py:70, called from app.py:5``; of the program's own code its place."""
    if session.called_from is None:
        return plain(session.created_at)
    name = PurePath(session.created_at).name
    return plain(f"{session.library}: {name}, called from {session.called_from}")


def short_created_text(session: ProgramSession) -> str:
    """Return ``app.py:5 (ocr)``, the program's line and the library; of own code its place."""
    if session.called_from is None:
        return plain(session.created_at)
    return plain(f"{session.called_from} ({session.library})")


def number_ranges_text(found: Iterable[int]) -> str:
    """Return ``1, 3–5 and 9``."""
    ranges: list[list[int]] = []
    for number in sorted(found):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts: list[str] = []
    for each in ranges:
        texts += [f"{each[0]}–{each[-1]}"] if len(each) > 2 else map(str, each)
    if len(texts) > _MAX_NUMBER_RANGES:
        return f"{', '.join(texts[:_MAX_NUMBER_RANGES])} and more"
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def process_name(process: ProgramProcess, recording: ProgramRun) -> str:
    """Return the command of `process`, with programs and scripts without their folders."""
    command = process.command
    if not command and recording.processes[:1] == (process,):
        command = recording.command  # the process ended before its command line was read
    return command_text(command) or "process"


def command_text(command: Sequence[str]) -> str:
    """Return a command line with programs and scripts without their folders.

    Helpers of Python's multiprocessing get a name.
    """
    for word in command[1:]:
        for module, name in _MULTIPROCESSING_NAMES.items():
            if word.startswith(f"from multiprocessing.{module} import "):
                return name
    words: list[str] = []
    for number, word in enumerate(_installed_program_command(command)):
        is_path = number == 0 or word.startswith(("/", "./", "../"))
        text = PurePath(word).name if is_path else word
        words.append(shortened(plain(text), _MAX_WORD))
    return " ".join(words)


def _installed_program_command(command: Sequence[str]) -> Sequence[str]:
    """Return the command line without a Python that runs an installed program, such as gunicorn."""
    if len(command) > 1 and PurePath(command[0]).name.startswith("python"):
        program = PurePath(command[1])
        if program.parent.name == "bin" and not program.suffix:
            return command[1:]
    return command


def shapes_text(shapes: Mapping[str, tuple[int, ...]] | None) -> str:
    """Return ``x: 1×3×640×640, mask: 1×640``, or ``3 inputs of 64×256``."""
    if shapes is None:
        return "other shapes"
    if not shapes:
        return "IOBinding"
    sizes = ["×".join(map(str, shape)) or "scalar" for shape in shapes.values()]
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return f"{len(sizes)} inputs of {sizes[0]}"
    texts = [
        f"{shortened(plain(name), _MAX_WORD)}: {size}"
        for name, size in zip(shapes, sizes, strict=True)
    ]
    more = len(texts) - _MAX_SHAPE_INPUTS
    return ", ".join(texts[:_MAX_SHAPE_INPUTS]) + (f" and {more} more" if more > 0 else "")

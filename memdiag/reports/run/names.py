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

    If several models share a file name, it gets as many folders as it takes to distinguish them.
    """
    names = {session.model_key: _bytes_model_name(session) for session in recording.sessions}
    paths = {session.model.path for session in recording.sessions if session.model.path}
    parts_by_path = {path: PurePath(path).parts for path in paths}
    path_end_counts = Counter(
        path_parts[-count:]
        for path_parts in parts_by_path.values()
        for count in range(1, len(path_parts) + 1)
    )
    for path, path_parts in parts_by_path.items():
        counts = range(1, len(path_parts))
        count = next(
            (count for count in counts if path_end_counts[path_parts[-count:]] == 1),
            len(path_parts),
        )
        names[path] = plain(str(PurePath(*path_parts[-count:])))
    return names


def _bytes_model_name(session: ProgramSession) -> str:
    size = session.model.bytes
    return "model from bytes" if size is None else f"model of {format_size(size)} from bytes"


def session_name(session: ProgramSession, models: Mapping[str, str]) -> str:
    """Return ``session 2 (model.onnx)``; a session of a calibration is named as such."""
    owner = " of the calibration" if is_calibrator(session.created_at) else ""
    return f"session {session.number}{owner} ({shortened(models[session.model_key], _MAX_WORD)})"


def created_text(session: ProgramSession) -> str:
    """Return ``ocr: main.py:70, called from app.py:5``, or the place in the program's own code."""
    if session.called_from is None:
        return plain(session.created_at)
    name = PurePath(session.created_at).name
    return plain(f"{session.library}: {name}, called from {session.called_from}")


def short_created_text(session: ProgramSession) -> str:
    """Return ``app.py:5 (ocr)``, or the place in the program's own code."""
    if session.called_from is None:
        return plain(session.created_at)
    return plain(f"{session.called_from} ({session.library})")


def number_ranges_text(numbers: Iterable[int]) -> str:
    """Return ``1, 3–5 and 9``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts: list[str] = []
    for number_range in ranges:
        texts += (
            [f"{number_range[0]}–{number_range[-1]}"]
            if len(number_range) > 2
            else map(str, number_range)
        )
    if len(texts) > _MAX_NUMBER_RANGES:
        return f"{', '.join(texts[:_MAX_NUMBER_RANGES])} and more"
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def process_name(process: ProgramProcess, recording: ProgramRun) -> str:
    """Return the command of `process`. Programs and scripts are named without their folders."""
    command = process.command
    if not command and recording.processes[:1] == (process,):
        command = recording.command  # the process ended before its command line was read
    return command_text(command) or "process"


def command_text(command: Sequence[str]) -> str:
    """Return a command line. Programs and scripts are named without their folders.

    Helper processes of Python's multiprocessing get a name.
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
    omitted_count = len(texts) - _MAX_SHAPE_INPUTS
    more_text = f" and {omitted_count} more" if omitted_count > 0 else ""
    return ", ".join(texts[:_MAX_SHAPE_INPUTS]) + more_text

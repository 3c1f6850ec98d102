"""External data: the files that a model's tensors refer to, checked without reading them."""

import os
import stat
from pathlib import Path
from typing import NamedTuple

from onnx import TensorProto

from memdiag.errors import MissingDataError, ModelError


class ExternalReference(NamedTuple):
    """The reference in a tensor's external_data.

    Attributes:
        location: the path of the file, relative to the folder of the model.
        offset: the offset in the file, in bytes.
        length: the number of bytes; None for the rest of the file.
    """

    location: str
    offset: int
    length: int | None


def read_reference(tensor: TensorProto, *, where: str) -> ExternalReference:
    """Return the external reference of `tensor`, which `where` names in errors.

    Raises:
        ModelError: an entry is missing or is not a number of bytes.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location")
    if isinstance(location, bytes):
        raise ModelError(
            f"{where} has its data in {location[:200]!r}, a name that is not UTF-8."
            " Rename the file, and export the model again."
        )
    if not location:
        raise ModelError(f"{where} has external data without a location; export the model again.")
    numbers: dict[str, int] = {}
    for key in ("offset", "length"):
        text = entries.get(key)
        if not text:
            continue
        if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 20):
            raise ModelError(
                f"{where} has {text[:40]!r} as the {key} of its external data, which is not a "
                "number of bytes; export the model again."
            )
        numbers[key] = int(text)
    return ExternalReference(location, numbers.get("offset", 0), numbers.get("length"))


class ExternalFiles:
    """The external files of one model. Each file is looked up once.

    A location is relative to the folder of the model's path. The file must be in that folder or in
    the folder of the model's real path, also after links are resolved. Caches that link models and
    data to a common store are accepted.
    """

    def __init__(self, model: Path) -> None:
        self._folder = model.parent
        self._roots = (model.parent.resolve(), model.resolve().parent)
        self._files_by_location: dict[str, tuple[Path, int]] = {}

    @property
    def paths(self) -> tuple[Path, ...]:
        """The distinct files that were looked up so far, with links resolved."""
        return tuple(dict.fromkeys(path for path, _ in self._files_by_location.values()))

    @property
    def total_bytes(self) -> int:
        """The total size of the distinct files that were looked up so far."""
        return sum(dict(self._files_by_location.values()).values())

    def check(self, location: str, end: int, *, where: str) -> Path:
        """Return the real path of the file at `location`, after checking that it has `end` bytes.

        Raises:
            MissingDataError: there is no such file, or it is shorter.
            ModelError: `location` is outside of the model's folder.
        """
        if location not in self._files_by_location:
            self._files_by_location[location] = self._find_file(location, where)
        path, size = self._files_by_location[location]
        if size < end:
            raise MissingDataError(
                f"{where} needs {end:,} bytes of {location!r}, which has {size:,}. "
                "Download or export that file again."
            )
        return path

    def _find_file(self, location: str, where: str) -> tuple[Path, int]:
        relative_path = Path(location)
        try:
            path = (self._folder / relative_path).resolve()
            is_inside = any(path.is_relative_to(root) for root in self._roots)
            if relative_path.is_absolute() or ".." in relative_path.parts or not is_inside:
                raise ModelError(
                    f"{where} has its data in {location!r}, which is outside the model's folder. "
                    "Put the file next to the model and refer to it by its name."
                )
            status = path.stat()
        except (OSError, ValueError, RuntimeError) as error:
            # A name that no file can have, and links in a circle, are as good as missing.
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
            raise MissingDataError(
                f"{where} has its data in {location!r}, which cannot be opened"
                f"{f' ({reason})' if reason else ''}. Put that file next to the model.",
                location=location,
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise MissingDataError(
                f"{where} has its data in {location!r}, which is not a file. "
                "Put that file next to the model."
            )
        return path, status.st_size

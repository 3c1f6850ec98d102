"""Models from bytes that are equal to files that the program has also loaded by path."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from memdiag.errors import ModelError
from memdiag.model.model_file import open_model
from memdiag.programs.events import SessionModelSource
from memdiag.programs.hook.creation import sampled_digest
from memdiag.regular_files import open_regular


def files_of_bytes(models: Iterable[SessionModelSource]) -> dict[str, str]:
    """Return the path of the file with the same content, by the digest of a model from bytes.

    Only files with the length of a model from bytes are read. Models with external data are left
    out: the same bytes may refer to other data in another folder.

    Args:
        models: the path, or the length and the digest, of each model, as the hook reports them.
    """
    model_list = list(models)
    digests = {model.digest for model in model_list if model.path is None}
    lengths = {model.bytes for model in model_list if model.path is None}
    paths = {}
    for path in dict.fromkeys(model.path for model in model_list if model.path is not None):
        with suppress(OSError, ModelError):
            digest = _hook_digest(path) if os.stat(path).st_size in lengths else None
            if digest is not None and digest in digests:
                paths[digest] = path
    return paths


def _hook_digest(path: str) -> str | None:
    """Return the digest that the hook computes for these bytes; None for a model with external
    data.

    Raises:
        ModelError, OSError: the file cannot be read.
    """
    with open_model(Path(path)) as model_file:
        if len(model_file.files) > 1:
            return None
    with open_regular(path) as file:

        def read(part: slice) -> bytes:
            return os.pread(file.fileno(), part.stop - part.start, part.start)

        return sampled_digest(os.fstat(file.fileno()).st_size, read)

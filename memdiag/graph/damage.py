"""What is wrong with a file that is no well-formed model."""

from memdiag.errors import ModelError
from memdiag.graph.fields import Buffer

NOT_ONNX = "it is not an ONNX model; give the .onnx file that an exporter wrote"

_OTHER_FORMATS = (
    (
        4,
        b"ORTM",
        "it is in ONNX Runtime's own .ort format, which memdiag does not read; "
        "give the .onnx file it was made from",
    ),
    (
        0,
        b"version https://git-lfs",
        "it is a Git LFS pointer, not the model itself; fetch that with 'git lfs pull'",
    ),
)


def check_format(data: Buffer, *, origin: str) -> None:
    """Check that `data`, which `origin` names in errors, does not begin as another kind of file.

    Raises:
        ModelError: it does, or is empty.
    """
    if not len(data):
        raise ModelError(f"{origin}: it is empty; download or export it again.")
    for start, magic, sentence in _OTHER_FORMATS:
        if data[start : start + len(magic)] == magic:
            raise ModelError(f"{origin}: {sentence}.")


class Damage(Exception):
    """What is wrong; on its way out it meets the names of the messages it happened in."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.detail = detail
        self.in_graph = False
        self.subject = ""

    def sentence(self) -> str:
        """Return what is wrong where, in words."""
        if not self.in_graph:
            return NOT_ONNX
        subject = self.subject or "the model"
        return f"{self.what} {subject}{self.detail}; download or export it again"

"""Whether a session on CUDA is possible here, found out without creating one."""

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from memdiag.defaults import CUDA_PROVIDER
from memdiag.errors import UsageError

_PROVIDER_LIBRARY = "capi/libonnxruntime_providers_cuda.so"
_DRIVER_LIBRARY = "libcuda.so.1"


def require_cuda() -> None:
    """Refuse to go on where no session on CUDA can be created.

    Raises:
        UsageError: the installed onnxruntime has no such provider, or the machine no driver.
    """
    if not has_cuda_provider():
        raise UsageError(
            f"{CUDA_PROVIDER} is not there: the installed onnxruntime is not a build for CUDA."
            " Install onnxruntime-gpu in memdiag's environment, on a machine with an NVIDIA GPU."
        )
    if not has_driver():
        raise UsageError(
            f"{CUDA_PROVIDER} is not there: this machine has no NVIDIA driver"
            f" ({_DRIVER_LIBRARY} was not found). Use a machine with an NVIDIA GPU; in a container,"
            " pass it on (docker run --gpus all)."
        )


def prefers_cuda(providers: Sequence[str]) -> bool:
    """Return whether CUDA is the preferred one of the execution `providers`."""
    return tuple(providers[:1]) == (CUDA_PROVIDER,)


def has_cuda_provider() -> bool:
    """Return whether the onnxruntime that would be imported has the CUDA provider."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / _PROVIDER_LIBRARY).is_file()


def has_driver() -> bool:
    """Return whether the library of NVIDIA's driver can be loaded, without which CUDA fails."""
    try:
        ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return False
    return True

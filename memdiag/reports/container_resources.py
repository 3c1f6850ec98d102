"""Memory of a container as YAML: the resources of Kubernetes, and a service of Compose."""

from collections.abc import Sequence

from memdiag.units import MIB


def kubernetes_resources(request_bytes: int, limit_bytes: int, comments: Sequence[str]) -> str:
    """Return the ``resources`` of a container in Kubernetes, below the lines of `comments`."""
    return (
        f"{_yaml_comment(comments)}resources:\n  requests:\n"
        f"    memory: {_rounded_up_mebibytes(request_bytes)}Mi\n  limits:\n"
        f"    memory: {_rounded_up_mebibytes(limit_bytes)}Mi\n"
    )


def compose_service(
    name: str, request_bytes: int, limit_bytes: int, comments: Sequence[str]
) -> str:
    """Return a service of Compose without swap. The unit M of Compose is MiB."""
    limit = _rounded_up_mebibytes(limit_bytes)
    return (
        f"{_yaml_comment(comments)}services:\n"
        f"  {_compose_service_name(name)}:\n    deploy:\n      resources:\n        reservations:\n"
        f"          memory: {_rounded_up_mebibytes(request_bytes)}M\n        limits:\n"
        f"          memory: {limit}M\n"
        f"    memswap_limit: {limit}M\n"
    )


def kubernetes_gpu(comments: Sequence[str]) -> str:
    """Return the ``resources`` of a container in Kubernetes that has one GPU, after `comments`."""
    return f"{_yaml_comment(comments)}resources:\n  limits:\n    nvidia.com/gpu: 1\n"


def compose_gpu_service(name: str, comments: Sequence[str]) -> str:
    """Return the service `name` of Compose that has one GPU."""
    return (
        f"{_yaml_comment(comments)}services:\n  {_compose_service_name(name)}:\n    deploy:\n"
        "      resources:\n        reservations:\n          devices:\n"
        "            - driver: nvidia\n              count: 1\n"
        "              capabilities: [gpu]\n"
    )


def _yaml_comment(lines: Sequence[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _rounded_up_mebibytes(size: int) -> int:
    return -(-size // MIB)


def _compose_service_name(name: str) -> str:
    """Return `name` in characters that Compose permits, with a letter first."""
    service_name = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-"
        for letter in name.lower()
    )
    service_name = service_name.strip("-_") or "model"
    return service_name if service_name[0].isalpha() else f"model-{service_name}"

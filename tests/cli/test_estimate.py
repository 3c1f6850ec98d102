"""The two forms of ``memdiag estimate``: which options are for the host, and which for a GPU."""

import re

import pytest

from memdiag.cli.app import command_module, command_parser, parse_options
from memdiag.cli.options import flag_of
from memdiag.errors import UsageError

FOR_GPU = "--provider CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpu-context 1GiB", "--gpu-context is for --provider CUDAExecutionProvider."),
        ("--provider-option P:a=b", "--provider-option is for --provider CUDAExecutionProvider."),
        (f"{FOR_GPU} --measure", "--measure is for the memory of the host."),
        (f"{FOR_GPU} --no-run", "--no-run is for the memory of the host."),
        (f"{FOR_GPU} --steps 3", "--steps is for the memory of the host."),
        (f"{FOR_GPU} --load-from bytes", "--load-from is for the memory of the host."),
        (f"{FOR_GPU} --format k8s", "--format k8s is for the memory of the host."),
    ],
)
def test_an_option_for_the_other_memory_is_refused(words: str, message: str) -> None:
    module = command_module("estimate")
    options = parse_options(command_parser("estimate", module), ["m.onnx", *words.split()])
    with pytest.raises(UsageError, match=re.escape(message)):
        module.run(options)


def test_messages_on_the_context_name_its_option() -> None:
    assert flag_of("context_bytes") == "--gpu-context"

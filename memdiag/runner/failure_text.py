"""Why a child that runs a model failed, in one line."""

import re
from typing import Final

_STATUS_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_UNKNOWN_OPERATOR: Final = re.compile(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function/op")
_OWN_DOMAINS: Final = ("com.microsoft", "com.ms.")
"""Prefixes of onnxruntime's own domains: another release may have the operator. For a missing
operator of ONNX, onnxruntime prints another message."""

CUSTOM_OPS_OPTION: Final = "--session-option register_custom_ops_library=FILE"
RUN_PROGRAM_COMMAND: Final = "memdiag run -- python app.py"


def failure_text(message: object) -> str:
    """Return an error message of onnxruntime in one line, without its code.

    For a model with custom operators whose library is not loaded, the text says how to load it.
    """
    text = _STATUS_CODE.sub("", " ".join(str(message).split()))
    match = _UNKNOWN_OPERATOR.search(text)
    if match is None or match[1].startswith(_OWN_DOMAINS):
        return text
    return (
        f"{match[2]} of {match[1]} is a custom operator: memdiag profile {CUSTOM_OPS_OPTION}"
        f" loads its library, and {RUN_PROGRAM_COMMAND} measures it in the program that does"
    )

"""Creating a session that logs nothing, for the scripts that are not measured themselves."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memdiag.runner.scripts import child
else:
    import child


def create_session(onnxruntime: Any, job: dict[str, Any]) -> Any:
    """Return a session of the job without reading its log."""
    onnxruntime.set_default_logger_severity(child.SEVERITY_FATAL)
    options = child.session_options(onnxruntime, job)
    options.log_severity_level = child.SEVERITY_FATAL
    return child.create_session(onnxruntime, options, job)

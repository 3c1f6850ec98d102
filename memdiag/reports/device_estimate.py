"""The report of an estimate for a GPU: what a session takes, by owner, and what fits."""

from memdiag.records.device_estimate import DeviceConfiguration, DeviceEstimate, DeviceFit
from memdiag.records.dimension import typed_names
from memdiag.reports.blocks import BulletBlock, Document, notes_block
from memdiag.reports.device import device_sum
from memdiag.reports.estimate.sentences import interval_text
from memdiag.reports.report import Report
from memdiag.reports.text import model_file_name, plain, sizes_clause
from memdiag.units import counted, format_duration, format_limit, format_size

_FIXED_NOTES = (
    "cuBLAS is counted as on an H100, with two handles. Other GPUs may differ",
    "every node is counted as if it ran on the GPU, and none as fused with others",
    "TensorRT, gpu_mem_limit, CUDA graphs and runs in several threads are not predicted",
)


def document(estimate: DeviceEstimate) -> Document:
    """Return the report of `estimate`."""
    need, fits = _need_text(estimate), _fit_text(estimate)
    total = device_sum(estimate.ledger)
    return Document(
        subject=model_file_name(estimate.model),
        kind="estimated memory on the GPU",
        answer=fits or need,
        seconds=(f"It takes {need}", total) if fits else (total,),
        facts=f"nothing was run · {format_duration(estimate.duration_s)}",
        blocks=[
            BulletBlock(
                title="With other options", texts=_configuration_texts(estimate), prefix="with "
            ),
            BulletBlock(title="Not known", texts=_missing_texts(estimate), prefix="not known: "),
            notes_block((*estimate.notes, *_FIXED_NOTES)),
        ],
    )


def _need_text(estimate: DeviceEstimate) -> str:
    """Return what a process with one session takes."""
    given = estimate.given
    sizes = f" after runs {_sizes_text(estimate)}" if estimate.dimensions else ""
    least = "at least " if estimate.unknown_values else ""
    return (
        f"{least}{_size_text(given)} on the GPU{sizes}, under onnxruntime"
        f" {plain(estimate.onnxruntime)} (predicted)."
    )


def _size_text(configuration: DeviceConfiguration) -> str:
    low, high = configuration.low_bytes, configuration.high_bytes
    return format_size(low) if low == high else interval_text(low, high)


def _sizes_text(estimate: DeviceEstimate) -> str:
    more = len(estimate.runs) - 1
    others = f" and {counted(more, 'further combination')} of sizes" if more else ""
    return f"{sizes_clause(estimate.dimensions)}{others}"


def _fit_text(estimate: DeviceEstimate) -> str:
    """Return what fits into the limit; empty without one."""
    fit, limit = estimate.given.fit, estimate.limit_bytes
    if limit is None:
        return ""
    if fit is None:
        values = counted(estimate.unknown_values, "value")
        return f"what fits in {format_limit(limit)} cannot be said: {values} of unknown size."
    at = f"{_sizes_text(estimate)}, " if estimate.dimensions else ""
    if len(estimate.runs) > 1:
        at = f"if each session runs all {len(estimate.runs)} combinations of sizes, "
    texts = (_largest_text(estimate, fit), f"{at}{_count_text(fit)}")
    return f"in {format_limit(limit)} fit: {'; '.join(filter(None, texts))}. (predicted)"


def _largest_text(estimate: DeviceEstimate, fit: DeviceFit) -> str:
    """Return the largest size that fits; empty if it was not searched for."""
    if not (estimate.searched and fit.is_searched):
        return ""
    name = _searched_text(estimate)
    size = fit.largest_size
    return f"no {name} at all" if size is None else f"{name} up to {size:,}"


def _count_text(fit: DeviceFit) -> str:
    sessions = counted(fit.sessions, "session")
    return f"{sessions} in one process, or {counted(fit.processes, 'process', 'processes')}"


def _searched_text(estimate: DeviceEstimate) -> str:
    """Return the names of the searched dimensions: several of them have one size."""
    typed = typed_names(estimate.dimensions)
    names = " = ".join(plain(typed.get(name, name)) for name in estimate.searched)
    return f"{names} =" if estimate.searched[1:] else names


def _missing_texts(estimate: DeviceEstimate) -> list[str]:
    texts = []
    if estimate.context_device:
        context = format_size(estimate.ledger.bytes_of("context"))
        cublas = format_size(estimate.ledger.bytes_of("cublas"))
        texts.append(
            f"the context and code of your GPU (--gpu-context), and its cuBLAS; {context} and"
            f" {cublas} are those of an {plain(estimate.context_device)}"
        )
    if any(other.high_bytes > other.low_bytes for other in estimate.configurations):
        texts.append(
            "what cuDNN needs for convolutions: from nothing to a copy of input, filter and"
            " output, the most in recordings, with which what fits is counted"
        )
    if estimate.unknown_values:
        values = counted(estimate.unknown_values, "value")
        texts.append(f"the sizes of {values}, which only a run shows (memdiag profile)")
    return texts


def _configuration_texts(estimate: DeviceEstimate) -> list[str]:
    """Return what configurations take that take less, and what fits with them."""
    smaller = [
        configuration
        for configuration in estimate.configurations[1:]
        if configuration.high_bytes < estimate.given.high_bytes
    ]
    # All changes together may take more than the best one of them.
    least_bytes = min(
        (item.high_bytes for item in smaller if len(item.changes) == 1),
        default=estimate.given.high_bytes,
    )
    return [
        _configuration_text(estimate, configuration)
        for configuration in smaller
        if len(configuration.changes) == 1 or configuration.high_bytes < least_bytes
    ]


def _configuration_text(estimate: DeviceEstimate, configuration: DeviceConfiguration) -> str:
    changes, fit = configuration.changes, configuration.fit
    label = plain(changes[0]) if len(changes) == 1 else f"all of {', '.join(map(plain, changes))}"
    parts = [_size_text(configuration)]
    if fit is not None:
        parts += filter(None, [_largest_text(estimate, fit)])
        parts.append(_count_text(fit))
    return f"{label}: {'; '.join(parts)}"


REPORT: Report[DeviceEstimate] = Report(
    "device estimate",
    {"html": "report.html", "json": "device_estimate.json", "markdown": "report.md"},
    document,
)

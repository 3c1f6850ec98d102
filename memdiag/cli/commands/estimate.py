"""``memdiag estimate``: predict the memory of a session, without running the model."""

from argparse import ArgumentParser, Namespace
from typing import Any

from memdiag.api.options import DeviceEstimateOptions, DeviceOptions, EstimateOptions
from memdiag.cli import EXIT_CLEAN
from memdiag.cli.options import (
    add_detail,
    add_dims,
    add_format,
    add_model,
    add_option,
    add_options,
    add_reports_folder,
    read_dim_sizes,
    read_options,
    refuse_options,
)
from memdiag.defaults import DEFAULT_PROVIDERS
from memdiag.errors import UsageError

ARGUMENTS = "MODEL"

_OPTIONS_FOR_HOST = (
    *("no_run", "measure", "feed", "steps", "prefill", "disabled_optimizers", "load_from"),
)
_OPTIONS_FOR_GPU = ("provider_options", "context_bytes")


def configure(parser: ArgumentParser) -> None:
    """Add the options."""
    add_model(parser, genai=True)

    group = parser.add_argument_group("Estimate")
    add_dims(group, ranges=True, lists=True)
    add_option(group, "for_onnxruntime")
    group.add_argument(
        "--fit",
        metavar="SIZE",
        help="Find the largest size with which the process stays below SIZE, e.g. 4GiB: of the"
        " first dimension with several sizes (--dim batch=1..64), without one of the batch. The"
        " model is run once there.",
    )
    group.add_argument(
        "--no-run",
        action="store_true",
        help="Do not run the model at the size that fits. What it cannot run, such as more"
        " positions than it was trained for, is then not found.",
    )
    group.add_argument(
        "--measure",
        action="store_true",
        help="Run the model at the smallest and the largest sizes and at one between them, and"
        " correct the estimate by the first two.",
    )

    add_options(parser.add_argument_group("Generation and session"), EstimateOptions)

    add_options(parser.add_argument_group("GPU"), DeviceOptions)

    group = parser.add_argument_group("Output")
    add_reports_folder(group)
    add_format(
        group,
        ("console", "json", "k8s", "markdown"),
        "What to print: a summary, the JSON record, the resources of a Kubernetes container, or a"
        " Markdown report.",
    )
    add_detail(group)


def run(options: Namespace) -> int:
    """Predict the memory of a session, phase by phase, from the model alone.

    Nothing is run and no weight is read, except with --fit and --measure. Several sizes of a
    dimension (--dim batch=1..256, --dim seq=128,512) are estimated in all combinations.

    With --provider CUDAExecutionProvider, it is the memory on the GPU, and --fit also says how many
    sessions and processes fit, and with which options more do.

    With --out, writes estimate.json, report.html, report.md and estimate.png; of a GPU
    device_estimate.json, report.html and report.md. Exit codes: 0; 2 on errors.
    """
    is_on_gpu = read_options(options, DeviceOptions)["providers"] != DEFAULT_PROVIDERS
    _refuse_options_of_other_memory(options, is_on_gpu=is_on_gpu)
    from memdiag.api.estimate import estimate
    from memdiag.api.estimate_device import estimate_device
    from memdiag.cli.output import ReportDestination, print_record
    from memdiag.cli.progress import StatusLine
    from memdiag.records.device_estimate import DeviceEstimate
    from memdiag.records.estimate import Estimate
    from memdiag.reports.estimate.machine_formats import estimated_resources
    from memdiag.units import parse_size

    destination = ReportDestination(options.out)
    result: Estimate | DeviceEstimate
    with StatusLine(options.model.name) as line:
        arguments: dict[str, Any] = {
            "dims": read_dim_sizes(options.dims),
            "for_onnxruntime": options.for_onnxruntime,
            "fit_bytes": None if options.fit is None else parse_size(options.fit),
            "on_progress": line.show,
        }
        if is_on_gpu:
            arguments |= read_options(options, DeviceEstimateOptions)
            result = estimate_device(options.model, **arguments)
        else:
            arguments |= read_options(options, EstimateOptions)
            run_model = not options.no_run
            result = estimate(options.model, run=run_model, measure=options.measure, **arguments)

    with destination.written_reports(result) as report_paths:
        print_record(
            result,
            report_paths,
            format=options.format,
            detail=options.detail,
            machine_formats={"k8s": estimated_resources},
        )
    return EXIT_CLEAN


def _refuse_options_of_other_memory(options: Namespace, *, is_on_gpu: bool) -> None:
    """Raise UsageError for an option that applies only to the other memory, host or GPU."""
    if not is_on_gpu:
        reason = "is for --provider CUDAExecutionProvider."
        refuse_options(options, configure, _OPTIONS_FOR_GPU, reason)
        return
    refuse_options(options, configure, _OPTIONS_FOR_HOST, "is for the memory of the host.")
    if options.format == "k8s":
        raise UsageError("--format k8s is for the memory of the host. Choose another format.")

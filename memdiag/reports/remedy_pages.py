"""The documentation of rewrites and session options, for ``memdiag explain`` and the reference."""

import importlib
import inspect

from memdiag import rewrites
from memdiag.comparison.optimizers import OPTIMIZERS
from memdiag.defaults import CUDA_PROVIDER
from memdiag.records.fix import REWRITE
from memdiag.reports.rule_pages import all_detectors
from memdiag.tuning.tuning_options import TuningOption, tuning_options

_ARITHMETIC_SENTENCES = {
    "same": "The kernels stay the same; only data moves.",
    "reordered": "Other kernels may run, which add the same terms in another order.",
    "changed": "Values change.",
}
"""What a rewrite may change, by `Rewrite.arithmetic`, as a sentence."""


_OPTIMIZER_SENTENCES = {
    "onnxruntime-basic": "onnxruntime folds constants and removes needless nodes (its basic level),"
    " once.",
    "onnxruntime-extended": "onnxruntime also fuses nodes for the CPU (its extended level), once.",
    "onnxruntime-all": "onnxruntime does everything that it otherwise does at each load, such as"
    " storing weights of convolutions in blocks, once.",
    "onnxoptimizer": "onnxoptimizer, of the ONNX project, fuses and removes nodes.",
    "onnxsim": "onnxsim folds constants, and removes nodes that shapes make needless.",
    "onnxslim": "onnxslim folds constants, fuses nodes and merges equal ones.",
    "onnxscript": "onnxscript folds constants and replaces patterns of nodes.",
    "quantize-int8": "onnxruntime's quantizer stores the weights of matrix products and of Gather"
    " with 8 bits, in blocks of 128 with a scale each.",
    "quantize-int4": "onnxruntime's quantizer stores the weights of matrix products and of Gather"
    " with 4 bits, in blocks of 32 with a scale each.",
}
"""What each optimizer that `memdiag fix` tries does, by name."""


def rules_by_remedy() -> dict[str, list[str]]:
    """Return the names of the rules that name each remedy."""
    rules: dict[str, list[str]] = {}
    for detector in all_detectors():
        for remedy in detector.rule.remedies:
            rules.setdefault(remedy, []).append(detector.rule.name)
    return rules


def rewrite_texts() -> dict[str, str]:
    """Return the documentation of each rewrite in Markdown, by name."""
    texts = {}
    for rewriter in rewrites.rewriters():
        rewrite = rewriter.rewrite
        module = importlib.import_module(rewriter.apply.__module__)
        safety = "" if rewrite.safe else " It is only tried with `--max-difference`."
        description = inspect.cleandoc(module.__doc__ or "")
        texts[rewrite.name] = (
            f"{description}\n\n{_ARITHMETIC_SENTENCES[rewrite.arithmetic]}{safety}"
        )
    return texts


def option_texts() -> dict[str, str]:
    """Return the documentation of each session option in Markdown, by name."""
    options = sorted(tuning_options(), key=lambda option: option.name)
    return {
        option.name: f"{option.does} {option.hurts}{_option_settings_text(option)}"
        for option in options
    }


def remedy_page(name: str) -> str:
    """Return the documentation of a rewrite or session option in Markdown; empty if unknown."""
    text = {**rewrite_texts(), **option_texts(), **_new_model_texts()}.get(name, "")
    rules = ", ".join(f"`{rule}`" for rule in rules_by_remedy().get(name, ()))
    ending = f"A remedy for {rules}." if rules else "Tried by `memdiag fix`."
    return f"# {name}\n\n{text}\n\n{ending}\n" if text else ""


def remedy_page_names() -> list[str]:
    """Return the names of everything that `remedy_page` knows."""
    return [*rewrite_texts(), *option_texts(), *_new_model_texts()]


def _new_model_texts() -> dict[str, str]:
    """Return sentences on each model that a search tries in place of the original, by name."""
    texts = {
        REWRITE: "The program loads a changed copy of the model, with the rewrites that are listed"
        " as applied."
    }
    for name, effect in _OPTIMIZER_SENTENCES.items():
        optimizer, remarks = OPTIMIZERS[name], ""
        if optimizer.fits_one_machine:
            remarks = " It is made for this release of onnxruntime and this kind of CPU."
        if optimizer.changes_values:
            remarks += " Its outputs differ: it is tried with `--max-difference`."
        texts[name] = (
            f"{effect} The program loads the result, with its weights in a file next to it."
            f"{remarks}"
        )
    return texts


def _option_settings_text(option: TuningOption) -> str:
    """Return the settings of an option. A library is named without its path on this machine."""
    lines = [f"session option `{key}={value}`" for key, value in option.session_options.items()]
    lines += [f"run option `{key}={value}`" for key, value in option.run_options.items()]
    lines += [
        f"option `{key}={value}` of {CUDA_PROVIDER}"
        for key, value in option.provider_options.items()
    ]
    lines += [f"disabled graph transformer `{name}`" for name in option.disabled_optimizers]
    lines += [
        f"session option `{key}={value}`, when the model is saved"
        for key, value in option.save_options.items()
    ]
    for key, value in option.environment.items():
        shown_value = value.rpartition("/")[2] if key == "LD_PRELOAD" else value
        lines.append(f"environment variable `{key}={shown_value}`")
    return f"\n\nSet by: {', '.join(lines)}." if lines else ""

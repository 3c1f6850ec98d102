"""onnxruntime before 1.21 keeps each string that a Python program passes to `run`.

A defect of the release, not of the model: the Python binding takes a new reference to each string
of an input and never returns it ([report](https://github.com/microsoft/onnxruntime/issues/22271),
[fix](https://github.com/microsoft/onnxruntime/pull/23105)).

## Why it costs

Strings that are new in each call are never freed, and memory grows without end. Measured with 100
strings of 60 characters a run, 2,000 runs:

| onnxruntime | list of strings | array of objects | array of texts (`<U`) |
| --- | --- | --- | --- |
| 1.15.0, 1.18.1, 1.20.1 | 11 KiB a run | 11 KiB a run | no growth |
| 1.21.0, 1.21.1, 1.22.1, 1.23.2, 1.24.4, 1.32.0 | no growth | no growth | no growth |

The file does not show how a program passes its texts, and other languages are not concerned, so
the finding is advice: it claims no bytes and does not set the exit code of `memdiag check`.

## What to do

- Use onnxruntime 1.21 or newer.
- Or pass an array of a text type: `np.array(texts)` without `dtype=object`. The strings in it are
  made for the call, and are freed.

`memdiag leak model.onnx --dim batch=100` measures it: its texts are new strings in an array of
objects. `memdiag compare model.onnx --bisect growth` finds the release.

## Not reported

Strings inside the model, such as those of a tokenizer, and inputs that are sequences.
"""

from collections.abc import Iterator

from memdiag.model.dimensions import tensor_type
from memdiag.model.tensor_types import STRING
from memdiag.ort.analysis import AnalysisContext
from memdiag.ort.releases import STRING_INPUTS_FREED_SINCE
from memdiag.records.finding import Finding
from memdiag.rules.rule import Rule
from memdiag.units import plural, some_of

RULE = Rule(
    code="MD801",
    name="string-inputs-kept",
    summary="onnxruntime before 1.21 keeps each string that a Python program passes to run",
    is_advisory=True,
)


def detect(ctx: AnalysisContext) -> Iterator[Finding]:
    """Yield at most one finding: the inputs of strings, under a release that keeps them."""
    if ctx.runtime >= STRING_INPUTS_FREED_SINCE:
        return
    names = [
        value.name
        for value in ctx.model.graph.required_inputs
        if value.type.HasField("tensor_type")
        and (tensor := tensor_type(value.type)) is not None
        and tensor.elem_type == STRING.number
    ]
    if names:
        yield RULE.finding(
            ctx,
            f"onnxruntime {ctx.runtime} keeps the strings of the {plural(len(names), 'input')} "
            f"{some_of(names)} where Python passes a list or an array of objects: memory grows "
            "with each run",
            detail="It is a defect of releases before 1.21. Use a newer one, or pass "
            "np.array(texts) without dtype=object.",
        )

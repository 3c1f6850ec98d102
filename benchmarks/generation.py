"""Is a generation measured and estimated right? ``python -m benchmarks.generation``.

Decoders with past and random weights run a prompt and some steps: under memdiag, predicted by
``memdiag estimate``, and in a plain script that reads its own VmHWM. The table goes to
``docs/generation.md``.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime

import memdiag
from benchmarks.exported_models import exported_models
from benchmarks.readme import replace_part, table
from memdiag.records.profile import Profile
from memdiag.units import MIB, format_size

PAGE = Path(__file__).parents[1] / "docs" / "generation.md"
MODELS = ("gpt2_with_past", "llama_with_past")
CALLS = ((128, 32), (128, 128), (512, 32), (512, 128))
PINNED = {"MALLOC_MMAP_THRESHOLD_": "131072"}
PLAIN = r"""
import re, sys
import numpy, onnxruntime
model, prefill, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
session = onnxruntime.InferenceSession(model)
inputs = {each.name: each for each in session.get_inputs()}
outputs = [each.name for each in session.get_outputs()]
past = [name for name in inputs if name.startswith("past_key_values")]
def shape(name):
    return 1, inputs[name].shape[1], 0, inputs[name].shape[3]
def call(ids, start, cache):
    end = start + ids.shape[1]
    feeds = {"input_ids": ids, "attention_mask": numpy.ones((1, end), "i8"), **cache}
    feeds["position_ids"] = numpy.arange(start, end)[None]
    found = dict(zip(outputs, session.run(None, feeds)))
    token = int(found["logits"][0, -1].argmax())
    return token, {name: found[name.replace("past_key_values", "present")] for name in past}
prompt = numpy.arange(prefill)[None]
token, cache = call(prompt, 0, {name: numpy.zeros(shape(name), "f4") for name in past})
for position in range(prefill, prefill + steps):
    token, cache = call(numpy.array([[token]]), position, cache)
peak = re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]
print(int(peak) * 1024, sum(each.nbytes for each in cache.values()))
"""


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows, are_right = [], True
    for name, path in exported_models(MODELS).items():
        for prefill, steps in CALLS:
            cells, is_right = measure(path, prefill, steps)
            are_right &= is_right
            rows.append([name, f"{prefill}", f"{steps}", *cells])
            print(" | ".join(rows[-1]), flush=True)
    header = [
        "model", "prompt", "steps", "KV cache", "prefill", "estimated", "decode", "estimated",
        "whole run", "plain script",
    ]  # fmt: skip
    replace_part(
        "generation", f"onnxruntime {onnxruntime.__version__}.\n\n{table(header, rows)}", PAGE
    )
    return 0 if are_right else 1


def measure(path: Path, prefill: int, steps: int) -> tuple[list[str], bool]:
    """Return the cells of a generation, and whether its cache has the size of its formula."""
    profile = memdiag.profile(path, prefill=prefill, steps=steps, environment=PINNED, xray="none")
    assert profile.generation is not None, profile.outcome.message
    environment = {**os.environ, **PINNED, "ORT_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", PLAIN, str(path), str(prefill), str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    plain_peak, plain_cache = map(int, json.loads(f"[{','.join(done.stdout.split())}]"))
    generation = profile.generation
    formula = generation.cache.bytes_at(generation.tokens)
    cells = [
        format_size(formula),
        *_phase(profile, "prefill"),
        *_phase(profile, "decode"),
        _mebibytes(profile.peak_rss_bytes),
        f"{_mebibytes(plain_peak)} ({_error(profile.peak_rss_bytes, plain_peak)})",
    ]
    return cells, formula == generation.cache_bytes == plain_cache


def _phase(profile: Profile, name: str) -> tuple[str, str]:
    phase = next(each for each in profile.phases if each.name == name)
    estimated = profile.estimated_peak_bytes(phase.name)
    assert estimated is not None
    error = _error(estimated, phase.peak_rss_bytes)
    return _mebibytes(phase.peak_rss_bytes), f"{_mebibytes(estimated)} ({error})"


def _mebibytes(size: int) -> str:
    return f"{size / MIB:,.1f}"


def _error(size: int, measured: int) -> str:
    return f"{100 * (size / measured - 1):+.1f} %"


if __name__ == "__main__":
    sys.exit(main())

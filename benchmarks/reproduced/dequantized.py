"""DequantizeLinear + MatMul, made MatMulNBits at load, against MatMulNBits in the file."""

from collections.abc import Iterable
from math import nan

from benchmarks.readme import table
from benchmarks.reproduced.claims import Claim, Part, Setting, quotient
from benchmarks.reproduced.versions import (
    MB,
    Runtimes,
    causes,
    in_words,
    load,
    on_versions,
    peak,
    resident,
    steady,
    steps,
)
from memdiag.records.comparison import ComparisonColumn

TITLE = "DequantizeLinear + MatMul against MatMulNBits"
SOURCE = (
    "onnxruntime's [pull request 21451](https://github.com/microsoft/onnxruntime/pull/21451) of"
    " July 2024 tells of Phi-3-mini-4k-instruct: as MatMulNBits it takes 2.8 GB and 3 s to load; as"
    " DequantizeLinear + MatMul it took about 4.8 GB and 9 s, and with the change 2.8 GB and 5 s."
    " Measured by hand before there was memdiag, of an int4 model with 640 MB embedded: 1058 MB are"
    " resident in the end in 1.19.2, 1696 in 1.23.2 and 1198 in 1.31.1. Here: `qdq_matmul` and"
    " `matmul_nbits`, the same numbers in both, {megabytes:.0f} MB: sixteen products by"
    " int4 weights."
)

MEGABYTES = 16 * 8192 * 8192 * 0.625 / 1e6
_OLDEST = "1.19.2"
_REPACKED_TWICE = 1.4
"""Half way between the public ratios before the change (1.71) and after it (1)."""

_SAME = 0.02
_EARLIER = {"1.19.2": 1058, "1.23.2": 1696, "1.31.1": 1198}


def measure(setting: Setting) -> tuple[str, Part]:
    """Measure both forms with external weights, and the first one with embedded ones."""
    qdq = on_versions("qdq_matmul", MEGABYTES, setting, external=True)
    nbits = on_versions("matmul_nbits", MEGABYTES, setting, external=True)
    embedded = on_versions("qdq_matmul", MEGABYTES, setting)
    claims = []
    for when, version, gigabytes, seconds in (
        ("before", _OLDEST, 4.8, 9.0),
        ("after", qdq.newest, 2.8, 5.0),
    ):
        claims += [
            _against(f"peak, {when} ({version} here)", qdq, nbits, version, gigabytes),
            _seconds(f"load, {when} ({version} here)", qdq, nbits, version, seconds),
        ]
    claims += steps(embedded, "embedded, resident in the end", _EARLIER, "MB", resident)
    tables = [
        "DequantizeLinear + MatMul as a multiple of MatMulNBits, weights external:",
        _ratios(qdq, nbits),
    ]
    part = Part(claims=claims, remarks=_remarks(qdq, nbits, embedded), tables=tables)
    return SOURCE.format(megabytes=MEGABYTES * setting.scale), part


def _against(what: str, qdq: Runtimes, nbits: Runtimes, version: str, claimed: float) -> Claim:
    one, other = nbits.figure(version, peak), qdq.figure(version, peak)
    return Claim(
        what, f"2.8 → {claimed} GB", claimed / 2.8, in_words(one, other, "MB"), quotient(other, one)
    )


def _seconds(what: str, qdq: Runtimes, nbits: Runtimes, version: str, claimed: float) -> Claim:
    one, other = nbits.figure(version, load), qdq.figure(version, load)
    return Claim(
        what, f"3 → {claimed:g} s", claimed / 3, in_words(one, other, "s"), quotient(other, one)
    )


def _ratios(qdq: Runtimes, nbits: Runtimes) -> str:
    rows = []
    for column in qdq.comparison.columns:
        version = column.label
        cells = [
            f"{quotient(qdq.figure(version, of), nbits.figure(version, of)):.2f}"
            for of in (peak, load)
        ]
        rows.append([version, *cells])
    return table(["onnxruntime", "peak", "load"], rows)


def _remarks(qdq: Runtimes, nbits: Runtimes, embedded: Runtimes) -> list[str]:
    ratios = {
        column.label: quotient(qdq.figure(column.label, peak), nbits.figure(column.label, peak))
        for column in qdq.comparison.columns
        if column.measured is not None
    }
    high = {version: ratio for version, ratio in ratios.items() if ratio > _REPACKED_TWICE}
    low = [ratio for version, ratio in ratios.items() if version not in high]
    sentences = []
    if _OLDEST not in high and low:
        sentences.append(
            f"The state before the change is not to be seen in {_OLDEST}, the oldest version here:"
            f" peaks are {min(low):.2f} to {max(low):.2f} times those of MatMulNBits in"
            f" {'every version' if not high else f'all versions but {_listed(high)}'}."
        )
    if high:
        sentences.append(
            f"{_listed(high)} takes {max(high.values()):.2f} times as much as MatMulNBits, as the"
            f" code before the change did ({4.8 / 2.8:.2f})."
        )
    return sentences + _live(qdq, nbits) + causes(embedded, ("steady",))


def _live(qdq: Runtimes, nbits: Runtimes) -> list[str]:
    """Say where what is left of the difference lies, by the X-rays of the newest version."""
    live = [found.figure(found.newest, _weights) for found in (nbits, qdq)]
    kept = [found.figure(found.newest, _retained) for found in (nbits, qdq)]
    more = qdq.figure(qdq.newest, steady) - nbits.figure(nbits.newest, steady)
    if not abs(quotient(live[1], live[0]) - 1) < _SAME:
        return []
    return [
        f"In {qdq.newest} the copies of weights that are in use take the same in both forms"
        f" ({live[1]:.0f} MB); of the {more:.0f} MB that DequantizeLinear + MatMul has more in the"
        f" end, malloc keeps {kept[1] - kept[0]:.0f} MB that were freed."
    ]


def _weights(column: ComparisonColumn) -> float:
    found = column.profile.attribution if column.profile else None
    return nan if found is None else found.bytes_of("weights") / MB


def _retained(column: ComparisonColumn) -> float:
    profile = column.profile
    return nan if profile is None else (profile.allocator_retained_bytes or 0) / MB


def _listed(versions: Iterable[str]) -> str:
    return " and ".join(versions)

"""Denormal weights in convolutions, and the option that takes them for zeros."""

import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.readme import table
from benchmarks.reproduced.claims import Claim, Part, Setting, quotient
from memdiag.model.model_file import open_model
from memdiag.runner.job import Feed, Job, SessionConfig
from memdiag.runner.session_server import SessionServer
from memdiag.verify.latency import LatencyComparison, compare_latency
from sample_models.recipes import denormal_conv

TITLE = "Denormal weights"
SOURCE = (
    "Public reports on onnxruntime tell of runs that denormal weights made slower: from 6 to 50 ms,"
    " from 7.7 to 75 ms, from 70 to 2400 ms, all on Intel processors. Here: `denormal_conv`,"
    " {megabytes:.0f} MB of convolutions in the NCHWc layout, one thread, a share of the weights"
    " denormal."
)

MEGABYTES = 16
_OPTION = "session.set_denormal_as_zero"
_SHARES = (0.0, 0.1, 0.5, 0.9)
_CLAIMED = 0.5
_PAIRS = 20
_REPORTS = (("6 → 50 ms", 50 / 6), ("7.7 → 75 ms", 75 / 7.7), ("70 → 2400 ms", 2400 / 70))
_NOTHING = 0.1
_WORTH_SAYING = 0.02
_TINY = np.float32(1e-39)
_CONTROL_FLOATS = 1 << 14  # few enough for a core's own cache
_CONTROL_TIMES = 5000


class _Look(NamedTuple):
    """What was seen of one share: the option off and on in turn, and outputs of tiny inputs.

    `kept` and `flushed` are how many outputs are not 0 where inputs are denormal, with the option
    off and on.
    """

    race: LatencyComparison
    kept: int
    flushed: int


def measure(setting: Setting) -> tuple[str, Part]:
    """Compare each share with the option off and on, and see whether the option acts at all."""
    looks = {share: _look(share, setting) for share in _SHARES}
    plain, denormal = looks[0.0].race, looks[_CLAIMED].race
    slower = quotient(denormal.before_s, plain.before_s)
    here = f"{plain.before_s * 1e3:.1f} → {denormal.before_s * 1e3:.1f} ms"
    claims = [
        Claim(
            f"latency by denormal weights (here: {_CLAIMED:.0%} of them)",
            claimed,
            ratio,
            here,
            slower,
        )
        for claimed, ratio in _REPORTS
    ]
    rows = [
        [
            f"{share:.0%}",
            f"{each.race.before_s * 1e3:.1f}",
            f"{each.race.after_s * 1e3:.1f}",
            f"{each.race.ratio.median:.2f} ({each.race.ratio.low:.2f}–{each.race.ratio.high:.2f})",
        ]
        for share, each in looks.items()
    ]
    head = ["denormal", "option off, ms", "option on, ms", "on : off, with 95 % interval"]
    tables = [f"`{_OPTION}`, sessions in turn:", table(head, rows)]
    part = Part(claims=claims, remarks=_remarks(looks, slower), tables=tables)
    return SOURCE.format(megabytes=MEGABYTES * setting.scale), part


def _look(share: float, setting: Setting) -> _Look:
    setting.say(f"denormal_conv: {share:.0%} denormal")
    path = setting.folder / "denormal_conv.onnx"
    denormal_conv.build(MEGABYTES * setting.scale, path, False, share=share)
    with open_model(path) as file:
        shape = [
            axis.dim_value or 1 for axis in file.graph.input_values[0].type.tensor_type.shape.dim
        ]
    random = np.random.default_rng(0).standard_normal(shape, np.float32)
    sets = [
        [_feed(setting.folder / f"{name}.npy", values)]
        for name, values in (("normal", random), ("tiny", random * _TINY))
    ]
    # One thread: more wait for each other when the machine does something else.
    session = SessionConfig(options={"intra_op_num_threads": "1"})
    plain = Job(model=path, runs=None, session=session)
    flush = replace(plain, session=replace(session, options={**session.options, _OPTION: "1"}))
    with SessionServer(plain, sets) as off, SessionServer(flush, sets) as flushing:
        found = compare_latency(off, flushing, 0, pairs=_PAIRS)
        counts = [
            int(np.count_nonzero(np.load(server.save(1, setting.folder / name)["y"][0])))
            for name, server in (("off", off), ("on", flushing))
        ]
    return _Look(found, *counts)


def _feed(path: Path, values: NDArray[np.float32]) -> Feed:
    np.save(path, values)
    return Feed(name="x", files=(path,))


def _remarks(looks: dict[float, _Look], slower: float) -> list[str]:
    plain = looks[0.0]
    acts = plain.kept > 0 and plain.flushed == 0
    sentences = [
        f"The option acts: of outputs computed from denormal inputs {plain.kept:,} are not 0 with"
        " it off, and none with it on."
        if acts
        else f"Whether the option acts could not be shown: {plain.kept:,} outputs of denormal"
        f" inputs are not 0 with it off, {plain.flushed:,} with it on."
    ]
    control = _control()
    if abs(slower - 1) <= _NOTHING:
        sentences.append(
            f"On this processor denormal weights cost nothing that can be measured ({slower:.2f}"
            " times the latency)."
        )
    else:
        sentences.append(f"With denormal weights a run takes {slower:.2f} times as long here.")
    sentences.append(
        f"Apart from onnxruntime: multiplying an array by denormal numbers takes {control:.2f}"
        f" times as long as by normal ones in numpy on this processor"
        + (": it does not mind them." if abs(control - 1) <= _NOTHING else ".")
    )
    differing = [
        f"{share:.0%}"
        for share, each in looks.items()
        if each.race.ratio.low > 1 + _WORTH_SAYING or each.race.ratio.high < 1 - _WORTH_SAYING
    ]
    if differing:
        sentences.append(
            f"The option changes the latency beyond doubt with {', '.join(differing)}."
        )
    else:
        sentences.append("With no share does the option change the latency beyond doubt.")
    return sentences


def _control() -> float:
    """Return how many times as long a product takes whose factor and result are denormal."""
    random = np.random.default_rng(0).standard_normal(_CONTROL_FLOATS, np.float32)
    tiny, result = random * _TINY, np.empty_like(random)
    seconds: dict[str, list[float]] = {"normal": [], "tiny": []}
    for _ in range(_CONTROL_TIMES):
        for name, factor in (("normal", random), ("tiny", tiny)):
            started = time.perf_counter()
            np.multiply(random, factor, out=result)
            seconds[name].append(time.perf_counter() - started)
    # The fastest of many was disturbed least.
    return min(seconds["tiny"]) / min(seconds["normal"])

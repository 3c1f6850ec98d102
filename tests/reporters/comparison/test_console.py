import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from memdiag.records.comparison import Comparison
from memdiag.reporters.comparison import console
from tests.reporters import comparisons, profiles


def shown(comparison: Comparison, **options: object) -> str:
    out = io.StringIO()
    console.show(comparison, Console(file=out, width=80, highlight=False), **options)  # type: ignore[arg-type] # options by name
    return out.getvalue()


@pytest.mark.parametrize("build", comparisons.ALL)
def test_every_line_fits_eighty_columns(build: Callable[[], Comparison]) -> None:
    assert max(map(len, shown(build()).splitlines())) <= 80


def test_the_answer_is_first_and_what_differs_is_told_with_its_cause() -> None:
    text = shown(comparisons.versions())
    lines = " ".join(text.split())
    assert lines.startswith(
        "model.onnx: 3 versions of onnxruntime: steady from 1.03 GiB (1.24.4) to 1.53 GiB (1.31.1)"
    )
    assert "prepack +500 MiB since 1.31.1: lm_head/MatMul now packs model.shared.weight" in lines
    assert "steady +500 MiB (1.50 ×) since 1.31.1" in lines
    assert "latency 1.30 × since 1.31.1" in lines
    assert "1.30.9 is not to be had here: onnxruntime==1.30.9" in lines
    assert "note: outputs that are random" in lines


def test_models_are_shown_where_they_differ_only() -> None:
    assert "parameters" not in shown(comparisons.versions())
    text = shown(comparisons.optimizers())
    row = next(line for line in text.splitlines() if line.startswith("onnxruntime-extended  "))
    assert "onnxruntime-extended" in row
    assert "22,617,680" in text
    assert "700 MiB" in text
    assert "onnxsim did not end in time" in text
    assert "2.4e-06" in text


def test_the_same_beside_itself_says_that_nothing_differs() -> None:
    text = shown(comparisons.alike())
    assert "no difference beyond what scatters from run to run" in text
    assert "equal" in text


def test_quiet_is_the_answer_alone() -> None:
    assert len(shown(comparisons.alike(), quiet=True).splitlines()) == 1
    quiet = shown(comparisons.bisected(), quiet=True)
    assert "steady jumps from 1.24.4 to 1.31.1 (3 of 12 versions were tried)" in quiet


def test_nothing_measured_is_said_with_the_reasons() -> None:
    text = shown(comparisons.nothing())
    assert "nothing could be measured" in text
    assert "a.onnx failed: parse: no such file" in text


def test_names_are_text_and_files_are_named() -> None:
    written = (Path("reports/x/comparison.html"), Path("reports/x/comparison.json"))
    text = shown(comparisons.hostile(), written=written)
    assert "[red]x[/red]" in text
    assert "comparison.html · comparison.json" in text
    assert profiles.HOSTILE[:20] in text

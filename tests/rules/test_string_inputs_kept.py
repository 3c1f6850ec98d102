from pathlib import Path

import onnx
import pytest
from onnx import parser

import memdiag
from benchmarks.environments import ProvisionError
from benchmarks.runtimes import runtime
from memdiag.comparison import runtimes
from memdiag.records.finding import Finding
from tests.rules.examining import findings


def identity(kind: str, more: str = "") -> onnx.ModelProto:
    """Return a model of one Identity; `more` are further inputs."""
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        g ({kind} x{more}) => ({kind} y) {{ y = Identity (x) }}"""
    )


def found(model: onnx.ModelProto, folder: Path, release: str) -> list[Finding]:
    return findings("string-inputs-kept", model, folder, runtime=release)


@pytest.mark.parametrize("release", ["1.18.0", "1.20.1"])
def test_inputs_of_strings_are_reported_for_releases_that_keep_them(
    release: str, tmp_path: Path
) -> None:
    model = identity("string[n]", ", float[n] weight, string[n] z")
    (finding,) = found(model, tmp_path, release)
    assert finding.rule == "MD801"
    assert finding.message.startswith(f"onnxruntime {release} keeps the strings of the inputs x, z")
    assert (finding.bytes, finding.peak_bytes, finding.remedies) == (0, 0, ())


def test_newer_releases_are_not_reported(tmp_path: Path) -> None:
    assert found(identity("string[n]"), tmp_path, "1.21.0") == []


@pytest.mark.parametrize("kind", ["float[n]", "seq(string[n])"])
def test_other_inputs_are_not_reported(kind: str, tmp_path: Path) -> None:
    assert found(identity(kind), tmp_path, "1.20.1") == []


def test_it_is_advice_that_does_not_set_the_exit_code(tmp_path: Path) -> None:
    from memdiag.api.check import Selection, check_models, wastes_memory

    path = tmp_path / "m.onnx"
    onnx.save(identity("string[n]"), path)
    result = check_models([path], selection=Selection(), for_onnxruntime="1.20.1")
    assert [finding.rule for finding in result.findings] == ["MD801"]
    assert not wastes_memory(result)


@pytest.mark.slow
@pytest.mark.usefixtures("equal_latency")
def test_the_leak_ends_between_real_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        pythons = {version: runtime(version) for version in ("1.20.1", "1.22.1")}
    except ProvisionError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(runtimes, "versions", lambda: tuple(pythons))
    monkeypatch.setattr(runtimes, "runtime", pythons.__getitem__)
    path = tmp_path / "m.onnx"
    onnx.save(identity("string[n]"), path)
    compared = memdiag.compare(
        path, bisect="growth", dims={"n": 100}, repeats=1, runs=300, xray=False
    )
    assert compared.bisection is not None
    assert (compared.bisection.before, compared.bisection.after) == ("1.20.1", "1.22.1")
    kept, freed = (column.growth for column in compared.columns)
    assert kept is not None
    assert freed is not None
    assert (kept.verdict, kept.owner, freed.verdict) == ("leak", "python", "flat")
    # A string of 8 characters takes 64 bytes.
    assert kept.slope is not None
    assert kept.slope.bytes_per_unit == pytest.approx(100 * 64, rel=0.1)

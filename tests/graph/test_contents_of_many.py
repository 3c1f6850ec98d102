"""What comparing very many weights takes: a model may have as many small ones as it likes."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

GROWTH = """
import sys
from pathlib import Path
from memdiag.graph.contents import same_content
from memdiag.graph.least_values import LeastValues
from memdiag.graph.reader import open_model
def kilobytes(key):
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(key))
with open_model(Path(sys.argv[1])) as model:
    same_content(model)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    groups = same_content(model, LeastValues())
print(sum(map(len, groups)), kilobytes("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no peak can be forgotten")
@pytest.mark.parametrize("equal", [True, False], ids=["equal", "distinct"])
def test_memory_grows_by_a_few_numbers_for_each_small_weight(equal: bool, tmp_path: Path) -> None:
    counts, peaks = (20_000, 120_000), []
    for count in counts:
        tensors = [
            TensorProto(
                name=f"w{number}",
                data_type=TensorProto.INT32,
                dims=[1],
                raw_data=(0 if equal else number).to_bytes(4, "little"),
            )
            for number in range(count)
        ]
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(helper.make_graph([], "g", [], [], tensors)), path)
        done = subprocess.run(
            [sys.executable, "-c", GROWTH, str(path)], capture_output=True, text=True, check=True
        )
        grouped, peak = map(int, done.stdout.split())
        assert grouped == (count if equal else 0)
        peaks.append(1024 * peak)
    assert peaks[1] - peaks[0] < 150 * (counts[1] - counts[0])

import _ctypes
from pathlib import Path

import numpy as np
import pytest

from memdiag.attribution import intervals
from memdiag.attribution.address_space import AddressSpace, read_address_space
from memdiag.attribution.modules import LoadedModule, module_kind, read_modules
from memdiag.attribution.process_memory import ProcessMemory
from tests.attribution.conftest import Start, contains


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (
            "/env/lib/python3.12/site-packages/onnxruntime/capi/onnxruntime_pybind11_state.so",
            "runtime",
        ),
        ("/usr/lib/libonnxruntime.so.1.22.0", "runtime"),
        ("/opt/onnxruntime/lib/libother.so", "runtime"),
        ("/var/tmp/onnxruntime-java123/libonnxruntime.so", "runtime"),
        ("/var/tmp/onnxruntime-java123/libonnxruntime4j_jni.so", "runtime"),
        ("/srv/node_modules/onnxruntime-node/bin/linux/x64/onnxruntime_binding.node", "runtime"),
        ("/site-packages/onnxruntime/capi/libonnxruntime_providers_openvino.so", "provider"),
        ("/site-packages/onnxruntime/capi/libonnxruntime_providers_shared.so", "runtime"),
        ("/site-packages/onnxruntime/capi/libopenvino_intel_cpu_plugin.so", "provider"),
        ("/site-packages/onnxruntime/capi/libopenvino.so.2541", "provider"),
        ("/site-packages/onnxruntime/capi/libtbb.so.12", "provider"),
        ("/site-packages/nvidia/cudnn/lib/libcudnn_ops.so.9", "provider"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "provider"),
        ("/usr/lib/libcudare.so", "other"),
        ("/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", "other"),
        ("/usr/bin/node", "other"),
        ("/usr/bin/python3.12", "python"),
        ("/usr/bin/python", "python"),
        ("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", "python"),
        ("/env/lib/python3.12/site-packages/numpy.libs/libopenblas.so", "python"),
        ("/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so", "python"),
        ("/srv/app/_fast.abi3.so", "python"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", "other"),
        ("/usr/lib/libpythonic.so.1.txt", "other"),
        ("/srv/pythonserver/bin/serve", "other"),
    ],
)
def test_modules_are_sorted_by_name_and_folder(path: str, kind: str) -> None:
    assert module_kind(path) == kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/site-packages/tbb/lib/libtbb.so.12", "python"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "other"),
    ],
)
def test_without_onnxruntime_no_library_is_a_providers(path: str, kind: str) -> None:
    assert module_kind(path, with_runtime=False) == kind


def modules_of(pid: int) -> tuple[AddressSpace, tuple[LoadedModule, ...]]:
    space = read_address_space(pid)
    with ProcessMemory(pid) as memory:
        return space, read_modules(space, memory)


def test_every_mapped_page_of_a_library_and_its_zeros_are_the_modules(start: Start) -> None:
    child = start("import onnxruntime")
    space, modules = modules_of(child.pid)
    assert {"runtime", "python", "other"} == {module.kind for module in modules}
    all_ranges = intervals.union(*(module.ranges for module in modules))
    assert intervals.total_bytes(all_ranges) == sum(
        intervals.total_bytes(m.ranges) for m in modules
    )
    for region in space.regions:
        if region.file_backed and "x" in region.permissions:
            here = np.array([[region.start, region.end]])
            assert intervals.total_bytes(intervals.intersect(all_ranges, here)) == region.size, (
                region
            )
    # Variables that start as zeros: beyond what the file is mapped to.
    anonymous = intervals.normalized_ranges([(r.start, r.end) for r in space.regions if r.nameless])
    assert intervals.total_bytes(intervals.intersect(all_ranges, anonymous)) > 0


def test_the_memory_behind_a_library_is_not_all_taken_for_it(start: Start) -> None:
    child = start("""
import numpy
kept = [numpy.ones(1 << 20) for _ in range(3)]
out["at"] = [array.ctypes.data for array in kept]
""")
    _, modules = modules_of(child.pid)
    for module in modules:
        assert not any(contains(module.ranges, at) for at in child.out["at"])


def test_a_library_that_is_only_read_is_no_module(start: Start, tmp_path: Path) -> None:
    copy = tmp_path / "copied.so"
    copy.write_bytes(Path(_ctypes.__file__).read_bytes())
    child = start(f"""
with open({str(copy)!r}, "rb") as file:
    area = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
area[0]
""")
    space, modules = modules_of(child.pid)
    assert any(region.path == str(copy) for region in space.regions)
    assert all(module.path != str(copy) for module in modules)

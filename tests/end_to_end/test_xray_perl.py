"""The X-ray of a program that is not Python: perl, with weights that it read into its memory."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from memdiag.records.attribution import Attribution
from memdiag.records.codec import decode
from tests.api.small_models import model_of
from tests.end_to_end.conftest import RunMemdiag

PERL = shutil.which("perl")

pytestmark = pytest.mark.skipif(PERL is None, reason="no perl is installed")

# Reads each file named, whole, and waits.
HOLDER = """
for (@ARGV) {
    open my $file, "<:raw", $_ or die "$_: $!";
    my $data;
    my $got = sysread $file, $data, -s $file;
    die "$_: short" unless $got == -s $file;
    push @kept, \\$data;
}
$| = 1;
print "ready\\n";
<STDIN>;
"""


@contextmanager
def holding(*files: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A perl that holds the content of `files` in its memory."""
    with subprocess.Popen(
        [str(PERL), "-e", HOLDER, *map(str, files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process


def model(path: Path, seed: int, *, external: bool) -> Path:
    """A product with a weight of 1 MiB and a sum with one of 256 KiB, in the file or next to it."""
    random = np.random.default_rng(seed)
    made = model_of(
        "main (float[128, 512] x) => (float[128, 512] y) { h = MatMul(x, w) y = Add(h, b) }",
        w=random.standard_normal((512, 512), np.float32),
        b=random.standard_normal((128, 512), np.float32),
    )
    onnx.save(made, path, save_as_external_data=external, location=f"{path.name}.data")
    return path


def xrayed(memdiag: RunMemdiag, pid: int, path: Path, *words: str) -> Attribution:
    finished = memdiag("xray", pid, path, "--format", "json", *words)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return decode(finished.stdout.encode(), Attribution)


@pytest.mark.parametrize("words", [(), ("--pause",)])
def test_each_buffer_with_the_weights_has_a_copy_of_each(
    memdiag: RunMemdiag, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = model(tmp_path / "a.onnx", seed=1, external=True)
    data = tmp_path / "a.onnx.data"
    with holding(data, data) as process:
        found = xrayed(memdiag, process.pid, path, *words)
        assert process.poll() is None
    assert sorted((copy.weights, copy.bytes) for copy in found.copies) == [
        (("b",), 128 * 512 * 4),
        (("b",), 128 * 512 * 4),
        (("w",), 512 * 512 * 4),
        (("w",), 512 * 512 * 4),
    ]
    assert {(copy.layout, copy.backing.kind) for copy in found.copies} == {
        ("original", "anonymous")
    }
    assert found.bytes_of("weights") == 2 * (512 + 128) * 512 * 4
    assert sum(owner.bytes for owner in found.owners) == found.resident_bytes
    # Neither Python nor a runtime is in this process.
    assert {"python", "runtime_libraries", "arena"}.isdisjoint(one.kind for one in found.owners)
    assert found.bytes_of("thread_stacks") > 0
    assert found.bytes_of("other_libraries") > 0
    assert not found.partial


def test_a_file_that_was_read_whole_is_one_copy_of_it(memdiag: RunMemdiag, tmp_path: Path) -> None:
    path = model(tmp_path / "a.onnx", seed=1, external=False)
    with holding(path) as process:
        (copy,) = xrayed(memdiag, process.pid, path).copies
    assert copy.weights == ("(the model's file)",)
    assert copy.bytes == copy.verified_bytes == path.stat().st_size


def test_another_models_weights_are_not_there(memdiag: RunMemdiag, tmp_path: Path) -> None:
    other = model(tmp_path / "b.onnx", seed=2, external=True)
    model(tmp_path / "a.onnx", seed=1, external=True)
    with holding(tmp_path / "a.onnx.data") as process:
        found = xrayed(memdiag, process.pid, other)
    assert found.copies == ()
    assert found.bytes_of("weights") == 0

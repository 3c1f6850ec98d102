"""A fix goes with the profile of its own model only."""

import msgspec
import pytest

from memdiag.api.load import join_fix
from memdiag.errors import UsageError
from memdiag.records.profile import Profile
from tests.reports import fix_records, profiles


def profile(path: str, size: int) -> Profile:
    made = profiles.tied_if()
    model = msgspec.structs.replace(made.model, path=path, file_bytes=size - 7, external_bytes=7)
    return msgspec.structs.replace(made, model=model)


FIX = fix_records.verified()
SIZE = 500 << 20


def test_the_model_may_lie_elsewhere_and_is_told_by_name_and_size() -> None:
    here = profile("elsewhere/m.onnx", SIZE)
    assert join_fix(here, FIX) == msgspec.structs.replace(here, fix=FIX)
    unmeasured = fix_records.nothing_found()
    assert join_fix(profile("m.onnx", 1000), unmeasured).fix == unmeasured


def test_another_model_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"the fix is of m\.onnx, but the profile is of other\.onnx"
    ):
        join_fix(profile("dir/other.onnx", SIZE), FIX)
    with pytest.raises(UsageError, match=r"m\.onnx: its files had 524,288,000 bytes at the"):
        join_fix(profile("dir/m.onnx", SIZE + 1), FIX)

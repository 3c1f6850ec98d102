import msgspec
import pytest

from memdiag.errors import ReportError
from memdiag.reporters import json_file
from tests.reporters import profiles


def test_a_name_that_is_no_text_is_an_error_that_names_it() -> None:
    profile = profiles.failed()
    model = msgspec.structs.replace(profile.model, path="mod\udc80.onnx")
    with pytest.raises(ReportError, match=r"mod\\udc80\.onnx: a name .* is not valid Unicode"):
        json_file.render(msgspec.structs.replace(profile, model=model))


def test_each_field_of_the_top_level_has_a_line_of_its_own() -> None:
    lines = json_file.render(profiles.tied_if()).decode().splitlines()
    assert lines[1] == '"schema": "memdiag.profile/1",'
    assert any(line.startswith('"outcome": ') for line in lines)

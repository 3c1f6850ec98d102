import msgspec

from memdiag.records.codec import decode
from memdiag.records.profile import Profile
from memdiag.reports import json_file
from tests.reports import profiles


def test_a_name_that_is_no_text_is_spelt_out_and_decodes_again() -> None:
    profile = profiles.failed()
    model = msgspec.structs.replace(profile.model, path="mod\udc80.onnx")
    told = msgspec.structs.replace(profile, model=model, command=("memdiag", "\udcff"))
    saved = decode(json_file.render(told), Profile)
    assert saved.model.path == r"mod\udc80.onnx"
    assert saved.command == ("memdiag", r"\udcff")
    assert msgspec.structs.replace(saved, model=model, command=told.command) == told


def test_each_field_of_the_top_level_has_a_line_of_its_own() -> None:
    lines = json_file.render(profiles.tied_if()).decode().splitlines()
    assert lines[1] == '"schema": "memdiag.profile/1",'
    assert any(line.startswith('"outcome": ') for line in lines)

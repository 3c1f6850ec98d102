"""The file with the address of a recording."""

import json
import socket
from pathlib import Path

import pytest

from memdiag.errors import UsageError
from memdiag.programs.xrays.xray_requests import CONTROL_FILE, control_file, request_xray


def test_a_second_recording_in_the_folder_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "address"))
        listener.listen()
        with control_file(tmp_path, f"{tmp_path / 'address'}#secret"):
            with (
                pytest.raises(UsageError, match="another recording is under way there"),
                control_file(tmp_path, "other#secret"),
            ):
                pass
            assert (tmp_path / CONTROL_FILE).exists()


def test_the_file_of_a_killed_recording_is_replaced(tmp_path: Path) -> None:
    (tmp_path / CONTROL_FILE).write_text('{"address": "/none#secret"}')
    with control_file(tmp_path, "mine#secret"):
        assert json.loads((tmp_path / CONTROL_FILE).read_text()) == {"address": "mine#secret"}


def test_a_folder_is_removed_if_it_was_created_and_stays_empty(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "new"):
        with control_file(folder, "mine#secret"):
            pass
    assert list(tmp_path.iterdir()) == []
    with control_file(tmp_path / "new", "mine#secret"):
        (tmp_path / "new" / "stdout.txt").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["stdout.txt"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"address": 5}',
        '{"address": "12 High Street"}',
        '{"address": "a#b", "name": "mine"}',
        "[" * 100_000,
    ],
)
def test_a_file_that_memdiag_did_not_write_is_no_recording_and_stays(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / CONTROL_FILE
    path.write_text(content)
    with pytest.raises(UsageError, match="no recording is under way"):
        request_xray(tmp_path)
    with (
        pytest.raises(UsageError, match=r"recording.json: this file is not of a recording\. "),
        control_file(tmp_path, "mine#secret"),
    ):
        pass
    assert path.read_text() == content


def test_a_link_that_leads_nowhere_stays(tmp_path: Path) -> None:
    path = tmp_path / CONTROL_FILE
    path.symlink_to("nowhere")
    with (
        pytest.raises(UsageError, match="this file is not of a recording"),
        control_file(tmp_path, "mine#secret"),
    ):
        pass
    assert path.is_symlink()


def test_a_model_in_place_of_a_recording_is_referred_to_the_profile(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.touch()
    with pytest.raises(UsageError, match=r"this is a file\..*with memdiag profile"):
        request_xray(model)

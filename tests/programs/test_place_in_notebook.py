"""The place of a creation in a cell of a notebook."""

import sys
import tempfile
from types import SimpleNamespace

import pytest

from memdiag.programs import assemble
from memdiag.programs.hook import creation

FOLDER = f"{tempfile.gettempdir()}/ipykernel_123"
FILE = f"{FOLDER}/2718281828.py"


def test_a_cell_has_its_number_if_ipython_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert creation._file_or_cell("/srv/app.py") == "/srv/app.py"
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert creation._file_or_cell(FILE) == FILE
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={FILE: 2}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert creation._file_or_cell(FILE) == "cell [2]"
    assert creation._file_or_cell(f"{FOLDER}/1.py") == f"{FOLDER}/1.py"


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("cell [2]", "cell [2], line 3"),
        (FILE, "notebook, line 3"),
        ("/srv/app.py", "/srv/app.py:3"),
    ],
)
def test_the_place_of_a_cell_has_no_temporary_file(file: str, place: str) -> None:
    assert assemble._source_location(file, 3) == place

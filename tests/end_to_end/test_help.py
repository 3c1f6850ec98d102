import re
from pkgutil import iter_modules

from memdiag.cli import commands
from memdiag.records.profile import Profile
from memdiag.reports import report_for
from tests.end_to_end.conftest import RunMemdiag


def test_help_names_every_command(memdiag: RunMemdiag) -> None:
    finished = memdiag("--help")
    assert finished.returncode == 0
    for module in iter_modules(commands.__path__):
        assert re.search(rf"\b{module.name}\b", finished.stdout)


def test_the_help_of_report_names_every_format(memdiag: RunMemdiag) -> None:
    text = memdiag("report", "--help").stdout
    assert [name for name in report_for(Profile).formats() if name not in text] == []


def test_version_is_the_packages(memdiag: RunMemdiag) -> None:
    import memdiag as package

    assert memdiag("--version").stdout == f"memdiag {package.__version__}\n"

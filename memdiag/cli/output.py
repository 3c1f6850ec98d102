"""Output of commands: reports in a folder, a summary or a record on standard output."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import memdiag
from memdiag.api.load import load_profile
from memdiag.detail import Detail
from memdiag.errors import RecordError, ReportError
from memdiag.paths import MODEL_SUFFIXES
from memdiag.records.base import Record
from memdiag.records.codec import encode, escaped_record
from memdiag.records.files import save_bytes
from memdiag.records.finding import Check
from memdiag.records.profile import Profile
from memdiag.records.schemas import ReportedRecord
from memdiag.regular_files import open_without_waiting
from memdiag.reports import report_of
from memdiag.reports.report import Report
from memdiag.reports.text import plain

_JOB_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""Variable in which GitHub Actions names the file for the summary of a step."""


class ReportDestination:
    """The folder of a command's reports, checked before the measurement starts.

    Args:
        folder: the folder; None to write no reports.

    Raises:
        ReportError: the folder cannot be created or written to.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._early_paths: tuple[Path, ...] = ()
        if folder is None:
            return
        existing = folder.absolute()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise ReportError(
                f"{folder}: reports cannot be written there. Choose another folder with --out."
            )

    def write(
        self,
        record: ReportedRecord,
        formats: Sequence[str] | None = None,
        *,
        when_saved: Callable[[], None] = lambda: None,
    ) -> tuple[Path, ...]:
        """Write `record` in `formats`, and return the paths of the files; none without a folder.

        Without `formats`, it writes the default formats of records of this kind. The record itself
        is written first, and then `when_saved` is called, because rendering takes seconds and may
        be interrupted. The record is written again with the reports, so that all files show the
        same record even if another process writes there.

        Raises:
            UsageError: records of this kind have no such format.
            ReportError: a file could not be written; the message names the file of the record.
            KeyboardInterrupt: Ctrl-C; the message names the file of the record.
        """
        if self._folder is None:
            return ()
        report = report_of(record)
        formats = report.default_formats() if formats is None else formats
        record_paths = self._save(record) if "json" in formats else ()
        record_place = _record_place(report, record_paths[0]) if record_paths else ""
        try:
            when_saved()
            ordered = sorted(formats, key=lambda format: format == "json")
            return report.write(record, self._folder, ordered)
        except ReportError as error:
            raise ReportError(f"{error} {record_place}".strip()) from error
        except KeyboardInterrupt:
            raise KeyboardInterrupt(record_place) from None
        except Exception as error:
            if record_place:
                error.add_note(record_place)
            raise

    def save_early(self, record: ReportedRecord) -> None:
        """Write only `record`, during the measurement, which an error must not end."""
        if self._folder is not None:
            with suppress(ReportError):
                self._early_paths = report_of(record).write(record, self._folder, ("json",))

    def remove_early(self) -> None:
        """Remove the files that `save_early` wrote, and their folder if it is empty."""
        for path in self._early_paths:
            with suppress(OSError):
                path.unlink()
                path.parent.rmdir()

    @contextmanager
    def written_reports(
        self, record: ReportedRecord, *, when_saved: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Path, ...]]:
        """Write `record` as `write` does, and enter the block, which prints the answer.

        If the reports cannot be written, the block gets no paths, and the error is raised after it.

        Raises:
            ReportError, KeyboardInterrupt: as in `write`.
        """
        try:
            paths = self.write(record, when_saved=when_saved)
        except Exception:
            yield ()
            raise
        yield paths

    def _save(self, record: ReportedRecord) -> tuple[Path, ...]:
        assert self._folder is not None
        report = report_of(record)
        try:
            return report.write(record, self._folder, ("json",))
        except ReportError as error:
            other_folder = Path(tempfile.mkdtemp(prefix="memdiag-"))
            try:
                (record_path,) = report.write(record, other_folder, ("json",))
            except ReportError:
                other_folder.rmdir()
                raise error from None
            raise ReportError(f"{error} {_record_place(report, record_path)}") from error
        except KeyboardInterrupt:  # writing takes less time than the measurement took
            (record_path,) = report.write(record, self._folder, ("json",))
            raise KeyboardInterrupt(_record_place(report, record_path)) from None


class ProfileDestinations:
    """Where a profile is written. A completed earlier profile stays if this one does not complete.

    Args:
        folder: the folder of the reports.

    Attributes:
        early_destination: where the profile is saved during the run, because the kernel may end
            this process.

    Raises:
        ReportError: the folder cannot be created or written to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._usual_destination = ReportDestination(folder)
        self._has_earlier_profile = _has_completed_profile(folder)
        self.early_destination = (
            self._sibling_destination("killed")
            if self._has_earlier_profile
            else self._usual_destination
        )

    def destination_of(self, profile: Profile) -> ReportDestination:
        """Return where to write `profile` at the end of the run."""
        status = profile.outcome.status
        if self._has_earlier_profile and status != "killed":
            self.early_destination.remove_early()
        stays = self._has_earlier_profile and not profile.outcome.completed
        return self._sibling_destination(status) if stays else self._usual_destination

    def _sibling_destination(self, status: str) -> ReportDestination:
        return ReportDestination(self._folder.with_name(f"{self._folder.name}.{status}"))


def _has_completed_profile(folder: Path) -> bool:
    try:
        return load_profile(folder / "profile.json").outcome.completed
    except RecordError:
        return False


def _record_place(report: Report[Any], path: Path) -> str:
    return f"The {report.name} itself is at {path}."


def print_record_summary(
    record: ReportedRecord,
    report_paths: Sequence[Path] = (),
    *,
    detail: Detail = Detail.USUAL,
    to_stderr: bool = False,
) -> None:
    """Print the summary of `record`, and the paths of its reports."""
    from rich.console import Console

    console = Console(stderr=to_stderr, highlight=False)
    report_of(record).print_summary(record, console, report_paths=report_paths, detail=detail)


def print_wait(message: str) -> None:
    """Print on standard error what memdiag waits for."""
    with suppress(OSError):  # nobody reads it: the recording goes on
        print(f"memdiag: {plain(message)}", file=sys.stderr, flush=True)


def print_record(
    record: ReportedRecord,
    report_paths: Sequence[Path],
    *,
    format: str,
    detail: Detail = Detail.USUAL,
    machine_formats: Mapping[str, Callable[[Any], str]] = MappingProxyType({}),
) -> None:
    """Print `record` on standard output: its summary as ``console``, or in another format.

    `machine_formats` are formats that only records of this kind have, as functions of the record.
    """
    if format == "console":
        print_record_summary(record, report_paths, detail=detail)
    elif format in machine_formats:
        sys.stdout.buffer.write(machine_formats[format](escaped_record(record)).encode())
    else:
        sys.stdout.buffer.write(report_of(record).render(record, format))


def append_job_summary(text: str) -> None:
    """Append `text`, which is Markdown, to the summary of a GitHub step, if there is one.

    Raises:
        ReportError: the file of the summary cannot be written.
    """
    name = os.environ.get(_JOB_SUMMARY_VARIABLE)
    if not name:
        return
    try:
        with open(name, "a", encoding="utf-8", opener=open_without_waiting) as file:
            file.write(text)
    except OSError as error:
        raise ReportError(
            f"{name}: cannot be appended to ({error.strerror}). Check {_JOB_SUMMARY_VARIABLE}."
        ) from error


def save_record(record: Record, path: Path) -> None:
    """Write `record` to `path` as JSON; an error leaves the file unchanged.

    Raises:
        ReportError: the file cannot be written, or is named like a model.
    """
    if path.suffix.lower() in MODEL_SUFFIXES:
        raise ReportError(f"{path}: a record does not replace a model. Choose a .json file.")
    save_bytes(encode(record), path)


def print_check(check: Check, format: str, *, detail: Detail = Detail.USUAL) -> None:
    """Print `check` on standard output: for people, or in one of the formats for machines."""
    if format == "json":
        sys.stdout.buffer.write(encode(check))
    elif format == "sarif":
        from memdiag.reports import sarif

        sys.stdout.buffer.write(sarif.sarif_log(check, version=memdiag.__version__))
    elif format == "markdown":
        from memdiag.reports.check import check_markdown

        sys.stdout.buffer.write(check_markdown(check).encode())
    else:
        from rich.console import Console

        from memdiag.reports.check import print_check_report as show_check

        show_check(check, Console(highlight=False), detail=detail)


def print_markdown(text: str) -> None:
    """Print Markdown, formatted on a terminal and unchanged elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(text), width=min(console.width, 90))
    else:
        sys.stdout.buffer.write(text.encode())

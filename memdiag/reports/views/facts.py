"""What was run, how and where: labelled facts for the lower half of a report."""

from dataclasses import dataclass

from memdiag.records.profile import Profile
from memdiag.reports.views.text import plain
from memdiag.units import format_duration, format_size

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """One input in text."""

    name: str
    dtype: str
    shape: str
    source: str
    note: str

    @property
    def sentence(self) -> str:
        """The input in one line: ``ids int64 [1, 16], generated: within the table``."""
        parts = " ".join(part for part in (self.name, self.dtype, self.shape) if part)
        return f"{parts}, {self.source}" + (f": {self.note}" if self.note else "")


def inputs(profile: Profile) -> tuple[InputRow, ...]:
    """Return the inputs that were chosen or given."""
    return tuple(
        InputRow(
            name=plain(entry.name),
            dtype=plain(entry.dtype),
            shape="" if entry.shape is None else str(list(entry.shape)),
            source=entry.source,
            note=plain(entry.note),
        )
        for entry in profile.inputs
    )


def model(profile: Profile) -> Facts:
    """Return the facts of the model file; those that could not be read are left out."""
    model = profile.model
    opsets = ", ".join(
        f"{plain(domain) or 'ai.onnx'} {version}" for domain, version in model.opsets.items()
    )
    return _known(
        ("file", plain(model.path)),
        ("file size", format_size(model.file_bytes)),
        ("external data", format_size(model.external_bytes) if model.external_bytes else None),
        ("weights", _weights(profile)),
        ("nodes", None if model.node_count is None else f"{model.node_count:,}"),
        ("IR version", None if model.ir_version is None else str(model.ir_version)),
        ("opsets", opsets or None),
    )


def session(profile: Profile) -> Facts:
    """Return how the session was created: what was set, and what was left as it is."""
    session = profile.session
    return _known(
        ("providers", ", ".join(plain(name) for name in session.providers) or "default"),
        ("loaded from", session.load_from),
        ("runs asked for", "none" if session.runs is None else str(session.runs)),
        ("disabled optimizers", ", ".join(map(plain, session.disabled_optimizers)) or None),
        *((plain(key), plain(value)) for key, value in session.options.items()),
        *((f"${plain(key)}", plain(value)) for key, value in session.environment.items()),
    )


def environment(profile: Profile) -> Facts:
    """Return versions and machine."""
    place = profile.environment
    return _known(
        ("memdiag", plain(place.memdiag)),
        ("onnxruntime", None if place.onnxruntime is None else plain(place.onnxruntime)),
        ("Python", None if place.python is None else plain(place.python)),
        ("platform", plain(place.platform)),
        ("processor", f"{plain(place.cpu)}, {place.cpu_count} logical"),
        ("memory", format_size(place.memory_bytes)),
    )


def sampling(profile: Profile) -> Facts:
    """Return how well the child was watched."""
    watched = profile.sampling
    lag = watched.boundary_lag_s
    return _known(
        ("samples", f"{watched.count:,} from {plain(watched.method)}"),
        ("period", f"{format_duration(watched.period_s)} (median)"),
        ("largest gap", format_duration(watched.largest_gap_s)),
        ("lag at phase boundaries", None if lag is None else f"at most {format_duration(lag)}"),
    )


def notes(profile: Profile) -> tuple[str, ...]:
    """Return what the measurement has to add, as plain text."""
    return tuple(plain(note) for note in profile.notes)


def _weights(profile: Profile) -> str | None:
    size, count = profile.model.weight_bytes, profile.model.weight_count
    if size is None:
        return None
    return format_size(size) if count is None else f"{format_size(size)} in {count:,}"


def _known(*facts: tuple[str, str | None]) -> Facts:
    return tuple((label, value) for label, value in facts if value is not None)

"""The answer of a growth record: the verdict, facts on the runs, and advice."""

from dataclasses import dataclass
from pathlib import Path

from memdiag.records.growth import Growth
from memdiag.reports.text import capitalized, plain
from memdiag.units import counted, format_duration, format_size

_SHOWN_RELOADS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_VERDICT_STYLES = {"flat": "bold green", "plateau": "bold green"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthHeadline:
    """The answer.

    Attributes:
        subject: the name of the model's file, the command, or the process.
        first: the verdict with its figures.
        facts: the number of runs, their inputs and the release of onnxruntime.
        advice: advice in a sentence; empty if there is nothing to do.
        style: the colour of the verdict on a terminal.
        ended: why the observation ended early; empty if it did not.
    """

    subject: str
    first: str
    facts: str
    advice: str
    style: str
    ended: str

    @property
    def line(self) -> str:
        """The subject with the verdict."""
        return f"{self.subject}: {self.first}"


def growth_headline(growth: Growth) -> GrowthHeadline:
    """Return the answer of `growth`."""
    subject = plain(growth.subject)
    name = (Path(subject).name or "model") if growth.kind == "model" else subject
    return GrowthHeadline(
        subject=name,
        first=_plain_sentence(growth.sentence),
        facts=" · ".join(_growth_facts(growth)),
        advice=capitalized(_plain_sentence(growth.advice)),
        style="bold red"
        if growth.is_leak_or_kept
        else _VERDICT_STYLES.get(growth.verdict, "bold yellow"),
        ended=_plain_sentence(growth.message),
    )


def reload_line(growth: Growth) -> str:
    """Return the resident set after some of the reloads; empty if there were none."""
    size_by_run = {sample.run: sample.resident_bytes for sample in growth.samples}
    if growth.unit != "reload" or not size_by_run:
        return ""
    last_run = max(size_by_run)
    listed_runs = [run for run in size_by_run if run in (*_SHOWN_RELOADS, last_run)]
    texts = ", ".join(f"{run:,}: {format_size(size_by_run[run])}" for run in listed_runs)
    return f"Resident set after reload {texts}."


def _plain_sentence(text: str) -> str:
    text = plain(text).rstrip(".")
    return f"{text}." if text else ""


def _growth_facts(growth: Growth) -> list[str]:
    last_moment = growth.moments[-1] if growth.moments else None
    if growth.unit == "second":
        facts = [f"observed for {format_duration(last_moment.time_s if last_moment else 0.0)}"]
    else:
        facts = [_run_count_text(growth)]
    if variation := _variation_text(growth):
        facts.append(variation)
    if growth.onnxruntime:
        facts.append(f"onnxruntime {plain(growth.onnxruntime)}")
    return facts


def _run_count_text(growth: Growth) -> str:
    """Return the number of runs, and the last run at which memory was read if that was earlier."""
    text = counted(growth.runs, growth.unit)
    if not growth.is_run_count_exact:
        return f"at least {text}"
    last_run = growth.moments[-1].run if growth.moments else growth.runs
    if growth.kind != "program" or last_run >= growth.runs:
        return text
    return f"{text}, last reading after {last_run:,}"


def _variation_text(growth: Growth) -> str:
    sizes = ", ".join(
        f"{plain(name)} {low} to {high}" for name, (low, high) in growth.dimensions.items()
    )
    shapes = f"sizes ({sizes})" if sizes else "sizes"
    name_by_kind = {"content": "contents", "shape": shapes}
    varied_names = [name_by_kind[kind] for kind in growth.varied if kind != "none"]
    if varied_names:
        return f"other {' and '.join(varied_names)} in each {growth.unit}"
    return f"the same inputs in each {growth.unit}" if growth.varied else ""

"""What a fix or a tuning won, by what, and what that depends on, in sentences for anybody."""

from collections.abc import Sequence
from dataclasses import dataclass

from memdiag.records.fix import Fix, LatencyAt, Point
from memdiag.reports.views import fix as view
from memdiag.reports.views import tuning
from memdiag.reports.views.sizes import at_sizes
from memdiag.reports.views.text import model_file, plain, time_limit
from memdiag.units import format_duration, format_size

_MOST_NAMES = 6
_REWRITE = "rewrite"  # what the records call the fixed model among options


@dataclass(frozen=True, slots=True, kw_only=True)
class FixGlance:
    """The `answer` in a sentence, `changes` of peak and steady memory, and labelled `sentences`.

    `changes` are empty where nothing was changed, or where what was is not measured.
    """

    model: str
    facts: str
    answer: str
    changes: tuple[view.Row, ...]
    sentences: tuple[tuple[str, str], ...]


def build(fix: Fix) -> FixGlance:
    """Return what `fix` says at a glance."""
    changes = view.memory(fix)[:2] if _is_changed(fix) else ()
    sentences = (
        ("What was changed", _changed(fix)),
        ("Latency", _speed(fix.latencies) if changes and fix.latencies else ""),
        ("Outputs", f"{_capital(view.outputs(fix))}." if changes else ""),
        ("It depends on", _depends(fix) if _is_changed(fix) else ""),
        ("Files", _files(fix)),
        ("onnxruntime", f"{_capital(view.runtimes(fix))}." if _files(fix) else ""),
        ("What to do", _remedy(fix)),
    )
    return FixGlance(
        model=model_file(fix.model),
        facts=" · ".join(
            part
            for part in (
                at_sizes(fix.dimensions),
                f"onnxruntime {plain(fix.onnxruntime)}",
                f"took {format_duration(fix.duration_s)}",
            )
            if part
        ),
        answer=_answer(fix),
        changes=changes,
        sentences=tuple((label, said) for label, said in sentences if said),
    )


def told(fix: Fix) -> str:
    """Return what `fix` is worth and what to do, as the report of the model's profile tells it.

    Empty where nothing was tried.
    """
    if not _is_changed(fix):
        if fix.points:
            return f"Options of the session were tried. {_changed(fix)}"
        return f"A fix was tried. {_changed(fix)}" if fix.before else ""
    by = f"Fixed by {_names(fix.chosen if fix.points else _applied(fix))}"
    changes = view.memory(fix)[:2]
    if not changes:
        return f"{by}, unverified: the model could not be run. {_remedy(fix)}"
    parts = [
        *(f"{row.label} {row.before} → {row.after}" for row in changes),
        *([f"latency {view.ratio(_slowest(fix.latencies))}"] if fix.latencies else []),
        f"outputs {_within(fix)}",
    ]
    near = "" if _fits(fix) else ", the nearest to a budget that nothing fits"
    end = f"It depends on: {_depends(fix)}" if fix.points else _remedy(fix)
    return f"{by}{near}: {', '.join(parts)} (onnxruntime {plain(fix.onnxruntime)}). {end}"


def _is_changed(fix: Fix) -> bool:
    """Return whether something else than the original is to be used."""
    return bool(fix.chosen) if fix.points else fix.output is not None


def _answer(fix: Fix) -> str:
    if not _is_changed(fix):
        return _changed(fix)
    changes = view.memory(fix)[:2]
    if not changes:
        return "Changed, but not verified: the model could not be run."
    said = ", ".join(
        f"{row.label} {row.before} → {row.after}{f' ({row.times})' if row.times else ''}"
        for row in changes
    )
    near = "" if _fits(fix) else "Nothing fits the budget; the nearest is: "
    return _capital(f"{near}{said}.")


def _changed(fix: Fix) -> str:
    """Return what was done, or why nothing was."""
    if fix.points and not fix.chosen:
        if not tuning.is_conclusive(fix):
            return f"Nothing: no option was compared in {time_limit(fix.command)}."
        return "No option is worth it: the defaults are the best that was found."
    if fix.points:
        return f"The session's options: {_names(fix.chosen)}."
    if fix.output is not None:
        return f"Remedies applied to a copy of the model: {_names(_applied(fix))}."
    if not fix.remedies:
        return "Nothing to fix was found."
    possible = [one.name for one in fix.remedies if one.status == "possible"]
    if possible:
        return f"Nothing yet; these remedies would be tried: {_names(possible)}."
    if undecided := [one.name for one in fix.remedies if one.status == "undecided"]:
        return f"Nothing yet; these may be too slow, which is undecided: {_names(undecided)}."
    if any(one.status == "untried" for one in fix.remedies):
        return f"Nothing yet: {view.untried(fix)}."
    return "Nothing: no remedy that was tried is worth it."


def _applied(fix: Fix) -> tuple[str, ...]:
    return tuple(one.name for one in fix.remedies if one.status in ("applied", "unverified"))


def _names(names: Sequence[str]) -> str:
    distinct = [plain(name) for name in dict.fromkeys(names)]
    more = len(distinct) - _MOST_NAMES
    return " + ".join(distinct[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _speed(latencies: Sequence[LatencyAt]) -> str:
    worst = _slowest(latencies)
    if len(latencies) == 1:
        return f"{view.ratio(worst)} that before."
    return f"At worst {view.ratio(worst)} that before, with {plain(worst.inputs)}."


def _slowest(latencies: Sequence[LatencyAt]) -> LatencyAt:
    return max(latencies, key=lambda one: one.ratio)


def _within(fix: Fix) -> str:
    largest = fix.largest_difference
    if fix.bound and largest and largest <= fix.bound:
        return f"within {fix.bound:.1e} of the largest value"
    return view.outputs(fix)


def _depends(fix: Fix) -> str:
    point = _chosen(fix)
    said = [
        *(f"{name}={text}" for name, text in fix.session_options.items()),
        *(f"${name}={text} in the environment" for name, text in fix.environment.items()),
        *(_of_point(point) if point else ()),
    ]
    if not said:
        return "The files alone: no option has to be set, and no variable."
    return f"{', '.join(map(plain, said))}."


def _of_point(point: Point) -> Sequence[str]:
    """Return what a point sets beside session options and environment."""
    return [
        *(f"{name}={text} for each run" for name, text in point.run_options.items()),
        *(f"without the optimizer {name}" for name in point.disabled_optimizers),
        *(["one arena for all sessions"] if point.shared_arena else []),
        *(["the optimized model, saved once"] if point.saved_options else []),
        *(["the model's bytes instead of its path"] if point.load_from == "bytes" else []),
        *(["weights mapped once for all sessions"] if point.shares_weights else []),
    ]


def _chosen(fix: Fix) -> Point | None:
    return next((point for point in fix.points if point.options == fix.chosen), None)


def _fits(fix: Fix) -> bool:
    point = _chosen(fix)
    return point is None or point.fits


def _files(fix: Fix) -> str:
    """Return the files that the changed model needs; empty where it is not used."""
    if fix.output is None or (fix.points and _REWRITE not in fix.chosen):
        return ""
    names = ", ".join(map(plain, fix.output_files))
    if len(fix.output_files) == 1:
        return f"{names}."
    kept = ", ".join(map(plain, fix.kept_files))
    why = f", for {format_size(fix.kept_bytes)} of the weights stay in {kept}" if kept else ""
    return f"{names}: keep them together{why}."


def _remedy(fix: Fix) -> str:
    if fix.points:
        if not fix.chosen and not tuning.is_conclusive(fix):
            return "Run it again with a longer --time-limit, or none."
        if not fix.chosen:
            return "Keep the defaults."
        return "Create the session as the program below does."
    if fix.output is None:
        if any(one.status == "possible" for one in fix.remedies):
            return "Run it again without --dry-run."
        if any(one.status == "undecided" for one in fix.remedies):
            return "Run it again on a quieter machine, or with a higher --max-slowdown."
        if any(one.status == "untried" for one in fix.remedies):
            return "Run it again with a longer --time-limit, or none."
        return "Options of the session may still help: let memdiag tune look for them."
    if not fix.verified:
        return f"Compare what {plain(fix.output)} computes with the original before it is used."
    return f"Load {plain(fix.output)} instead of {plain(fix.model)}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

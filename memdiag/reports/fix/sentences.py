"""A fix in sentences: the answer, why, what to do, and what it depends on."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from memdiag.defaults import CUDA_PROVIDER
from memdiag.records.fix import REWRITE, Fix, Point, RemedyStatus
from memdiag.reports.fix.before_and_after import (
    is_few_pairs_and_wide,
    joined_names,
    latency_clause,
    mapped_tables_clause,
    measured_sizes_text,
    memory_changes,
    memory_word,
    outputs_text,
    saving_text,
)
from memdiag.reports.fix.chart import point_label
from memdiag.reports.text import (
    capitalized,
    dim_hint,
    dim_option,
    listed_names,
    plain,
    repeat_with_time_advice,
    shortened,
    time_limit_text,
)
from memdiag.units import (
    MIB,
    counted,
    format_duration,
    format_limit,
    format_size,
    format_sizes,
)

_MIN_TRIMMED_BYTES = 16 * MIB

_MAX_PROBLEM = 200
_MAX_OFFERS = 5
_MAX_REJECTED_NAMES = 6
_MIN_SAVED_SHARE = 0.01
"""Share of the peak and the steady memory together below which an option saves nothing."""

_SEARCH_LIMIT_OPTIONS = ("--only", "--time-limit", "--out")


def fix_answer(fix: Fix) -> str:
    """Return what the chosen changes save, or that nothing was found or verified."""
    model = plain(fix.model)
    before, after, chosen = fix.before, fix.after, fix.chosen_point
    sizes_of_inputs = measured_sizes_text(fix)
    at = f", {sizes_of_inputs}" if sizes_of_inputs else ""
    if before is None or after is None or chosen is None:
        passed = f"{time_limit_text(fix.command)} passed before the original itself was measured"
        return f"{model}: nothing was verified, since {passed}{at}."
    start = f"{model}: {_budget_words(fix, chosen)}"
    if not chosen.option_names:
        sizes = (
            f"{memory_word(fix, 'peak')} {format_size(after.peak_bytes)},"
            f" {memory_word(fix, 'steady')} {format_size(after.steady_bytes)}"
        )
        if not fix.is_conclusive and not (fix.budget and chosen.fits):
            return (
                f"{model}: nothing was verified {_search_end_clause(fix)}. The defaults take "
                f"{sizes}{at}."
            )
        # "the nearest is the defaults" where a budget is not met
        best = " are the best that was found" if chosen.fits else ""
        return f"{start}the defaults{best} ({sizes}{at})."
    if fix.write_problem and chosen.fits:
        start += "the new model was not written; with it "
    clause = latency_clause(fix)
    ratio = f", {clause}" if clause else ""
    if ratio:
        ratio += _latency_doubt(fix, chosen)
    once = ", memory measured once" if fix.measured_once else ""
    saving = f"{saving_text(memory_changes(fix)[:2])}{mapped_tables_clause(fix)}"
    return f"{start}{saving}{once}{ratio}{at}."


def _latency_doubt(fix: Fix, chosen: Point) -> str:
    """Return why a latency that is not known to be allowed is accepted; empty if it is known."""
    is_above = chosen.ratio is not None and chosen.ratio > fix.max_slowdown
    if is_above and chosen.unnoticed:
        return ": too little longer to notice"
    is_known = not (chosen.undecided or (is_above and chosen.same_kernels))
    if is_known and (chosen.same_kernels or not is_few_pairs_and_wide(fix)):
        return ""
    kernels = "; the same kernels run" if chosen.same_kernels else ""
    kernels = kernels or (", so it is undecided" if chosen.undecided else "")
    return f": these runs don't tell it from the allowed {fix.max_slowdown:.2f} ×{kernels}"


def saving_reason(fix: Fix) -> str:
    """Return what the saving comes from; or what became of everything that was tried."""
    if fix.chosen:
        left = _uncompared_clause(fix)
        return f"{joined_names(_chosen_change_names(fix))}; outputs {outputs_text(fix)}{left}."
    if fix.before is None:
        return f"{_tried_outcomes_text(fix)}." if _tried_outcomes_text(fix) else ""
    if fix.budget and is_budget_kept(fix):
        return "No change that was compared is clearly faster."
    outcomes = _tried_outcomes_text(fix)
    if not outcomes:
        return "There is nothing to try."
    return f"{outcomes}."


def untried_changes_sentence(fix: Fix) -> str:
    """Return what a search with a result had no time for, and how to go on; empty for nothing."""
    if not fix.chosen:
        return ""
    names = dict.fromkeys(each.name for each in fix.remedies if each.status == "untried")
    offered = len(_offered_points(fix))
    if offered or not names:
        untried = len(names) + len(fix.untried)
        parts = (
            f"{counted(offered, 'combination')} not compared" if offered else "",
            f"{counted(untried, 'change')} not tried" if untried else "",
        )
        left = " and ".join(filter(None, parts))
        return f"{left}: {_continuation_advice(fix)}." if left else ""
    verb = "was" if len(names) == 1 else "were"
    first = plain(next(iter(names)))
    again = f"{_fix_command(fix)} --only {first}"
    return f"{listed_names(list(names), limit=3)} {verb} not tried in this time: {again}"


def idle_options_sentence(fix: Fix) -> str:
    """Return which options saved nothing alone on a GPU: some of them are common advice.

    Empty for the memory of the host.
    """
    before = fix.before
    if fix.device is None or before is None:
        return ""
    defaults_bytes = before.peak_bytes + before.steady_bytes
    idle = [
        f"{point_label(point)} ({format_size(point.figures.steady_bytes)})"
        for point in fix.points
        if len(point.option_names) == 1 and point.figures is not None
        if _point_memory_key(point)[1] > (1 - _MIN_SAVED_SHARE) * defaults_bytes
    ]
    if not idle:
        return ""
    steady = format_size(before.steady_bytes)
    names = ", ".join(idle)
    return f"{names} saved nothing alone: the defaults take {steady} after the runs."


def next_step_sentence(fix: Fix) -> str:
    """Return what to do with the result."""
    if fix.write_problem:
        return f"Run it again where the new model can be written: {plain(fix.write_problem)}"
    if fix.program:
        needs = "" if _required_settings(fix) else ", or load the new model as before"
        program = f"Create the session as the program below does{needs}."
        return f"{program}{_kept_files_clause(fix)}{_malloc_trim_sentence(fix)}"
    offered = _offered_points(fix)
    if offered:
        figures, label = offered[0].figures, point_label(offered[0])
        assert figures is not None
        sizes = (
            f"peak {format_size(figures.peak_bytes)}, steady {format_size(figures.steady_bytes)}"
        )
        return (
            f"{capitalized(_continuation_advice(fix))}. The most promising is {label} ({sizes}),"
            " whose outputs and latency were not compared."
        )
    if not fix.is_complete:
        hint = dim_hint(fix.dimensions) if fix.before is None else ""
        smaller = f". Smaller inputs take less time; {hint}" if hint else ""
        return f"{capitalized(_continuation_advice(fix))}{smaller}."
    if not is_budget_kept(fix):
        return "Keep the defaults, and raise the budget or --max-slowdown."
    if fix.chosen:
        return "Run it again on a quieter machine, or with a higher --max-slowdown."
    return f"Keep the defaults.{_malloc_trim_sentence(fix)}"


def _malloc_trim_sentence(fix: Fix) -> str:
    """Return how much ``malloc_trim`` frees on top of the result; empty if it is little."""
    figures = fix.after or fix.before
    least = 0 if figures is None else max(_MIN_TRIMMED_BYTES, figures.steady_bytes // 10)
    if figures is None or figures.retained_bytes < least:
        return ""
    size = format_size(figures.retained_bytes)
    return (
        f" Besides, malloc_trim(0) after the first runs returns {size} (in Python:"
        " ctypes.CDLL(None).malloc_trim(0)), of which later runs may take some again."
    )


def fix_facts(fix: Fix) -> str:
    """Return the sizes of the inputs, the release of onnxruntime, and the effort."""
    parts = (
        measured_sizes_text(fix),
        f"onnxruntime {plain(fix.onnxruntime)}",
        search_cost_text(fix),
    )
    return " · ".join(part for part in parts if part)


def result_conditions(fix: Fix) -> Iterator[tuple[str, str]]:
    """Yield further sentences on the result, each with a label."""
    if not fix.chosen:
        return
    if fix.measured_once:
        yield (
            "Memory",
            "Measured in one process only: the search ended before it could be measured in"
            " several.",
        )
    settings = _required_settings(fix)
    yield (
        "Settings",
        f"{', '.join(map(plain, settings))}."
        if settings
        else "The files alone: no option has to be set, and no variable.",
    )
    if fix.output_files:
        yield "Files", _needed_files_text(fix)
    if releases := _loadable_releases_text(fix):
        yield "onnxruntime", releases


def offered_point_sentences(fix: Fix) -> Iterator[str]:
    """Yield a sentence on each point whose latency was not compared, and how to continue."""
    offered = _offered_points(fix)
    advice = _single_offer_advice(fix, offered[0]) if len(offered) == 1 else ""
    for point in offered[:_MAX_OFFERS]:
        assert point.figures is not None
        peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
        yield f"not compared: {point_label(point)} takes peak {peak}, steady {steady}{advice}"
    if len(offered) > _MAX_OFFERS:
        left = len(offered) - _MAX_OFFERS
        more = "combination that saves" if left == 1 else "combinations that save"
        yield f"not compared: {left} more {more} memory"
    if len(offered) > 1:
        yield (
            f"to compare the latency of all of them, {_continuation_advice(fix)}; to compare one,"
            " and get its"
            " program if it is fast enough, add --only with its names, separated by commas"
        )
    untried = [*_remedy_names_by_status(fix, "untried"), *fix.untried]
    if untried:
        again = "" if len(offered) > 1 else f"; to try all, {_continuation_advice(fix)}"
        yield f"not tried{_time_shortage_words(fix)}: {', '.join(map(plain, untried))}{again}"


def written_files_text(fix: Fix) -> str:
    """Return which files were written; empty if none were."""
    written = [path for path in fix.output_files if path not in fix.kept_files]
    if not written or fix.write_problem:
        return ""
    return f"wrote {', '.join(map(plain, written))}"


def search_cost_text(fix: Fix) -> str:
    """Return how many sessions were started, and how long it took."""
    duration = format_duration(fix.duration_s)
    if not fix.session_count:
        return f"took {duration}"
    return f"{counted(fix.session_count, 'session')} in {duration}"


def points_by_memory(fix: Fix) -> list[Point]:
    """Return the points, the least memory first."""
    return sorted(fix.points, key=_point_memory_key)


def point_problem_text(point: Point) -> str:
    """Return why a point cannot be used, in a few words; empty if it can."""
    return shortened(plain(point.problem), _MAX_PROBLEM)


def is_budget_kept(fix: Fix) -> bool:
    """Return whether the chosen point keeps the budget."""
    point = fix.chosen_point
    return point is None or point.fits


def _chosen_change_names(fix: Fix) -> list[str]:
    """Return the names of the chosen changes: of the rewritten model, its rewrites."""
    names: list[str] = []
    for name in fix.chosen:
        names += (
            dict.fromkeys(_remedy_names_by_status(fix, "applied"))
            if name == REWRITE
            else [plain(name)]
        )
    return names


def _uncompared_clause(fix: Fix) -> str:
    """Return the clause on the points that take less but were not compared; empty for none."""
    count = sum(point.offered for point in fix.points)
    if not count:
        return ""
    some = "1 combination takes" if count == 1 else f"{count} combinations take"
    latency = "its latency" if count == 1 else "their latency"
    but = f"there was no time to compare {latency}"
    if fix.ended_by == "interrupt":
        but = f"{latency} was not compared"
    return f"; {some} less memory, but {but}"


def _budget_words(fix: Fix, chosen: Point) -> str:
    """Return the words on whether the chosen point fits the budget; empty without one."""
    nothing = "nothing" if fix.is_complete else "nothing that was compared"
    nearest = "the nearest is "
    if fix.write_problem:
        nearest = "the nearest, whose model was not written, is "
    if not fix.budget:
        return "" if chosen.fits else f"{nothing} fits; {nearest}"
    limits = " and ".join(
        f"{format_limit(size)} {plain(name)}" for name, size in fix.budget.items()
    )
    if chosen.fits:
        return f"fits the budget of {limits}: "
    return f"{nothing} fits the budget of {limits}; {nearest}"


def _tried_outcomes_text(fix: Fix) -> str:
    """Return what became of the changes, with how many or the name of a single one."""
    tried = [point for point in fix.points if point.option_names]
    problems = Counter(point_problem_text(point) for point in tried if point.problem)
    often = ", most often" if problems.total() > 1 else ""
    reason = "".join(f"{often}: {problem}" for problem, _ in problems.most_common(1))
    least = _point_memory_key(fix.points[0]) if fix.points else (False, 0)
    unusable = [point for point in tried if point.problem]
    saving = [point for point in tried if not point.problem and _point_memory_key(point) < least]
    undecided = [point for point in saving if point.undecided]
    slower = [point for point in saving if point.is_too_slow(fix.max_slowdown)]
    offered = [point for point in saving if point.offered]
    containing = [
        point
        for point in saving
        if point.ratio is None
        if not point.offered
        if any({*slow.option_names} < {*point.option_names} for slow in slower)
    ]
    others = [*unusable, *undecided, *slower, *offered, *containing]
    idle = [point for point in tried if point not in others]
    rejected = list(dict.fromkeys(_remedy_names_by_status(fix, "rejected")))
    untried = [*_remedy_names_by_status(fix, "untried"), *fix.untried]
    was = "was" if len(untried) == 1 else "were"
    parts = (
        (_point_name_or_count(idle), "saved too little memory"),
        (_point_name_or_count(slower), "saved memory but lost too much time"),
        (_point_name_or_count(containing), "contained options that lost too much time"),
        (_point_name_or_count(undecided), "saved memory but may be too slow"),
        (
            _point_name_or_count(offered),
            f"saved memory but latency was not compared{_time_shortage_words(fix)}",
        ),
        (listed_names(rejected, limit=_MAX_REJECTED_NAMES), _rejected_rewrites_text(fix)),
        (
            untried[0] if len(untried) == 1 else len(untried),
            f"{was} not tried{_time_shortage_words(fix)}",
        ),
        (_point_name_or_count(unusable), f"could not be used{reason}"),
    )
    return ", ".join(f"{subject} {text}" for subject, text in parts if subject)


def _rejected_rewrites_text(fix: Fix) -> str:
    """Return what became of the rejected rewrites: of one, with the reason."""
    rejected = [remedy for remedy in fix.remedies if remedy.status == "rejected"]
    if len(rejected) != 1:
        return "were not kept"
    return f"was not kept ({shortened(plain(rejected[0].reason), _MAX_PROBLEM)})"


def _point_name_or_count(points: Sequence[Point]) -> str | int:
    """Return the name of a single point, or the number of points."""
    return point_label(points[0]) if len(points) == 1 else len(points)


def _time_shortage_words(fix: Fix) -> str:
    """Return what is said of steps that are missing, unless the user ended the search."""
    return "" if fix.ended_by == "interrupt" else " in time"


def _search_end_clause(fix: Fix) -> str:
    if fix.ended_by == "interrupt":
        return "before the interruption"
    return f"within {time_limit_text(fix.command)}"


def _single_offer_advice(fix: Fix, point: Point) -> str:
    """Return how to compare the latency of `point`, which is the only one that is offered."""
    names = ["rewrites" if name == REWRITE else name for name in point.option_names]
    start = _unlimited_command(fix.command) or _fix_command(fix) + dim_option(fix.dimensions)
    again = f"run {start} --only {','.join(names)}"
    return f". To compare its latency, and get its program if it is fast enough, {again}"


def _fix_command(fix: Fix) -> str:
    """Return the command that fixes the model, in the same memory."""
    provider = "" if fix.device is None else f" --provider {CUDA_PROVIDER}"
    return f"memdiag fix {shlex.quote(plain(fix.model))}{provider}"


def _unlimited_command(command: Sequence[str]) -> str:
    """Return `command` without what limits it, and without the folder of this report."""
    kept: list[str] = []
    is_value = False
    for word in command:
        if not is_value and word.partition("=")[0] not in _SEARCH_LIMIT_OPTIONS:
            kept.append(word)
        is_value = word in _SEARCH_LIMIT_OPTIONS
    return plain(shlex.join(kept))


def _continuation_advice(fix: Fix) -> str:
    """Return the advice to continue a search that ended early."""
    if fix.ended_by == "interrupt":
        return "run it again"
    return repeat_with_time_advice(fix.sufficient_time_limit_s)


def _offered_points(fix: Fix) -> list[Point]:
    return [point for point in points_by_memory(fix) if point.offered]


def _needed_files_text(fix: Fix) -> str:
    names = ", ".join(map(plain, fix.output_files))
    if len(fix.output_files) == 1:
        return f"{names}."
    kept = ", ".join(map(plain, fix.kept_files))
    reason = f", because {format_size(fix.kept_bytes)} of the weights are in {kept}" if kept else ""
    return f"{names}: keep them together{reason}."


def _kept_files_clause(fix: Fix) -> str:
    """Return that the new model needs files of the original; empty if it needs none."""
    if not fix.kept_files:
        return ""
    kept = ", ".join(map(plain, fix.kept_files))
    return f" Keep {kept}: {format_size(fix.kept_bytes)} of the weights are still there."


def _loadable_releases_text(fix: Fix) -> str:
    """Return the releases of onnxruntime that can load the rewritten model; empty without one."""
    if REWRITE not in fix.chosen:
        return ""
    verified, reason = f"Verified on {plain(fix.onnxruntime)}", fix.oldest_reason
    loadable = "no release is known that can load it"
    if fix.oldest_onnxruntime is not None:
        loadable = f"{plain(fix.oldest_onnxruntime)} and newer can load it"
        reason = reason or "by its versions of the IR and operators"
    return f"{verified}; {loadable}{f' ({plain(reason)})' if reason else ''}."


def _required_settings(fix: Fix) -> list[str]:
    """Return the settings that the saving depends on."""
    point = fix.chosen_point
    return [*_point_settings(point)] if point else []


def _point_settings(point: Point) -> Iterator[str]:
    yield from (f"{name}={value}" for name, value in point.session_options.items())
    yield from (f"${name}={value} in the environment" for name, value in point.environment.items())
    yield from (f"{name}={value} for each run" for name, value in point.run_options.items())
    for provider, options in point.provider_options.items():
        yield from (f"{name}={value} of {provider}" for name, value in options.items())
    yield from (f"without the graph transformer {name}" for name in point.disabled_optimizers)
    if point.shared_arena:
        yield "an arena of the environment"
    if point.saved_options:
        yield "the optimized model, saved once"


def _point_memory_key(point: Point) -> tuple[bool, int]:
    figures = point.figures
    return figures is None, figures.peak_bytes + figures.steady_bytes if figures else 0


def _remedy_names_by_status(fix: Fix, status: RemedyStatus) -> list[str]:
    return [plain(remedy.name) for remedy in fix.remedies if remedy.status == status]

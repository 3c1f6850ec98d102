"""A fix in sentences: the answer, its reason, what to do, and what the saving depends on."""

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
    sizes_clause = f", {sizes_of_inputs}" if sizes_of_inputs else ""
    if before is None or after is None or chosen is None:
        time_limit_clause = (
            f"{time_limit_text(fix.command)} passed before the original itself was measured"
        )
        return f"{model}: nothing was verified, since {time_limit_clause}{sizes_clause}."
    start = f"{model}: {_budget_words(fix, chosen)}"
    if not chosen.option_names:
        sizes = (
            f"{memory_word(fix, 'peak')} {format_size(after.peak_bytes)},"
            f" {memory_word(fix, 'steady')} {format_size(after.steady_bytes)}"
        )
        if not fix.is_conclusive and not (fix.budget and chosen.fits):
            return (
                f"{model}: nothing was verified {_search_end_clause(fix)}. The defaults take "
                f"{sizes}{sizes_clause}."
            )
        # If no point fits, the sentence starts with "the nearest is".
        best = " are the best that was found" if chosen.fits else ""
        return f"{start}the defaults{best} ({sizes}{sizes_clause})."
    if fix.write_problem and chosen.fits:
        start += "the new model was not written; with it "
    latency = latency_clause(fix)
    ratio = f", {latency}" if latency else ""
    if ratio:
        ratio += _latency_doubt(fix, chosen)
    memory_remark = ", memory measured once" if fix.measured_once else ""
    saving = f"{saving_text(memory_changes(fix)[:2])}{mapped_tables_clause(fix)}"
    return f"{start}{saving}{memory_remark}{ratio}{sizes_clause}."


def _latency_doubt(fix: Fix, chosen: Point) -> str:
    """Return why a latency is accepted that may be above the allowed one; empty if it is not."""
    is_above = chosen.ratio is not None and chosen.ratio > fix.max_slowdown
    if is_above and chosen.unnoticed:
        return ": too little longer to notice"
    is_known = not (chosen.undecided or (is_above and chosen.same_kernels))
    if is_known and (chosen.same_kernels or not is_few_pairs_and_wide(fix)):
        return ""
    reason = "; the same kernels run" if chosen.same_kernels else ""
    reason = reason or (", so it is undecided" if chosen.undecided else "")
    return f": these runs don't tell it from the allowed {fix.max_slowdown:.2f} ×{reason}"


def saving_reason(fix: Fix) -> str:
    """Return what the saving comes from, or what became of everything that was tried."""
    if fix.chosen:
        uncompared = _uncompared_clause(fix)
        return (
            f"{joined_names(_chosen_change_names(fix))}; outputs {outputs_text(fix)}{uncompared}."
        )
    if fix.before is None:
        return f"{_tried_outcomes_text(fix)}." if _tried_outcomes_text(fix) else ""
    if fix.budget and is_budget_kept(fix):
        return "No change that was compared is clearly faster."
    outcomes = _tried_outcomes_text(fix)
    if not outcomes:
        return "There is nothing to try."
    return f"{outcomes}."


def untried_changes_sentence(fix: Fix) -> str:
    """Return what a search with a result had no time for, and how to continue; empty for none."""
    if not fix.chosen:
        return ""
    names = dict.fromkeys(remedy.name for remedy in fix.remedies if remedy.status == "untried")
    offered_count = len(_offered_points(fix))
    if offered_count or not names:
        untried_count = len(names) + len(fix.untried)
        parts = (
            f"{counted(offered_count, 'combination')} not compared" if offered_count else "",
            f"{counted(untried_count, 'change')} not tried" if untried_count else "",
        )
        left_text = " and ".join(filter(None, parts))
        return f"{left_text}: {_continuation_advice(fix)}." if left_text else ""
    verb = "was" if len(names) == 1 else "were"
    first_name = plain(next(iter(names)))
    command = f"{_fix_command(fix)} --only {first_name}"
    return f"{listed_names(list(names), limit=3)} {verb} not tried in this time: {command}"


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
        alternative = "" if _required_settings(fix) else ", or load the new model as before"
        program = f"Create the session as the program below does{alternative}."
        return f"{program}{_kept_files_clause(fix)}{_malloc_trim_sentence(fix)}"
    offered_points = _offered_points(fix)
    if offered_points:
        figures, label = offered_points[0].figures, point_label(offered_points[0])
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
        smaller_inputs = f". Smaller inputs take less time; {hint}" if hint else ""
        return f"{capitalized(_continuation_advice(fix))}{smaller_inputs}."
    if not is_budget_kept(fix):
        return "Keep the defaults, and raise the budget or --max-slowdown."
    if fix.chosen:
        return "Run it again on a quieter machine, or with a higher --max-slowdown."
    return f"Keep the defaults.{_malloc_trim_sentence(fix)}"


def _malloc_trim_sentence(fix: Fix) -> str:
    """Return how much ``malloc_trim`` frees on top of the result; empty if it is little."""
    figures = fix.after or fix.before
    min_bytes = 0 if figures is None else max(_MIN_TRIMMED_BYTES, figures.steady_bytes // 10)
    if figures is None or figures.retained_bytes < min_bytes:
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
    offered_points = _offered_points(fix)
    advice = _single_offer_advice(fix, offered_points[0]) if len(offered_points) == 1 else ""
    for point in offered_points[:_MAX_OFFERS]:
        assert point.figures is not None
        peak, steady = format_sizes(point.figures.peak_bytes, point.figures.steady_bytes)
        yield f"not compared: {point_label(point)} takes peak {peak}, steady {steady}{advice}"
    if len(offered_points) > _MAX_OFFERS:
        omitted_count = len(offered_points) - _MAX_OFFERS
        subject = "combination that saves" if omitted_count == 1 else "combinations that save"
        yield f"not compared: {omitted_count} more {subject} memory"
    if len(offered_points) > 1:
        yield (
            f"to compare the latency of all of them, {_continuation_advice(fix)}; to compare one,"
            " and get its"
            " program if it is fast enough, add --only with its names, separated by commas"
        )
    untried_names = [*_remedy_names_by_status(fix, "untried"), *fix.untried]
    if untried_names:
        retry_clause = (
            "" if len(offered_points) > 1 else f"; to try all, {_continuation_advice(fix)}"
        )
        names = ", ".join(map(plain, untried_names))
        yield f"not tried{_time_shortage_words(fix)}: {names}{retry_clause}"


def written_files_text(fix: Fix) -> str:
    """Return which files were written; empty if none were."""
    written_paths = [path for path in fix.output_files if path not in fix.kept_files]
    if not written_paths or fix.write_problem:
        return ""
    return f"wrote {', '.join(map(plain, written_paths))}"


def search_cost_text(fix: Fix) -> str:
    """Return how many sessions were started, and how long it took."""
    duration = format_duration(fix.duration_s)
    if not fix.session_count:
        return f"took {duration}"
    return f"{counted(fix.session_count, 'session')} in {duration}"


def points_by_memory(fix: Fix) -> list[Point]:
    """Return the points, sorted by their memory."""
    return sorted(fix.points, key=_point_memory_key)


def point_problem_text(point: Point) -> str:
    """Return why a point cannot be used, in a few words; empty if it can."""
    return shortened(plain(point.problem), _MAX_PROBLEM)


def is_budget_kept(fix: Fix) -> bool:
    """Return whether the chosen point keeps the budget."""
    point = fix.chosen_point
    return point is None or point.fits


def _chosen_change_names(fix: Fix) -> list[str]:
    """Return the names of the chosen changes. A rewritten model is named by its rewrites."""
    names: list[str] = []
    for name in fix.chosen:
        names += (
            dict.fromkeys(_remedy_names_by_status(fix, "applied"))
            if name == REWRITE
            else [plain(name)]
        )
    return names


def _uncompared_clause(fix: Fix) -> str:
    """Return the clause on points that take less memory but were not compared; empty for none."""
    count = sum(point.offered for point in fix.points)
    if not count:
        return ""
    subject = "1 combination takes" if count == 1 else f"{count} combinations take"
    latency = "its latency" if count == 1 else "their latency"
    reason = f"there was no time to compare {latency}"
    if fix.ended_by == "interrupt":
        reason = f"{latency} was not compared"
    return f"; {subject} less memory, but {reason}"


def _budget_words(fix: Fix, chosen: Point) -> str:
    """Return whether the chosen point fits the budget; empty without a budget."""
    no_result = "nothing" if fix.is_complete else "nothing that was compared"
    nearest = "the nearest is "
    if fix.write_problem:
        nearest = "the nearest, whose model was not written, is "
    if not fix.budget:
        return "" if chosen.fits else f"{no_result} fits; {nearest}"
    limits = " and ".join(
        f"{format_limit(size)} {plain(name)}" for name, size in fix.budget.items()
    )
    if chosen.fits:
        return f"fits the budget of {limits}: "
    return f"{no_result} fits the budget of {limits}; {nearest}"


def _tried_outcomes_text(fix: Fix) -> str:
    """Return what became of the changes: their number, or the name of a single one."""
    tried_points = [point for point in fix.points if point.option_names]
    problems = Counter(point_problem_text(point) for point in tried_points if point.problem)
    frequency = ", most often" if problems.total() > 1 else ""
    reason = "".join(f"{frequency}: {problem}" for problem, _ in problems.most_common(1))
    original_key = _point_memory_key(fix.points[0]) if fix.points else (False, 0)
    unusable_points = [point for point in tried_points if point.problem]
    saving_points = [
        point
        for point in tried_points
        if not point.problem and _point_memory_key(point) < original_key
    ]
    undecided_points = [point for point in saving_points if point.undecided]
    slower_points = [point for point in saving_points if point.is_too_slow(fix.max_slowdown)]
    offered_points = [point for point in saving_points if point.offered]
    containing_points = [
        point
        for point in saving_points
        if point.ratio is None
        if not point.offered
        if any(
            {*slower_point.option_names} < {*point.option_names} for slower_point in slower_points
        )
    ]
    explained_points = [
        *unusable_points,
        *undecided_points,
        *slower_points,
        *offered_points,
        *containing_points,
    ]
    idle_points = [point for point in tried_points if point not in explained_points]
    rejected_names = list(dict.fromkeys(_remedy_names_by_status(fix, "rejected")))
    untried_names = [*_remedy_names_by_status(fix, "untried"), *fix.untried]
    verb = "was" if len(untried_names) == 1 else "were"
    parts = (
        (_point_name_or_count(idle_points), "saved too little memory"),
        (_point_name_or_count(slower_points), "saved memory but lost too much time"),
        (_point_name_or_count(containing_points), "contained options that lost too much time"),
        (_point_name_or_count(undecided_points), "saved memory but may be too slow"),
        (
            _point_name_or_count(offered_points),
            f"saved memory but latency was not compared{_time_shortage_words(fix)}",
        ),
        (listed_names(rejected_names, limit=_MAX_REJECTED_NAMES), _rejected_rewrites_text(fix)),
        (
            untried_names[0] if len(untried_names) == 1 else len(untried_names),
            f"{verb} not tried{_time_shortage_words(fix)}",
        ),
        (_point_name_or_count(unusable_points), f"could not be used{reason}"),
    )
    return ", ".join(f"{subject} {text}" for subject, text in parts if subject)


def _rejected_rewrites_text(fix: Fix) -> str:
    """Return what became of the rejected rewrites, with the reason if there is only one."""
    rejected_remedies = [remedy for remedy in fix.remedies if remedy.status == "rejected"]
    if len(rejected_remedies) != 1:
        return "were not kept"
    return f"was not kept ({shortened(plain(rejected_remedies[0].reason), _MAX_PROBLEM)})"


def _point_name_or_count(points: Sequence[Point]) -> str | int:
    """Return the name of a single point, or the number of points."""
    return point_label(points[0]) if len(points) == 1 else len(points)


def _time_shortage_words(fix: Fix) -> str:
    """Return the words on a lack of time; empty if the user ended the search."""
    return "" if fix.ended_by == "interrupt" else " in time"


def _search_end_clause(fix: Fix) -> str:
    if fix.ended_by == "interrupt":
        return "before the interruption"
    return f"within {time_limit_text(fix.command)}"


def _single_offer_advice(fix: Fix, point: Point) -> str:
    """Return how to compare the latency of `point`, the only point that is offered."""
    names = ["rewrites" if name == REWRITE else name for name in point.option_names]
    start = _unlimited_command(fix.command) or _fix_command(fix) + dim_option(fix.dimensions)
    command = f"run {start} --only {','.join(names)}"
    return f". To compare its latency, and get its program if it is fast enough, {command}"


def _fix_command(fix: Fix) -> str:
    """Return the command that fixes the model, in the same memory."""
    provider = "" if fix.device is None else f" --provider {CUDA_PROVIDER}"
    return f"memdiag fix {shlex.quote(plain(fix.model))}{provider}"


def _unlimited_command(command: Sequence[str]) -> str:
    """Return `command` without options that limit it, and without the folder of this report."""
    words: list[str] = []
    is_value = False
    for word in command:
        if not is_value and word.partition("=")[0] not in _SEARCH_LIMIT_OPTIONS:
            words.append(word)
        is_value = word in _SEARCH_LIMIT_OPTIONS
    return plain(shlex.join(words))


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
    kept_paths = ", ".join(map(plain, fix.kept_files))
    reason = (
        f", because {format_size(fix.kept_bytes)} of the weights are in {kept_paths}"
        if kept_paths
        else ""
    )
    return f"{names}: keep them together{reason}."


def _kept_files_clause(fix: Fix) -> str:
    """Return the sentence on files of the original that the new model needs; empty for none."""
    if not fix.kept_files:
        return ""
    kept_paths = ", ".join(map(plain, fix.kept_files))
    return f" Keep {kept_paths}: {format_size(fix.kept_bytes)} of the weights are still there."


def _loadable_releases_text(fix: Fix) -> str:
    """Return which releases can load the rewritten model; empty if it was not rewritten."""
    if REWRITE not in fix.chosen:
        return ""
    verified_text, reason = f"Verified on {plain(fix.onnxruntime)}", fix.oldest_reason
    loadable_text = "no release is known that can load it"
    if fix.oldest_onnxruntime is not None:
        loadable_text = f"{plain(fix.oldest_onnxruntime)} and newer can load it"
        reason = reason or "by its versions of the IR and operators"
    return f"{verified_text}; {loadable_text}{f' ({plain(reason)})' if reason else ''}."


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

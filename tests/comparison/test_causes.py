"""The causes of a difference in memory: copies, owners, files, malloc, settings, predictions.

Each pair of columns has its sentences in ``approved/causes.txt``.
"""

from pathlib import Path
from typing import Any

import msgspec

from memdiag.records.attribution import Attribution, Backing, Copy, Owner
from memdiag.records.comparison import ComparisonColumn
from memdiag.units import MIB
from tests.comparison.columns import (
    changes_between,
    column,
    measured,
    mib,
    phase,
    retaining,
    with_profile,
    with_session,
)
from tests.reports import estimates
from tests.reports.attributions import attribution, copy
from tests.snapshots import assert_approved

APPROVED = Path(__file__).parent / "approved" / "causes.txt"
W = copy("original", 500 * MIB, "w")
MAPPED = copy("original", 500 * MIB, "w", backing=Backing(kind="file", file="w.data", offset=0))

Pair = tuple[ComparisonColumn, ComparisonColumn]


def packed(size: int = 500) -> Copy:
    return copy("packed_fp32", size * MIB, "w", made_by="prepack · lm/MatMul")


def transposed(size: int, made_by: str = "ConstantFolding · lm/T") -> Copy:
    return copy("transposed", size * MIB, "w", kind="transposed", made_by=made_by)


def xray(*copies: Copy, **owners: int) -> Attribution:
    """Return an X-ray of `copies`, or of `W`, and further owners of these sizes in MiB."""
    plain = attribution(*(copies or (W,)))
    further = [
        Owner(kind=kind, name=kind, bytes=size * MIB, private_bytes=size * MIB)  # type: ignore[arg-type] # a kind by name
        for kind, size in owners.items()
    ]
    return msgspec.structs.replace(
        plain,
        resident_bytes=plain.resident_bytes + sum(owner.bytes for owner in further),
        owners=(*plain.owners, *further),
    )


def before(peak: float, steady: float, found: Attribution | None, **more: Any) -> ComparisonColumn:
    """Return the column a with figures in MiB; without phases, unless they are in `more`."""
    return column("a", measured(peak, steady, **{"phases": (), **more}), attribution=found)


def after(peak: float, steady: float, found: Attribution | None, **more: Any) -> ComparisonColumn:
    return msgspec.structs.replace(before(peak, steady, found, **more), label="b")


def copies_and_owners() -> dict[str, Pair]:
    several = xray(arena=400, kv_cache=300, mapped_files=200)
    plain, small = before(1000, 500, xray()), xray(W, packed(50))
    return {
        "a packed copy came": (before(1500, 1000, xray()), after(1500, 1500, xray(W, packed()))),
        "a packed copy went": (before(1500, 1500, xray(W, packed())), after(1500, 1000, xray())),
        "a cause of all": (plain, after(1000, 545.2, xray(W, packed(45)))),
        "a small rest": (plain, after(1000, 550, xray(W, packed(45)))),
        "a larger rest": (plain, after(1000, 559, xray(W, packed(45)))),
        "nobody looked": (plain, after(1000, 559, None)),
        "an owner": (plain, after(1000, 600, xray(arena=100))),
        "mapped and anonymous copies": (
            before(1500, 1400, xray(W, packed(400))),
            after(1500, 1000, xray(MAPPED)),
        ),
        # The largest cause of each direction is first.
        "several causes": (before(1900, 1000, small), after(1900, 1850, several)),
        "several causes of less": (before(1900, 1850, several), after(1900, 1000, small)),
        # The difference may have less of a cause than what is against it.
        "most causes are against it": (before(1500, 1000, small), after(1500, 900, several)),
    }


def settings() -> dict[str, Pair]:
    plain, arena_off = xray(), {"enable_cpu_mem_arena": "0"}
    larger = with_session(before(1000, 500, xray(arena=100)), options={})

    def changed(steady: float, **session: object) -> Pair:
        second = after(1000, steady, plain)
        return larger, with_session(second, **{"options": {}, **session})

    resized = after(1000, 500, xray(arena=100))
    assert resized.profile is not None
    first_input, *others = resized.profile.inputs
    wide = (msgspec.structs.replace(first_input, shape=(9, 9)), *others)
    return {
        "the option explains all": changed(400, options=arena_off),
        "only the option differs": changed(360, options=arena_off),
        "the option of the memory pattern": changed(400, options={"enable_mem_pattern": "0"}),
        "the number of runs differs as well": changed(360, options=arena_off, runs=77),
        "an option of unknown effect": changed(400, options={"execution_mode": "1"}),
        "no option differs": changed(360),
        "the sizes of the inputs": (before(1000, 400, plain), with_profile(resized, inputs=wide)),
        **{
            f"without a cause, {with_xray}, {with_option}": (
                with_session(before(1000, 500, found), options={}),
                with_session(after(1200, 700, found), options=options),
            )
            for with_xray, found in (("X-rayed", plain), ("not X-rayed", None))
            for with_option, options in (
                ("another option", {"execution_mode": "1"}),
                ("the same options", {}),
            )
        },
    }


def in_process(made: ComparisonColumn, *, baseline: int, retained: int) -> ComparisonColumn:
    """Return a column whose X-ray, with `retained`, is all that its first process had at the end.

    Sizes are in MiB.
    """
    assert made.profile is not None
    assert made.profile.attribution is not None
    end = made.profile.attribution.resident_bytes + retained * MIB
    steady = msgspec.structs.replace(made.profile.end, rss_bytes=end)
    return with_profile(retaining(made, retained), steady=steady, baseline_rss_bytes=baseline * MIB)


def processes() -> dict[str, Pair]:
    second = xray(arena=200, runtime_libraries=25)
    first = before(1000, 500, xray(arena=100, runtime_libraries=20))
    first = in_process(first, baseline=30, retained=10)
    plain = before(1500, 1000, xray())
    retained = retaining(after(1500, 1200, xray()), 200)
    return {
        # The processes that were X-rayed differ by 100 + 5 - 3 - 8 = 94 MiB, and the medians by 90.
        "large causes leave parts": (
            first,
            in_process(after(1000, 590, second), baseline=33, retained=2),
        ),
        # Without large causes to leave something, parts below the tolerance are not needed.
        "large causes leave nothing": (
            first,
            in_process(after(1000, 600, second), baseline=35, retained=10),
        ),
        "malloc retains more": (retaining(plain, 0), retained),
        "what malloc retained is not known": (
            with_profile(plain, allocator_retained_bytes=None),
            retained,
        ),
    }


def with_files(made: ComparisonColumn, size_mib: int) -> ComparisonColumn:
    """Return a column whose first process had `size_mib` more of mapped files than at its start."""
    assert made.profile is not None
    start = made.profile.phase("start")
    assert start is not None
    at_end = (start.end.file_bytes or 0) + size_mib * MIB
    return with_profile(made, steady=msgspec.structs.replace(made.profile.end, file_bytes=at_end))


def mapped_files() -> dict[str, Pair]:
    """Return columns with another kind of memory, and no more of it."""
    mapped = after(1000, 500, xray(MAPPED), anonymous=mib(-10), file=mib(510))
    mapped = with_files(mapped, 510)
    held, held_packed = xray(), xray(packed())
    return {
        "mapped instead of held": (with_files(before(1000, 500, held), 10), mapped),
        "mapped instead of packed": (with_files(before(1000, 500, held_packed), 10), mapped),
        "held in both": (
            with_files(before(1000, 500, held), 10),
            with_files(after(1000, 500, held), 10),
        ),
    }


def kept(phase_name: Any, size: float, first: Attribution, second: Attribution) -> Pair:
    """Return columns of which the second keeps `size` MiB more in a phase."""
    parse = phase("parse", 500, 500)
    return (
        before(1000, 500, first, phases=(parse, phase(phase_name, 1000, 0))),
        after(1000, 500, second, phases=(parse, phase(phase_name, 1000, size))),
    )


def reading(size: int) -> Pair:
    """Return columns of which the second keeps 500 MiB in its first run, and reads `size` MiB."""
    first, second = kept("first_run", 500, xray(), xray())

    def with_reads(made: ComparisonColumn, read: int) -> ComparisonColumn:
        assert made.profile is not None
        run = made.profile.phase("first_run")
        assert run is not None
        start, end = (
            msgspec.structs.replace(moment, file_bytes=file_mib * MIB)
            for moment, file_mib in ((run.start, 10), (run.end, 10 + read))
        )
        return with_profile(made, phases=(msgspec.structs.replace(run, start=start, end=end),))

    return with_reads(first, 0), with_reads(second, size)


def phases() -> dict[str, Pair]:
    plain, arena = xray(), xray(arena=800)
    return {
        "the arena of the first run": kept("first_run", 800, plain, arena),
        "the arena and more": kept("first_run", 900, plain, arena),
        # The arena grew in the later runs as well: how much in which phase is not known.
        "a part of the arena": kept("first_run", 300, plain, arena),
        "the arena shrank": kept("first_run", 800, arena, plain),
        "no arena": kept("first_run", 800, plain, plain),
        "packing in prepack": kept("prepack", 500, plain, xray(W, packed())),
        "packing of another size": kept("prepack", 100, plain, xray(W, packed())),
        # Packing happens in prepack: it is no cause of what constant_fold keeps.
        "packing in constant_fold": kept("constant_fold", 59, plain, xray(W, packed(59))),
        "folding": kept("constant_fold", 59, plain, xray(W, transposed(59))),
        "folding of a part": kept("constant_fold", 59, plain, xray(W, transposed(35))),
        # More than the difference: the copy was made in both, and released in one.
        "folding of more": kept("constant_fold", 59, plain, xray(W, transposed(200))),
        "made in parse": kept("constant_fold", 59, plain, xray(W, transposed(59, "parse"))),
        "larger, made in parse": kept("prepack", 100, plain, xray(W, transposed(500, "parse"))),
        "pages of mapped files": reading(500),
        "pages and more": reading(400),
        "no pages": reading(0),
    }


def peaks() -> dict[str, Pair]:
    plain, with_packed = xray(), xray(W, packed())
    high = {"peak_phase": "prepack", "phases": (phase("prepack", 1000, 0), phase("steady", 999, 0))}
    low = {"peak_phase": "steady", "phases": (phase("prepack", 500, 0), phase("steady", 501, 0))}
    earlier = (phase("parse", 800, 500), phase("constant_fold", 700, 0))
    return {
        "in another phase": (
            column("a"),
            after(800, 500, None, peak_phase="parse", phases=earlier),
        ),
        "before packing": (before(1000, 500, plain), after(1500, 500, with_packed)),
        "at packing": (
            before(1000, 500, plain, peak_phase="prepack"),
            after(1500, 1500, with_packed, peak_phase="prepack"),
        ),
        "moved to the next phase": (
            before(1000, 1000, with_packed, **high),
            after(501, 500, plain, **low),
        ),
        **{
            f"{above} MiB above the steady memory": (
                before(1000 + above, 1000, plain, peak_phase="first_run"),
                after(1100 + above, 1100, xray(arena=100), peak_phase="first_run"),
            )
            for above in (1, 19, 40)
        },
        **{
            f"predicted, with an error of {error} MiB": (
                predicted("a", {"weights": 100, "converted": 60}, error),
                predicted("b", {"weights": 25, "converted": 10}),
            )
            for error in (0, 20, 60)
        },
    }


def predicted(label: str, terms: dict[str, int], error: int = 0) -> ComparisonColumn:
    """Return a column whose peak in `optimize`, and what `parse` keeps, is predicted to be `terms`.

    It is measured to be larger by `error` MiB.
    """
    whole, weights = estimates.terms(**terms), estimates.terms(weights=terms["weights"])
    estimated = (
        estimates.phase("parse", weights, weights),
        estimates.phase("optimize", whole, weights, "embed.weight"),
        estimates.phase("steady", weights, weights),
    )
    peak = sum(terms.values()) + error
    parsed = phase("parse", terms["weights"], terms["weights"])
    figures = measured(peak, 50, peak_phase="optimize", phases=(parsed, phase("optimize", peak, 0)))
    point = msgspec.structs.replace(estimates.point(), phases=estimated, peak_phase="optimize")
    return with_profile(column(label, figures, attribution=xray()), estimate=point)


def test_every_difference_has_its_causes() -> None:
    lines = []
    for table in (copies_and_owners, settings, processes, mapped_files, phases, peaks):
        for title, pair in table().items():
            lines.append(f"{title}:")
            for change in changes_between(*pair):
                where = f" in {change.phase}" if change.phase else ""
                lines.append(f"  {change.metric}{where}: {change.why}")
    assert_approved("\n".join(lines), APPROVED)

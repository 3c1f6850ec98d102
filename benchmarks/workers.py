"""What several processes of a model take together: ``python -m benchmarks.workers``.

Each model runs in one, two, four and eight processes at once: with the model as it is, and with the
model saved once with its packed weights, which all processes map. The figures go to
``docs/deployment.md``.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import memdiag
from benchmarks.exported_models import exported_models
from benchmarks.readme import replace_part, table
from benchmarks.real_models import real_models
from memdiag.api.comparison_inputs import find_comparison_inputs
from memdiag.deploy.workers import Wanted, WorkerTrials
from memdiag.model.model_file import open_model
from memdiag.runner.job import Job
from memdiag.runner.machine import describe_machine
from memdiag.tuning.options import tuning_options
from memdiag.tuning.prepared_models import PreparedModels
from memdiag.units import MIB

DOCUMENT = Path(__file__).parents[1] / "docs" / "deployment.md"
MODELS = ("minilm_int8", "resnet50", "vit")
COUNTS = (1, 2, 4, 8)
RUNS = 5


def rows(name: str, model: Path, scratch: Path) -> Iterator[list[str]]:
    """Yield a row for the model as it is, and one for the model with saved packed weights."""
    with open_model(model) as file:
        found = find_comparison_inputs(
            file, Job(model=model), scratch / "inputs", dims={}, given={}, sizes=()
        )
        job = Job(model=model, feeds=found.sets[0].feeds, runs=RUNS)
        save = next(each for each in tuning_options() if each.name == "save-prepacked")
        models = PreparedModels(scratch)
        trials = WorkerTrials(job, [], partial(models.prepare, job, (save,)))
        for title, shares in (("as it is", False), ("saved packed weights", True)):
            sizes = []
            for count in COUNTS:
                wanted = Wanted(processes=count, shares_prepacked=shares)
                sizes.append(trials.arrangement(wanted)[0].together.pss_bytes)
            yield [
                "" if shares else f"`{name}`",
                title,
                *(f"{size / MIB:,.0f}" for size in sizes),
                f"{sizes[-1] / sizes[0]:.2f} ×",
            ]


def main(names: Sequence[str]) -> None:
    """Measure the models, and write the table."""
    chosen = names or MODELS
    models = real_models()
    models |= exported_models([name for name in chosen if name not in models])
    found: list[list[str]] = []
    for name in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            for row in rows(name, models[name], Path(scratch)):
                print(*row, sep=" | ", flush=True)
                found.append(row)
    head = ["model", "", *(str(count) for count in COUNTS), f"{COUNTS[-1]} of one"]
    machine = describe_machine(memdiag.__version__, None, None)
    text = table(head, found)
    replace_part("workers", f"{machine.cpu}; proportional sets (PSS) in MiB.\n\n{text}", DOCUMENT)


if __name__ == "__main__":
    main(sys.argv[1:])

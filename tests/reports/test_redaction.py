"""No name of a user is in a redacted report, of any kind of record and in any format."""

import json
import re
from collections.abc import Callable
from io import StringIO
from typing import Any, get_args

import msgspec
import pytest
from rich.console import Console

from memdiag.records.base import Record
from memdiag.records.codec import decode, encode
from memdiag.records.profile import Outcome, Profile
from memdiag.records.schemas import Reported
from memdiag.reports import report_of
from memdiag.reports.redaction import NAMES, redact
from tests.reports import (
    comparisons,
    estimates,
    fix_records,
    growths,
    limits,
    profiles,
    runs,
    sweeps,
    tied_xray,
    tuning_records,
)
from tests.reports.filled_records import NAME, filled

PUBLIC = {
    kind: {field for field, treatment in fields.items() if treatment == "public"}
    for kind, fields in NAMES.items()
}

RENAMED = {
    "tied_if": "zebra_if",
    "models/": "zebras/",
    "encoder": "zebraencoder",
    "model.shared.weight": "zebra.shared.weight",
    "embed.weight": "zebra.weight",
    "lm_head": "zebra_head",
    '"lm/': '"zebra/',
    "· lm/": "· zebra/",
    "tied.data": "zebra.data",
    "layer": "zebralayer",
    "scores": "zebrascores",
    "tokens": "zebratokens",
    '"ids"': '"zebra_ids"',
    "dir/m": "zebradir/zebram",
    "zoo/": "zebrazoo/",
    "albert": "zebra_albert",
    "broken": "zebra_broken",
    "minilm": "zebra_minilm",
    "vits": "zebra_vits",
    "/app/main.py": "/zebraapp/zebramain.py",
    '"app/main.py': '"zebraapp/zebramain.py',
    "server.py": "zebraserver.py",
    "app.py": "zebraapp.py",
    "output 'y'": "output 'zebra y'",
}
"""Unmistakable names in place of those of the records that are made by hand."""

BUILDERS: list[Callable[[], Any]] = [
    profiles.tied_if,
    profiles.failed,
    tied_xray.with_xrays,
    tied_xray.attribution,
    comparisons.versions,
    comparisons.bisected,
    estimates.grid,
    fix_records.verified,
    tuning_records.tuning,
    runs.server,
    growths.leak,
    growths.kept,
    sweeps.placed,
    limits.limit,
    limits.program,
]


def renamed(build: Callable[[], Any]) -> Any:
    record = build()
    text = encode(record).decode()
    for name, unmistakable in RENAMED.items():
        text = text.replace(name, unmistakable)
    return decode(text.encode(), type(record))


def outputs(record: Any) -> dict[str, str]:
    """Return `record` in all formats that are text, and its summary."""
    report = report_of(record)
    formats = [name for name in report.formats() if name != "png"]
    rendered = {
        name: report.render(record, name, plotly="directory", keep_names=True).decode()
        for name in formats
    }
    console = Console(file=StringIO(), width=200)
    report.print_summary(record, console)
    return rendered | {"console": console.file.getvalue()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", get_args(Reported), ids=lambda kind: kind.__name__)
def test_no_field_of_any_record_keeps_a_name(kind: type[Record]) -> None:
    record = filled(kind, PUBLIC)
    assert encode(record).count(NAME.encode()) > 3
    redacted = encode(redact(record)).decode()
    assert re.findall(rf".{{0,60}}{NAME}.{{0,20}}", redacted) == []
    assert decode(redacted.encode(), kind) == redact(record)


@pytest.mark.parametrize("build", BUILDERS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_no_name_survives_in_any_format(build: Callable[[], Any]) -> None:
    record = renamed(build)
    given = outputs(record)
    assert all(NAME in given[format].lower() for format in ("json", "markdown", "console"))
    for format, text in outputs(redact(record)).items():
        found = re.findall(rf".{{0,60}}{NAME}.{{0,20}}", text, re.IGNORECASE)
        assert found == [], format


def test_every_kind_of_record_is_among_them() -> None:
    assert {type(build()) for build in BUILDERS} == set(get_args(Reported))


def failed_with(message: str, **changes: Any) -> Profile:
    profile = profiles.failed()
    outcome = Outcome(status="failed", phase="parse", message=message)
    return msgspec.structs.replace(profile, outcome=outcome, inputs=(), **changes)


def message_of(message: str, **changes: Any) -> str:
    return redact(failed_with(message, **changes)).outcome.message


def test_the_same_name_has_the_same_replacement_in_fields_sentences_and_commands() -> None:
    profile = profiles.tied_if()
    name = profile.inputs[0].name
    path = profile.model.path
    redacted = redact(
        msgspec.structs.replace(
            profile,
            command=("memdiag", "profile", path, "--input", f"{name}_7=x.npy", "--dim", "seq_7=4"),
            notes=(f"{name}_7 and {path} and '{name}' are in {path}.", "seq_7 is 4, not seq_8"),
            dimensions=(),
        )
    )
    assert redacted.model.path == "model-1.onnx"
    replacement = redacted.inputs[0].name
    assert re.fullmatch(r"tensor-\d+", replacement)
    _, _, model, _, given, _, size = redacted.command
    assert model == "model-1.onnx"
    assert redacted.notes[0] == (
        f"{given.partition('=')[0]} and model-1.onnx and '{replacement}' are in model-1.onnx."
    )
    first, second = re.findall(r"name-\d+", redacted.notes[1])
    assert first != second
    assert size == f"{first}=4"


def test_paths_of_one_file_have_one_replacement_and_other_files_another() -> None:
    model = msgspec.structs.replace(profiles.failed().model, path="/data/a/net.onnx")
    text = "a/net.onnx is not b/net.onnx; net.onnx and /data/a/net.onnx are, and net too"
    assert message_of(text, model=model) == (
        "model-1.onnx is not model-2.onnx; model-1.onnx and model-1.onnx are, and model-1 too"
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "Non-zero status code returned while running MatMul node. Name:'quagga' Status"
            " Message: /src/x.cc:12 invalid dimensions",
            "Non-zero status code returned while running MatMul node. Name:'tensor-1' Status"
            " Message: file-1:12 invalid dimensions",
        ),
        ("Missing Input: okapi", "Missing Input: tensor-1"),
        ("the node (batch) failed", "the node (batch) failed"),
        ("input 'batch' is missing", "input 'tensor-1' is missing"),
        ("Load model from okapi failed: Protobuf parsing failed.",) * 2,
    ],
)
def test_names_in_errors_of_the_runtime_are_found_by_their_places(
    message: str, expected: str
) -> None:
    expected = expected.replace("okapi", "tensor-1")
    assert message_of(message) == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "3.5 GiB, 12 % of 4,096 bytes in 2.5 ms at 0x7f12 (64-bit, 2 × 4)",
        "--session-option session.disable_prepacking=1 with MALLOC_MMAP_THRESHOLD_=131072",
        "ConstantFolding stores the transposed weights for MatMul in the arena.",
    ],
)
def test_what_memdiag_says_itself_stays(sentence: str) -> None:
    assert message_of(sentence) == sentence


def test_versions_rules_options_and_the_machine_stay() -> None:
    profile = redact(tied_xray.with_attribution())
    before = tied_xray.with_attribution()
    assert profile.environment == before.environment
    assert profile.session == before.session
    assert profile.spans == before.spans
    assert profile.phases == before.phases
    assert profile.attribution is not None
    assert before.attribution is not None
    assert profile.attribution.owners == before.attribution.owners


def test_values_of_variables_and_options_are_replaced_and_their_names_stay() -> None:
    session = msgspec.structs.replace(
        profiles.failed().session,
        environment={"API_KEY": "hunter2x", "MALLOC_ARENA_MAX": "2"},
        options={"optimized_model_filepath": "/models/quagga.onnx"},
    )
    redacted = redact(failed_with("", session=session)).session
    assert redacted.environment == {"API_KEY": "name-1", "MALLOC_ARENA_MAX": "2"}
    assert redacted.options == {"optimized_model_filepath": "model-2.onnx"}


def test_the_page_of_a_redacted_record_is_that_of_the_record_otherwise() -> None:
    plain, redacted = (json.loads(encode(each)) for each in (runs.server(), redact(runs.server())))
    assert plain["samples"] == redacted["samples"]
    assert [each["pid"] for each in plain["processes"]] == [
        each["pid"] for each in redacted["processes"]
    ]

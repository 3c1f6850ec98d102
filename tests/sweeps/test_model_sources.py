"""The models of a sweep: every way to name them, and what cannot be read."""

import os
import shutil
from pathlib import Path

import fsspec
import numpy as np
import onnx
import pytest

from memdiag.comparison.environments import cache_folder
from memdiag.errors import ModelError, UsageError
from memdiag.model.model_file import open_model
from memdiag.sweeps import model_sources
from memdiag.sweeps.model_sources import ModelSource, fetch_model, find_sweep_models


def write_model(path: Path, constant: float = 0.0, *, external: bool = False) -> Path:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        g (float[batch, 4] x) => (float[batch, 4] y) <float[1] c = {{{constant}}}>
        {{ y = Add(x, c) }}""")
    path.parent.mkdir(parents=True, exist_ok=True)
    if external:
        weight = onnx.numpy_helper.from_array(np.full(64, constant, np.float32), "w")
        model.graph.initializer.append(weight)
    onnx.save(model, path, save_as_external_data=external, location="w.data", size_threshold=64)
    return path


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder with three models, of which two have the same name, and another file."""
    for number, name in enumerate(("bert/model.onnx", "gpt/model.onnx", "small.onnx")):
        write_model(tmp_path / "zoo" / name, number)
    (tmp_path / "zoo" / "readme.txt").write_text("no model")
    return tmp_path / "zoo"


def names(models: list[ModelSource]) -> list[str]:
    return [model.name for model in models]


def test_models_of_a_folder_are_named_by_their_place_in_it(zoo: Path) -> None:
    models = find_sweep_models([str(zoo)])
    assert names(models) == ["bert/model.onnx", "gpt/model.onnx", "small.onnx"]
    assert not any(model.problem for model in models)
    assert len({model.digest for model in models}) == 3
    assert models[0].address == str(zoo / "bert" / "model.onnx")
    assert models[0].dim_names == frozenset(["batch"])
    assert models[0].file_bytes == (zoo / "bert" / "model.onnx").stat().st_size


def test_patterns_and_files_are_named_by_the_file_where_that_is_enough(zoo: Path) -> None:
    assert names(find_sweep_models([str(zoo / "*.onnx")])) == ["small.onnx"]
    found = find_sweep_models([str(zoo / "**" / "model.onnx"), str(zoo / "small.onnx")])
    assert names(found) == ["bert/model.onnx", "gpt/model.onnx", "small.onnx"]


def test_a_list_names_models_and_sets_their_sizes(zoo: Path) -> None:
    path = zoo / "list.toml"
    path.write_text(
        'models = ["small.onnx", {path = "gpt/model.onnx", name = "GPT", dims = {batch = 4}}]'
    )
    small, gpt = find_sweep_models([str(path)])
    assert (small.name, small.dims) == ("small.onnx", {})
    assert (gpt.name, gpt.dims) == ("GPT", {"batch": 4})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = [", "cannot be read as a list"),
        ("model = []", "there is no list"),
        ("models = [1]", "1 is not a model"),
        ('models = [{path = "a.onnx", size = 1}]', "is not a model"),
        ('models = [{path = "a.onnx", dims = {batch = "4"}}]', "is not a model"),
    ],
)
def test_a_damaged_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        find_sweep_models([str(path)])


def test_equal_content_is_one_model_with_several_names(tmp_path: Path) -> None:
    for name, constant in (("a", 1), ("b", 1), ("c", 2)):
        write_model(tmp_path / f"{name}.onnx", constant)
    models = find_sweep_models([str(tmp_path)])
    found = [(model.name, model.other_names) for model in models]
    assert found == [("a.onnx", ("b.onnx",)), ("c.onnx", ())]
    # Named twice, it is still the same file.
    (twice,) = find_sweep_models([str(tmp_path / "a.onnx")] * 2)
    assert (twice.name, twice.other_names) == ("a.onnx", ())


def test_external_data_is_part_of_the_digest(tmp_path: Path) -> None:
    write_model(tmp_path / "a" / "m.onnx", 1, external=True)
    write_model(tmp_path / "b" / "m.onnx", 1, external=True)
    data = tmp_path / "b" / "w.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\1")
    first, second = find_sweep_models([str(tmp_path)])
    assert (tmp_path / "a/m.onnx").read_bytes() == (tmp_path / "b/m.onnx").read_bytes()
    assert first.digest != second.digest
    assert first.file_bytes > data.stat().st_size


def test_what_is_damaged_has_a_digest_and_no_problem(tmp_path: Path) -> None:
    (tmp_path / "damaged.onnx").write_text("no model")
    (damaged,) = find_sweep_models([str(tmp_path / "damaged.onnx")])
    assert damaged.digest
    assert (damaged.problem, damaged.dim_names) == ("", None)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.onnx", "No such file"),
        ("empty", "no .onnx or .ort file in this folder"),
        ("x*", "no file matches"),
        ("unknown-scheme://host/a.onnx", "unknown-scheme://host/a.onnx: cannot be fetched"),
        # Pipes, devices and empty files are not read.
        ("pipe.onnx", "no regular file"),
        ("empty.onnx", "no regular file"),
        ("/dev/zero", "no regular file"),
    ],
)
def test_what_cannot_be_read_has_a_problem(tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.onnx").touch()
    os.mkfifo(tmp_path / "pipe.onnx")
    (model,) = find_sweep_models([name if ":" in name else str(tmp_path / name)])
    assert problem in model.problem
    assert model.digest == ""


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a folder with a model that has external data, in memory, and an empty cache."""
    monkeypatch.setenv("MEMDIAG_CACHE", str(tmp_path / "cache"))
    write_model(tmp_path / "local" / "m.onnx", 1, external=True)
    system = fsspec.filesystem("memory")
    for path in (tmp_path / "local").iterdir():
        system.pipe_file(f"/zoo-{tmp_path.name}/deep/{path.name}", path.read_bytes())
    return f"memory://zoo-{tmp_path.name}"


def test_models_at_urls_are_fetched_with_their_data_once(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = find_sweep_models([remote])
    assert (model.name, model.problem) == ("deep/m.onnx", "")
    assert find_sweep_models([f"{remote}/deep/m.onnx"])[0].digest == model.digest
    assert find_sweep_models([f"{remote}/**/*.onnx"])[0].digest == model.digest
    path = fetch_model(f"{remote}/deep/m.onnx")
    with open_model(path) as opened:
        assert opened.external_bytes > 0
    monkeypatch.setattr(model_sources, "_download_model", None)
    assert fetch_model(f"{remote}/deep/m.onnx") == path


def test_a_url_that_cannot_be_read_is_a_problem_of_the_model(remote: str) -> None:
    missing, empty = find_sweep_models([f"{remote}/no.onnx", f"{remote}/nothing"])
    url = f"{remote}/no.onnx"
    assert (
        missing.problem == f"{url}: cannot be fetched (No such file or directory). Check the URL."
    )
    assert "there is no .onnx or .ort file" in empty.problem
    with pytest.raises(ModelError, match=r"no\.onnx: cannot be fetched"):
        fetch_model(f"{remote}/no.onnx")


def test_the_cache_drops_what_was_not_used_for_longest(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    first = fetch_model(f"{remote}/deep/m.onnx")
    size = sum(path.stat().st_size for path in first.parent.iterdir())
    monkeypatch.setattr(model_sources, "MAX_CACHE_BYTES", 2 * size)
    folder = remote.removeprefix("memory:/")
    others = []
    for name in ("b", "c"):
        for file in ("m.onnx", "w.data"):
            system.pipe_file(f"{folder}/{name}/{file}", system.cat_file(f"{folder}/deep/{file}"))
        others.append(fetch_model(f"{remote}/{name}/m.onnx"))
    assert [path.exists() for path in (first, *others)] == [False, True, True]


def test_a_name_that_is_not_utf8_has_to_be_changed(zoo: Path) -> None:
    (zoo / "small.onnx").rename(os.fsdecode(os.fsencode(zoo) + b"/sm\xffll.onnx"))
    models = find_sweep_models([str(zoo)])
    assert [bool(model.problem) for model in models] == [False, False, True]
    assert models[2].problem.endswith("sm\\udcffll.onnx: its name is not UTF-8. Rename it.")


def test_a_list_that_contains_itself_is_refused(zoo: Path) -> None:
    (zoo / "one.toml").write_text('models = ["small.onnx", "two.toml"]')
    (zoo / "two.toml").write_text('models = ["one.toml"]')
    with pytest.raises(UsageError, match=r"one\.toml: the list contains itself"):
        find_sweep_models([str(zoo / "one.toml")])
    (zoo / "two.toml").write_text('models = ["bert/model.onnx"]')
    assert names(find_sweep_models([str(zoo / "one.toml")])) == ["small.onnx", "model.onnx"]


@pytest.mark.parametrize(("free_bytes", "is_fetched"), [(4000, True), (40, False)])
def test_a_download_is_limited_to_half_of_the_free_space(
    remote: str, monkeypatch: pytest.MonkeyPatch, free_bytes: int, is_fetched: bool
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    [model] = find_sweep_models([f"{remote}/deep/m.onnx"])
    assert (model.problem == "") == is_fetched
    assert ("half of the free space" in model.problem) != is_fetched
    downloaded = list((cache_folder() / "models").rglob("*.onnx"))
    assert bool(downloaded) == is_fetched

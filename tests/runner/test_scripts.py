"""The parts of the loader that decide something; its steps are tried with real children."""

from enum import Enum
from typing import Any

import pytest

from memdiag.runner.scripts import child


class Level(Enum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1


class Options:
    """Like SessionOptions, as far as the loader knows it."""

    def __init__(self) -> None:
        self.enable_mem_pattern = True
        self.intra_op_num_threads = 0
        self.optimized_model_filepath = ""
        self.graph_optimization_level = _Bound(Level.ORT_DISABLE_ALL)
        self.log_severity_level = -1
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, name: str, value: str) -> None:
        self.entries[name] = value


class _Bound:
    """An enumeration as pybind11 binds it: members by name on its type."""

    __members__: dict[str, Any] = Level.__members__  # type: ignore[assignment] # a plain dict there

    def __init__(self, value: Level) -> None:
        self.value = value


class Runtime:
    SessionOptions = Options

    @staticmethod
    def get_available_providers() -> list[str]:
        return ["CPUExecutionProvider"]


def options(**given: str) -> Options:
    result: Options = child.session_options(Runtime, {"options": given})
    return result


def test_attributes_take_the_type_they_have_and_names_with_a_dot_are_entries() -> None:
    made = options(
        enable_mem_pattern="off",
        intra_op_num_threads="3",
        optimized_model_filepath="out.onnx",
        **{"session.disable_prepacking": "1"},
    )
    assert (made.enable_mem_pattern, made.intra_op_num_threads) == (False, 3)
    assert made.optimized_model_filepath == "out.onnx"
    assert made.entries == {"session.disable_prepacking": "1"}
    assert made.log_severity_level == child.SEVERITY_VERBOSE  # always


@pytest.mark.parametrize("text", ["basic", "ENABLE_BASIC", "ORT_ENABLE_BASIC"])
def test_a_level_may_be_named_in_short(text: str) -> None:
    level: object = options(graph_optimization_level=text).graph_optimization_level
    assert level is Level.ORT_ENABLE_BASIC


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nope": "1"}, "no session option called nope"),
        ({"_private": "1"}, "no session option called _private"),
        ({"add_session_config_entry": "1"}, "no session option called add_session"),
        ({"enable_mem_pattern": "perhaps"}, "must be true or false"),
        ({"graph_optimization_level": "most"}, "takes one of ORT_DISABLE_ALL"),
        ({"intra_op_num_threads": "many"}, "invalid literal"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        options(**given)


def test_each_provider_gets_its_own_options() -> None:
    given: dict[str, Any] = {}

    class Sessions(Runtime):
        @staticmethod
        def InferenceSession(source: str, options: Options, **arguments: Any) -> None:
            given.update(arguments)

    names = ["MyProvider", "CPUExecutionProvider"]
    job = {"model": "m.onnx", "load_from": "path", "providers": names, "disabled_optimizers": []}
    child.create_session(Sessions, Options(), {**job, "provider_options": {names[0]: {"k": "v"}}})
    assert given["providers"] == [(names[0], {"k": "v"}), (names[1], {})]
    assert not given["enable_fallback"]


def test_a_provider_that_is_not_there_is_refused() -> None:
    child.check_providers(Runtime, ["CPUExecutionProvider"])
    with pytest.raises(ValueError, match=r"no provider called Nope; it has CPU"):
        child.check_providers(Runtime, ["CPUExecutionProvider", "Nope"])

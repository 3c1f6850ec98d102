"""Notes on session config entries that onnxruntime does not know."""

import pytest

from memdiag.ort.config_keys import unknown_key_notes
from memdiag.tuning.tuning_options import tuning_options


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("session.disable_prepackin", "session.disable_prepacking"),
        ("sesion.use_env_allocators", "session.use_env_allocators"),
        ("ep.context_enabled", "ep.context_enable"),
        ("quite.another.thing", None),
    ],
)
def test_an_unknown_entry_is_noted_with_the_nearest_known_one(
    name: str, nearest: str | None
) -> None:
    (note,) = unknown_key_notes([name])
    assert note.startswith(f"session option {name}: onnxruntime ")
    assert note.endswith(f"Did you mean {nearest}?" if nearest else "ignores it.")


@pytest.mark.parametrize(
    "name",
    [
        "session.disable_prepacking",
        "intra_op_num_threads",
        "ep.cuda.use_arena",
        *(name for option in tuning_options() for name in option.session_options),
    ],
)
def test_known_entries_attributes_and_options_of_providers_have_no_note(name: str) -> None:
    assert [*unknown_key_notes([name])] == []

import io

import pytest
from matplotlib.image import imread

from memdiag.errors import UsageError
from memdiag.records.history import HISTORY_SCHEMA, History, HistoryEntry
from memdiag.reports.history import lines_of, render

MIB = 1 << 20


def history(models: int = 2, entries: int = 5) -> History:
    return History(
        schema=HISTORY_SCHEMA,
        entries=tuple(
            HistoryEntry(
                added_s=1_800_000_000.0 + 60 * index,
                label=f"c{index}",
                model=f"$m{model}_x.onnx",
                onnxruntime="1.24.4" if index < 3 else "1.31.1",
                memdiag="0.1.0",
                machine="",
                figures={"peak": (100 + 10 * index + model) * MIB, "copies": 1 + index // 3},
            )
            for index in range(entries)
            for model in range(models)
        ),
    )


@pytest.mark.parametrize("figure", ["peak", "copies"])
@pytest.mark.parametrize(("models", "entries"), [(1, 1), (1, 30), (2, 5), (9, 2)])
def test_the_picture_is_a_png_whatever_there_is(figure: str, models: int, entries: int) -> None:
    picture = imread(io.BytesIO(render(history(models, entries), figure)))
    assert picture.shape[:2] == (1040, 1600)
    assert picture[..., :3].min() < 0.3  # something is drawn


def test_the_same_history_gives_the_same_picture() -> None:
    assert render(history(), "peak") == render(history(), "peak")
    assert render(history(), "peak") != render(history(entries=4), "peak")


def test_points_say_what_changed() -> None:
    first, second = lines_of(history(), "peak")
    assert (first.model, second.model) == ("$m0_x.onnx", "$m1_x.onnx")
    assert [point.change for point in first.points] == ["", *["+10 MiB"] * 4]
    assert [point.is_other_runtime for point in first.points] == [False, False, False, True, False]
    assert first.points[0].when == "2027-01-15 08:00"


def test_an_unknown_figure_and_one_that_no_entry_has_are_named() -> None:
    with pytest.raises(UsageError, match=r"unknown figure 'peek'\. Choose from peak, steady"):
        lines_of(history(), "peek")
    with pytest.raises(UsageError, match="no entry has the figure steady"):
        lines_of(history(), "steady")


def test_the_scalable_trend_keeps_its_letters() -> None:
    text = render(history(), "peak", "svg").decode()
    assert ">onnxruntime 1.31.1</text>" in text
    assert ">$m0_x.onnx 140 MiB</text>" in " ".join(text.split())

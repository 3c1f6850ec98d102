import threading
from collections.abc import Iterator

import pytest

from memdiag.graph.workers import Workers


def test_results_come_in_the_order_of_the_tasks() -> None:
    release = threading.Event()

    def work(task: int) -> int:
        if task:
            release.set()
        elif workers.count > 1:
            assert release.wait(10)
        return -task

    with Workers() as workers:
        assert list(workers.map(work, range(50))) == [-task for task in range(50)]


def test_only_a_few_tasks_are_taken_ahead() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[int]:
        for task in range(1000):
            taken.append(task)
            yield task

    with Workers() as workers:
        assert next(workers.map(abs, tasks())) == 0
        assert len(taken) <= 3 * workers.count


def test_an_error_of_a_task_is_raised_where_its_result_is_wanted() -> None:
    with Workers() as workers:
        results = workers.map(lambda task: 1 // task, [1, 0])
        with pytest.raises(ZeroDivisionError):
            list(results)


def test_no_thread_stays_behind() -> None:
    before = threading.active_count()
    with Workers() as workers:
        list(workers.map(abs, range(10)))
    assert threading.active_count() == before

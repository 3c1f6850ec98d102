"""Which places of a copy are looked for, and that they are met again."""

import numpy as np

from memdiag.attribution.anchors import STEP, Sieve, choose
from memdiag.attribution.layouts import Uses, VirtualCopy, layouts

RANDOM = np.random.default_rng(20261122)


def original(weight: np.ndarray) -> VirtualCopy:
    (copy,) = (
        copy
        for layout in layouts()
        for copy in layout.candidates(weight, Uses())
        if copy.layout == "original"
    )
    return copy


def test_a_large_copy_has_few_anchors_and_both_its_ends_are_among_them() -> None:
    weight = RANDOM.standard_normal((512, 512), np.float32)
    anchors = choose([original(weight)])
    for alignment in range(0, STEP, 8):
        offsets = np.sort(anchors.offsets[anchors.offsets % STEP == alignment])
        assert len(offsets) == 8
        assert offsets[0] == alignment
        assert weight.nbytes - offsets[-1] < 4 * STEP
        assert np.diff(offsets).max() < weight.nbytes / 4
    assert anchors.counts.tolist() == [64]


def test_what_is_telling_is_kept_where_most_tells_nothing() -> None:
    weight = np.zeros((512, 512), np.float32)
    weight[300:] = RANDOM.standard_normal((212, 512))
    offsets = choose([original(weight)]).offsets
    assert len(offsets) == 64
    assert offsets.min() >= 300 * 512 * 4


def test_each_anchor_is_met_at_its_place_and_at_no_other() -> None:
    copies = [original(RANDOM.standard_normal((300, 200), np.float32)) for _ in range(3)]
    anchors = choose(copies)
    for number, copy in enumerate(copies):
        memory = copy.blocks(np.array([0]), copy.nbytes).reshape(-1)
        steps = memory[: copy.nbytes // STEP * STEP].view(np.uint64)[:: STEP // 8]
        likely = Sieve(anchors, len(steps)).likely(steps)
        where, which = anchors.match(steps[likely])
        assert set(anchors.copies[which].tolist()) == {number}
        assert (likely[where] * STEP).tolist() == anchors.offsets[which].tolist()
        assert len(which) == 8


def test_a_large_model_is_let_go_of_between_the_copies() -> None:
    small, large = (RANDOM.standard_normal((rows, 1024), np.float32) for rows in (64, 4096))
    times: list[int] = []
    choose([original(large)] * 5, lambda: times.append(1))
    # 16 MiB each: after three of them.
    assert len(times) == 1
    choose([original(small)] * 5, lambda: times.append(1))
    assert len(times) == 1


def test_equal_keys_of_several_copies_are_all_met() -> None:
    weight = RANDOM.standard_normal((64, 64), np.float32)
    anchors = choose([original(weight), original(weight.copy())])
    assert len(anchors.keys) == 2 * len(np.unique(anchors.keys))
    rows, which = anchors.match(anchors.keys[:1])
    assert rows.tolist() == [0, 0]
    assert sorted(anchors.copies[which].tolist()) == [0, 1]


def test_a_key_that_too_many_copies_share_is_no_anchor() -> None:
    start = RANDOM.standard_normal(16, np.float32)
    weights = [RANDOM.standard_normal((64, 64), np.float32) for _ in range(33)]
    for weight in weights:
        weight[0, :16] = start
    copies = [original(weight) for weight in weights]
    assert choose(copies[:32]).offsets.min() == 0
    assert choose(copies).offsets.min() > STEP

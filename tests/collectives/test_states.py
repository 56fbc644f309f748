"""Who holds what before each step: by hand on small cases, and at the ends for every algorithm there is."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.collectives import ALGORITHMS, Schedule, Step, build
from rankscope.collectives.schedule import MOVES
from rankscope.collectives.verify import holdings, origins, wanted

ALL = [(collective, name) for collective, builders in ALGORITHMS.items() for name in builders]


def test_a_ring_by_hand() -> None:
    ring = build("allreduce", "ring", 3)
    own = np.broadcast_to(np.eye(3, dtype=bool)[:, None], (3, 3, 3))
    assert np.array_equal(holdings(ring, 0), own)
    # step 0: rank r sends chunk r to rank r + 1, which adds it
    after = own.copy()
    for rank in range(3):
        after[(rank + 1) % 3, rank, rank] = True
    assert np.array_equal(holdings(ring, 1), after)
    # after two steps rank r has the whole of chunk r + 1, and passes it on
    done = holdings(ring, 2).all(axis=2)
    assert np.argwhere(done).tolist() == [[0, 1], [1, 2], [2, 0]]
    assert holdings(ring, 4).all()


def test_a_copy_replaces_and_a_sum_adds() -> None:
    steps = [Step.of([0], [1], [0], 1, True), Step.of([0], [1], [0], 1, False)]
    schedule = Schedule.of_steps(steps, collective="allreduce", algorithm="mine", num_ranks=2, num_chunks=1)
    assert holdings(schedule, 1)[1, 0].tolist() == [True, True]
    assert holdings(schedule, 2)[1, 0].tolist() == [True, False]


def test_all_of_a_step_reads_what_was_there_before_it() -> None:
    steps = [Step.of([0, 1], [1, 2], [0, 0], 1, True)]
    schedule = Schedule.of_steps(steps, collective="allreduce", algorithm="mine", num_ranks=3, num_chunks=1)
    assert holdings(schedule, 1)[2, 0].tolist() == [False, True, True]


def test_what_is_passed_on_keeps_the_rank_it_comes_from() -> None:
    gather = build("gather", "binomial", 4)
    assert np.argwhere(holdings(gather, 0)).tolist() == [[r, r, r] for r in range(4)]
    assert np.argwhere(holdings(gather, 2)[0]).tolist() == [[r, r] for r in range(4)]
    assert np.argwhere(holdings(build("broadcast", "binomial", 4, root=2), 1))[:, 2].tolist() == [2, 2]


@pytest.mark.parametrize(("collective", "name"), ALL)
@pytest.mark.parametrize("num_ranks", [1, 2, 8, 128])
def test_everybody_ends_with_what_is_promised(collective: str, name: str, num_ranks: int) -> None:
    if collective == "all_to_all" and num_ranks > 8:
        return  # 16,384 chunks on each of 128 ranks
    schedule = build(collective, name, num_ranks)
    there = holdings(schedule, schedule.num_steps)
    wants = wanted(schedule)
    if collective in MOVES:
        rank, chunk = np.nonzero(wants)
        assert there[rank, chunk, origins(schedule)[chunk]].all()
        assert (there.sum(axis=2) <= 1).all()
    else:
        assert there[wants].all()


@pytest.mark.parametrize("step", [-1, 7, 1.5])
def test_a_step_that_does_not_exist(step: float) -> None:
    with pytest.raises(ValueError, match=f"step must be a whole number from 0 to 6, got {step}"):
        holdings(build("allreduce", "ring", 4), step)  # type: ignore[arg-type]

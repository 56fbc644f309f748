"""Optimizer states after Join, on real ranks; and each check, given something wrong."""

from __future__ import annotations

import pytest

from rankscope.course import states_after_join
from rankscope.course.states import JoinedTraining, StatesAfterJoin
from rankscope.train.gradients import DemoError

from ..small import batch, mlp
from ..train.uneven.test_uneven import EPOCH, epoch_of, losses


@pytest.fixture(scope="module")
def states() -> StatesAfterJoin:
    return states_after_join(mlp(), *batch(EPOCH.size), EPOCH, losses)


@pytest.mark.slow
def test_adams_state_is_old_after_join_unless_it_is_shared(states: StatesAfterJoin) -> None:
    states.check()
    assert states.ways["Adam"].rank_difference > 1e-4
    assert states.ways["Adam, state shared"].difference(1) < 1e-11 < 1e-4 < states.ways["Adam"].difference(1)


@pytest.mark.slow
def test_states_that_are_not_as_known_are_caught(states: StatesAfterJoin) -> None:
    good = states.ways["SGD"]
    with pytest.raises(DemoError, match="ranks agree, second epoch right should be"):
        StatesAfterJoin({**states.ways, "Adam": good}).check()
    moved = JoinedTraining((good.started[0], good.started[0] + 1), good.ended, good.single, good.rounding)
    assert StatesAfterJoin({"SGD": moved}).is_right("SGD") == (True, False, True)


def test_a_rank_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="epoch must have a batch for each"):
        states_after_join(mlp(), *batch(2), epoch_of(1, [], [0, 1]), losses)

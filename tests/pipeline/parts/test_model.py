"""Part files simulated, against closed forms. Real runs are compared in `test_part_datasets`."""

from __future__ import annotations

import pytest

from rankscope.pipeline import idle_share, simulate_parts


def test_what_loading_in_the_trainer_costs_is_known_in_closed_form():
    """Constant loads L and n steps S a part: idle is L / (L + nS), alone and in aligned lock-step."""
    for num_trainers in (1, 4):
        timeline = simulate_parts(0.6, [[2] * 5] * num_trainers, 0.2)
        assert idle_share(timeline) == pytest.approx(0.6 / (0.6 + 0.4))
        assert timeline.makespan_s == pytest.approx(5.0)


@pytest.mark.parametrize(("queue_size", "num_loaders", "end_s"), [(1, 1, 31.0), (4, 2, 17.0), (4, 3, 13.0)])
def test_loaders_give_a_part_every_load_over_their_number_or_the_trainer_is_the_limit(queue_size, num_loaders, end_s):
    """Ten parts of 3 s to load and 1 s to step: the last one of each loader, and the steps that follow it."""
    timeline = simulate_parts(3.0, [[1] * 10] * 2, 1.0, queue_size=queue_size, num_loaders=num_loaders)
    timeline.check()
    assert timeline.end_s == pytest.approx(end_s)

"""Steps on texts of unequal length: predicted from measured curves, and counted on real ranks."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.course import step_times
from rankscope.course.timed_steps import StepCurves, StepTimes, TimedOrder
from rankscope.sampling import Assignment, assign, epoch_work


def shared_core(num_ranks: int) -> StepCurves:
    """All ranks share one core: k of them take k times as long, and each step takes 5 s more."""
    return StepCurves([1, 1001], [[5, 5 + 1000 * k] for k in range(1, num_ranks + 1)])


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_ranks_that_share_one_core_take_as_long_as_all_their_work(num_ranks: int) -> None:
    words = np.random.default_rng(0).integers(1, 1000, (50, num_ranks))
    np.testing.assert_allclose(shared_core(num_ranks).predict(words), 5 + (words - 1).sum(axis=1))


def test_ranks_with_cores_of_their_own_take_as_long_as_the_longest_batch() -> None:
    curves = StepCurves([1, 501, 1001], [[1, 3, 9]] * 3)
    words = np.random.default_rng(0).integers(1, 1000, (50, 3))
    np.testing.assert_allclose(curves.predict(words), curves.predict_alone(words))


def test_differences_and_gains_are_of_sums() -> None:
    words = np.array([[101, 101], [1, 1]])
    slow = TimedOrder(words, np.array([300.0, 20.0]), round_s=np.array([320.0]))
    fast = TimedOrder(words, np.ones(2), round_s=np.array([2.0]))
    times = StepTimes(shared_core(2), {"slow": slow, "fast": fast}, losses=())
    assert times.difference("slow") == pytest.approx(320 / 210 - 1)
    assert times.gain("fast", "slow") == 160
    assert times.predicted_gain("slow", "fast") == 1
    assert "+52%" in str(times)


def test_the_spread_is_that_of_the_rounds() -> None:
    words = np.array([[101, 101]])
    slow = TimedOrder(words, np.array([3.0]), np.array([2.7, 3.0, 3.9]))
    fast = TimedOrder(words, np.array([1.0]), np.array([1.0, 1.0, 1.0]))
    assert slow.spread == pytest.approx(0.2)
    assert fast.spread == 0
    times = StepTimes(shared_core(2), {"slow": slow, "fast": fast}, losses=())
    assert times.gains_of_rounds("fast", "slow").tolist() == [2.7, 3.0, 3.9]
    assert "±20%" in str(times)


@pytest.mark.slow
def test_real_ranks_train_on_the_words_that_the_costs_say() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 24)
    texts = [" ".join(map(str, range(length))) for length in lengths]
    orders = {
        "random": assign(24, 2).with_loader(4),
        "balanced": assign(24, 2, sampler="balanced", lengths=lengths, batch_size=4),
    }
    times = step_times(texts, orders, num_rounds=2)
    for name, order in orders.items():
        assert (times.orders[name].step_words == epoch_work(order, lengths).step_costs).all()
        assert (times.orders[name].seconds > 0).all()
        assert times.orders[name].round_s.shape == (2,)
    assert times.losses[1] < times.losses[0]


@pytest.mark.parametrize(
    ("texts", "orders", "message"),
    [
        (["a", ""], {}, "each of texts must have at least one word, got ''"),
        (["a", 3], {}, "each of texts must be"),
        (["a", "b"], {}, "orders must have at least one, by name, got none"),
        (["a", "b"], {"x": assign(3, 1)}, "'x' must be an order of 2 texts, got one of 3"),
        (["a", "b"], {"x": Assignment(2, ([0, 1], []))}, "all ranks of 'x' must have the same number of batches"),
        (["a", "b"], {"x": assign(2, 2), "y": assign(2, 1)}, "all orders must be for 2 ranks, and 'y' is for 1"),
        (["a", "b"], {"x": Assignment(2, ([0, 1],), batch_stops=([0, 2],))}, "every batch of 'x' must have a text"),
    ],
)
def test_bad_input(texts: list[str], orders: dict[str, Assignment], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_times(texts, orders)


def test_curves_of_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"words must be at least two numbers that rise from 1, got \[2, 3\]"):
        StepCurves([2, 3], [[1, 2]])
    with pytest.raises(ValueError, match=r"seconds must have the shape \(ranks, 2\), as words have it, got \(1, 3\)"):
        StepCurves([1, 3], [[1, 2, 3]])
    with pytest.raises(ValueError, match=r"step_words must have the shape \(steps, 1\), got \(1, 2\)"):
        StepCurves([1, 3], [[1, 2]]).predict([[1, 2]])

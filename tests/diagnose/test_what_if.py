"""`what_if`: traces that a model made give this model back, and its answers."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest

from rankscope.ddp import Contention, LocalStep, recommend
from rankscope.ddp.cost import CostTable
from rankscope.ddp.step import default_buckets, last_backward, launches
from rankscope.diagnose import diagnose, read_traces
from rankscope.diagnose.what_if import _cost, _modelled, _Seen, what_if
from rankscope.timeline import Timeline

from .made_traces import LOADER_S, OPTIMIZER_S, write_traces

MIB = 1 << 20
LAYERS = LocalStep.modelled([MIB, 64 * 1024] * 11, backward_s=0.033, forward_s=0.015)
CAPS = (0.5, 1.0, 3.0, 7.0, 50.0)


def cost(num_bytes: float) -> float:
    return 0.0004 + num_bytes / 400e6


def test_traces_of_a_model_give_the_model_back(tmp_path: Path) -> None:
    found = what_if(read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0)), caps_mb=CAPS)
    exact = recommend(attrs.evolve(LAYERS, forward_s=LAYERS.forward_s + OPTIMIZER_S), cost, caps_mb=CAPS)
    expected = [one.step_s for one in (exact.default, *exact.candidates)]
    assert found.step_s == pytest.approx(found.model_s, rel=1e-4)
    assert [one.num_buckets for one in found.caps] == [one.num_buckets for one in (exact.default, *exact.candidates)]
    assert [one.step_s for one in found.caps] == pytest.approx(expected, rel=1e-3)
    assert max(found.contention.compute, found.contention.communication) < 1.01
    np.testing.assert_allclose(found.local.ready_s, LAYERS.ready_s, atol=1e-6)
    best = min(found.caps, key=lambda one: one.step_s)
    assert found.answers[0].what.startswith(f"bucket_cap_mb={best.bucket_cap_mb:g}, ")
    assert found.answers[0].step_s == best.step_s < found.step_s


def test_a_late_rank_is_no_slow_network_and_is_taken_out(tmp_path: Path) -> None:
    late = (0.0, 0.0, 0.03, 0.001)
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, late_s=late))
    found = what_if(traces, diagnose(traces), caps_mb=CAPS)
    bytes_per_s = 1e6 / (found.cost.seconds[1] - found.cost.seconds[0])
    assert bytes_per_s == pytest.approx(400e6, rel=1e-3)
    answers = {one.what: one for one in found.answers}
    alone = answers["rank 2 as fast as the others (loader)"]
    assert found.step_s - alone.step_s == pytest.approx(0.03, rel=0.05)
    loaded = answers["a loader that never keeps a rank waiting"]
    assert found.step_s - loaded.step_s == pytest.approx(0.03 + LOADER_S, rel=1e-3)
    faster, bound = answers["a link 2 times as fast"], answers["allreduces that take no time (lower bound)"]
    assert bound.step_s < faster.step_s < found.step_s
    assert bound.step_s == pytest.approx(LAYERS.forward_s + 0.03 + OPTIMIZER_S + LAYERS.backward_s, rel=1e-4)
    assert found.to_frame().saved_share.tolist() == [one.saved_share for one in found.answers]
    assert "ms (" in str(found)


def test_without_sizes_each_bucket_counts_as_a_gradient_and_no_sizes_at_all_are_refused(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0))
    plain = [attrs.evolve(trace, gradient_bytes=np.full(trace.gradient_bytes.size, -1)) for trace in traces]
    found = what_if(plain, caps_mb=CAPS)
    assert [one.num_buckets for one in found.caps][-1] == 1
    assert found.local.sizes.size == max(one.num_buckets for one in found.caps) < len(LAYERS.parameters)
    assert found.local.num_bytes == LAYERS.num_bytes
    blind = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, shapes=False))
    with pytest.raises(ValueError, match="at least 3 steps with the same allreduces of gradients on every rank"):
        what_if(blind)


def test_steps_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    one = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0))
    other = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=4.0))
    with pytest.raises(ValueError, match="have 0 such steps"):
        what_if([one[0], other[1]])
    with pytest.raises(ValueError, match="have 0 such steps"):
        what_if([])


def test_steps_under_no_sync_say_how_much_allreduces_slow_computing_down(tmp_path: Path) -> None:
    """One of them computes at once what takes twice as long in the others, from the first allreduce on."""
    slow = LocalStep(LAYERS.parameters, LAYERS.ready_s * 2, 0.015, LAYERS.backward_s * 2)
    (tmp_path / "alone").mkdir()
    recorded = read_traces(write_traces(tmp_path, slow, lambda num_bytes: num_bytes / 100e6, cap_mb=1.0))
    alone = read_traces(write_traces(tmp_path / "alone", LAYERS, lambda num_bytes: 0.0, num_steps=1))
    joined = []
    for trace, other in zip(recorded, alone, strict=True):
        more = other.timeline.select(kind=["step", "forward", "backward", "gradient"])
        more = more.shifted(trace.timeline.end_s)
        both = Timeline.concat([trace.timeline, more])
        joined.append(attrs.evolve(trace, timeline=both))
    assert what_if(recorded).contention.compute == 1
    first_s = float(np.sort(slow.ready_s)[1])  # without allreduces, and so at full speed
    expected = (2 * LAYERS.backward_s - first_s) / (LAYERS.backward_s - first_s)
    assert what_if(joined).contention.compute == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("cap_mb", [None, *CAPS])
def test_one_allreduce_at_once_is_the_model_of_ddp(cap_mb: float | None) -> None:
    launched, contention = launches(LAYERS, default_buckets(LAYERS, cap_mb)), Contention(2.0, 1.5)
    table = CostTable((0.0, 1e6), (cost(0), cost(1e6)))
    expected = last_backward(LAYERS, launched, table, contention)
    step_s, wait_s = _modelled(LAYERS, launched, table, contention, 1)
    assert (step_s, wait_s) == pytest.approx((LAYERS.forward_s + expected.end_s, expected.wait_s))


def test_the_latency_of_the_second_of_two_at_once_is_hidden_and_both_are_slowed_less() -> None:
    """Two of 0.2 s and a latency of 0.1 s, slowed 3 times: 3 · 0.6 s in turn, or 2 · 0.3 s, then 3 · 0.2 s."""
    local = LocalStep.modelled([MIB, MIB], backward_s=1.0, forward_s=0.5, unpack_s=0.2)
    local = attrs.evolve(local, ready_s=np.zeros(2))
    table, contention = CostTable((0.0, MIB), (0.1, 0.3)), Contention(2.0, 3.0)
    launched = launches(local, default_buckets(local, 1.0))
    for at_once, backward_s in ((1, 1.8 + 0.1), (2, 1.2 + 0.4)):
        step_s, wait_s = _modelled(local, launched, table, contention, at_once)
        assert (step_s, wait_s) == pytest.approx((0.5 + backward_s + 0.2, 0.0))


def test_slowdown_and_latency_are_found_where_two_run_at_once() -> None:
    """Slowed threefold alone and twofold in pairs; the third, as long as the second, does not wait for a latency."""
    latency_s, per_byte_s = 0.004, 1e-8
    seconds = np.array([1e6, 2e6, 2e6, 8e6]) * per_byte_s + latency_s
    num_bytes = np.array([1e6, 2e6, 2e6 + latency_s / per_byte_s, 8e6])
    first_s, pair_s, backward_s = 3 * seconds[0], 2 * 2 * seconds[1], 1.0
    starts = [0.0, first_s, first_s, backward_s]
    stops = [first_s, first_s + pair_s, first_s + pair_s, backward_s + seconds[3]]
    ready_s = np.full((2, 1, 2, 1), backward_s)
    none = np.zeros((2, 1))
    calls_s = np.array([starts] * 2), np.array([stops] * 2)
    seen = _Seen(np.array([1]), num_bytes.astype(int), none, none, none, ready_s, none, calls_s, none)
    found, slow, at_once = _cost(seen)
    assert at_once == 2
    assert slow == pytest.approx(3.0, rel=1e-3)
    assert found.seconds == pytest.approx((latency_s, latency_s + 1e6 * per_byte_s), rel=1e-3)

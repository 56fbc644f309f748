"""`what_if`: traces that a model made give this model back, and its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from rankscope.diagnose import diagnose, read_traces, savings
from rankscope.diagnose.forecasts import change_words
from rankscope.diagnose.savings import SavingsForecast
from rankscope.diagnose.trace import Trace
from rankscope.timeline import Timeline
from rankscope.train.ddp import LocalStep, recommend

from .made_traces import LOADER_S, OPTIMIZER_S, write_traces

MIB = 1 << 20
LAYERS = LocalStep.modelled([MIB, 64 * 1024] * 11, backward_s=0.033, forward_s=0.015)
CAPS = (0.5, 1.0, 3.0, 7.0, 50.0)


def what_if(*traces_and_diagnosis: Any, **options: Any) -> SavingsForecast:
    forecast = savings.what_if(*traces_and_diagnosis, **options)
    assert isinstance(forecast, SavingsForecast)
    return forecast


def cost(num_bytes: float) -> float:
    return 0.0004 + num_bytes / 400e6


def test_traces_of_a_model_give_the_model_back(tmp_path: Path) -> None:
    forecast = what_if(read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0)), caps_mb=CAPS)
    exact = recommend(attrs.evolve(LAYERS, forward_s=LAYERS.forward_s + OPTIMIZER_S), cost, caps_mb=CAPS)
    expected = [cap.step_s for cap in (exact.default, *exact.candidates)]
    assert forecast.step_s == pytest.approx(forecast.model_s, rel=1e-4)
    assert [cap.num_buckets for cap in forecast.caps] == [cap.num_buckets for cap in (exact.default, *exact.candidates)]
    assert [cap.step_s for cap in forecast.caps] == pytest.approx(expected, rel=1e-3)
    assert max(forecast.contention.compute, forecast.contention.communication) < 1.01
    np.testing.assert_allclose(forecast.local.ready_s, LAYERS.ready_s, atol=1e-6)
    best = min(forecast.caps, key=lambda cap: cap.step_s)
    assert forecast.answers[0].what.startswith(f"bucket_cap_mb={best.bucket_cap_mb:g}, ")
    assert forecast.answers[0].step_s == best.step_s < forecast.step_s


def test_a_late_rank_is_no_slow_network_and_is_taken_out(tmp_path: Path) -> None:
    late = (0.0, 0.0, 0.03, 0.001)
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, late_s=late))
    forecast = what_if(traces, diagnose(traces), caps_mb=CAPS)
    bytes_per_s = 1e6 / (forecast.cost.seconds[1] - forecast.cost.seconds[0])
    assert bytes_per_s == pytest.approx(400e6, rel=1e-3)
    answers = {answer.what: answer for answer in forecast.answers}
    alone = answers["rank 2 as fast as the others (loader)"]
    assert forecast.step_s - alone.step_s == pytest.approx(0.03, rel=0.05)
    loaded = answers["a loader that never keeps a rank waiting"]
    assert forecast.step_s - loaded.step_s == pytest.approx(0.03 + LOADER_S, rel=1e-3)
    faster, bound = answers["a link 2 times as fast"], answers["allreduces that take no time (lower bound)"]
    assert bound.step_s < faster.step_s < forecast.step_s
    assert bound.step_s == pytest.approx(LAYERS.forward_s + 0.03 + OPTIMIZER_S + LAYERS.backward_s, rel=1e-4)
    assert forecast.to_frame().saved_share.tolist() == [answer.saved_share for answer in forecast.answers]
    assert "ms (" in str(forecast)


def test_without_sizes_each_bucket_counts_as_a_gradient_and_no_sizes_at_all_are_refused(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0))
    plain = [attrs.evolve(trace, gradient_bytes=np.full(trace.gradient_bytes.size, -1)) for trace in traces]
    forecast = what_if(plain, caps_mb=CAPS)
    assert [cap.num_buckets for cap in forecast.caps][-1] == 1
    assert forecast.local.sizes.size == max(cap.num_buckets for cap in forecast.caps) < len(LAYERS.parameters)
    assert forecast.local.num_bytes == LAYERS.num_bytes
    blind = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, shapes=False))
    with pytest.raises(ValueError, match="at least 3 steps with the same allreduces of gradients on every rank"):
        what_if(blind)


def with_late_stamp(trace: Trace, step: int, by_s: float = 0.001) -> Trace:
    """The same, with the last allreduce of a step stamped as done after the backward of the next one has begun."""
    begins_s = np.sort(trace.timeline.select(kind="backward").start_s)
    next_begin_s = begins_s[begins_s > trace.timeline.select(kind="step", item=step + 1).begin_s][0]
    stops_s = trace.calls.stop_s.copy()
    own = np.flatnonzero(trace.calls.launch_s < trace.timeline.select(kind="step", item=step).end_s)
    stops_s[own[-1]] = next_begin_s + by_s
    return attrs.evolve(trace, calls=attrs.evolve(trace.calls, stop_s=stops_s))


def test_a_step_with_a_late_stamp_is_skipped_and_counted(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, num_steps=8))
    whole = what_if(traces, caps_mb=CAPS)
    assert whole.skipped_steps == ()
    assert whole.notes == []
    forecast = what_if([with_late_stamp(traces[0], 3), traces[1]], caps_mb=CAPS)
    assert forecast.skipped_steps == (4,)
    assert [answer.what for answer in forecast.answers] == [answer.what for answer in whole.answers]
    assert [answer.step_s for answer in forecast.answers] == pytest.approx(
        [answer.step_s for answer in whole.answers], rel=0.02
    )
    assert "1 step was skipped, because a stamp came late" in str(forecast)
    both = what_if([with_late_stamp(traces[0], 3), with_late_stamp(traces[1], 5)], caps_mb=CAPS)
    assert both.skipped_steps == (4, 6)
    assert "2 steps were skipped" in str(both)


def test_where_no_step_is_left_late_stamps_are_named(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, num_steps=4))
    late = [with_late_stamp(with_late_stamp(traces[0], 0), 1), with_late_stamp(traces[1], 2)]
    with pytest.raises(ValueError, match="have 0 such steps after the first, and 3 steps with late stamps"):
        what_if(late)


def test_ranks_that_are_late_together_are_taken_out_together(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, late_s=(0.03, 0.03, 0.0, 0.0)))
    forecast = what_if(traces, diagnose(traces), caps_mb=CAPS)
    answers = {answer.what: answer for answer in forecast.answers}
    assert forecast.step_s - answers["ranks 0 and 1 as fast as the others (loader)"].step_s == pytest.approx(
        0.03, rel=0.05
    )
    assert not any(change.startswith("rank ") for change in answers)


def test_times_are_in_one_unit_and_no_change_is_printed_as_zero(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0, late_s=(0.0, 0.0, 0.03, 0.001)))
    text = str(what_if(traces, diagnose(traces), caps_mb=CAPS))
    assert text.startswith("The median step takes ")
    assert "µs" not in text
    assert "(-0.0 %)" not in text
    assert "(+0.0 %)" not in text
    assert [change_words(share) for share in (0.1234, -0.02, 0.0004, -0.0004, 0.0)] == ["-12.3 %", "+2.0 %", "", "", ""]


def test_steps_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    traces = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=5.0))
    other = read_traces(write_traces(tmp_path, LAYERS, cost, cap_mb=4.0))
    with pytest.raises(ValueError, match="have 0 such steps"):
        what_if([traces[0], other[1]])
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

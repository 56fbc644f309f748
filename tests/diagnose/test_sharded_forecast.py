"""`what_if` for FSDP: steps with known times, recorded with one setting, give those with another."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import attrs
import numpy as np
import pytest

from rankscope.diagnose import diagnose, what_if
from rankscope.diagnose import sharded_forecast as sharded_forecast_module
from rankscope.diagnose import sharded_steps as sharded_steps_module
from rankscope.diagnose.sharded_forecast import ShardedForecast, sharded_forecast
from rankscope.diagnose.trace import Trace
from rankscope.timeline import Timeline

from .made_sharded import ShardedMaker

UNEVEN_US = [[1000.0, 2000.0, 1500.0], [1700.0, 1100.0, 1600.0]]  # each rank is last somewhere
BYTES = [4 << 20, 1 << 20, 256 << 10]
STEPS = 5


def job(
    folder: Path,
    reshard: bool = True,
    num_bytes: list[int] = BYTES,
    alpha_us: float = 200.0,
    per_byte_us: float = 1e-3,
    num_steps: int = STEPS,
    forward_us: list[list[float]] = UNEVEN_US,
) -> tuple[ShardedMaker, tuple[Trace, ...]]:
    maker = ShardedMaker(forward_us, num_bytes, alpha_us, per_byte_us)
    for number in range(num_steps):
        maker.step(number, reshard)
    return maker, maker.traces(folder)


@pytest.mark.parametrize("reshard", [True, False])
def test_the_replay_gives_the_recorded_step_and_that_of_the_other_setting(tmp_path: Path, reshard: bool) -> None:
    maker, traces = job(tmp_path / "recorded", reshard)
    other, _ = job(tmp_path / "other", not reshard)
    forecast = sharded_forecast(traces)
    assert forecast.settings.reshard_after_forward is reshard
    assert forecast.settings.prefetch == 0
    assert forecast.step_s == pytest.approx(maker.step_s, rel=1e-4)
    assert forecast.model_s == pytest.approx(maker.step_s, rel=1e-3)
    answer = forecast.with_changes(reshard_after_forward=not reshard)
    assert answer.step_s == pytest.approx(other.step_s, rel=2e-3)
    assert answer.low_s <= answer.step_s <= answer.high_s
    assert abs(maker.step_s - other.step_s) > 0.1 * maker.step_s
    assert forecast.with_changes().step_s == pytest.approx(forecast.step_s, rel=1e-9)


def test_a_wrong_recorded_setting_gives_another_step(tmp_path: Path) -> None:
    """The comparison above can fail: predicted for the same setting, the other job's step is missed."""
    _, traces = job(tmp_path / "recorded")
    other, _ = job(tmp_path / "other", reshard=False)
    assert sharded_forecast(traces).with_changes().step_s != pytest.approx(other.step_s, rel=0.05)


def test_bandwidth_and_latency_are_separate_if_sizes_differ(tmp_path: Path) -> None:
    _, traces = job(tmp_path / "recorded")
    forecast = sharded_forecast(traces)
    wider, _ = job(tmp_path / "wider", per_byte_us=0.5e-3)
    nearer, _ = job(tmp_path / "nearer", alpha_us=100.0)
    for made, answer in (
        (wider, forecast.with_changes(times_bandwidth=2)),
        (nearer, forecast.with_changes(times_latency=0.5)),
    ):
        assert answer.step_s == pytest.approx(made.step_s, rel=5e-3)
        assert answer.high_s - answer.low_s < 0.01 * answer.step_s


def test_equal_sizes_leave_a_range_between_latency_and_bandwidth(tmp_path: Path) -> None:
    equal = [1 << 20] * 3
    maker, traces = job(tmp_path / "recorded", num_bytes=equal)
    wider, _ = job(tmp_path / "wider", num_bytes=equal, per_byte_us=0.5e-3)
    answer = sharded_forecast(traces).with_changes(times_bandwidth=2)
    assert answer.low_s < wider.step_s < answer.high_s
    assert answer.high_s == pytest.approx(maker.step_s, rel=1e-3)  # if all of it were latency
    both = sharded_forecast(traces).with_changes(times_bandwidth=2, times_latency=0.5)
    faster, _ = job(tmp_path / "faster", num_bytes=equal, alpha_us=100.0, per_byte_us=0.5e-3)
    assert both.step_s == pytest.approx(faster.step_s, rel=1e-3)


def test_both_errors_of_a_range_have_the_same_probability() -> None:
    """The range of their sum has it, too, which ranges of 80 % and of 90 % have not."""
    least, most = sharded_forecast_module._RANGE
    normal = NormalDist()
    assert normal.inv_cdf(most) == pytest.approx(-normal.inv_cdf(least))
    assert normal.inv_cdf(most) == pytest.approx(sharded_forecast_module._SIGMAS_OF_90_PERCENT, rel=0.01)


def test_a_late_rank_is_taken_out_where_it_is_late(tmp_path: Path) -> None:
    even = [[1500.0] * 3 for _ in range(4)]
    late = [list(row) for row in even]
    late[2][1] += 20000.0
    _, traces = job(tmp_path / "late", num_steps=10, forward_us=late)
    calm, _ = job(tmp_path / "calm", num_steps=10, forward_us=even)
    forecast = what_if(traces, diagnose(traces))
    assert isinstance(forecast, ShardedForecast)
    answers = {answer.what.partition(" (")[0]: answer for answer in forecast.answers}
    assert answers["rank 2 as fast as the others"].step_s == pytest.approx(calm.step_s, rel=5e-3)
    assert "reshard_after_forward=False" in answers
    assert "a link 2 times as fast" in answers
    assert list(forecast.to_frame().columns) == ["what", "step_s", "saved_share", "low_s", "high_s"]
    assert "Recorded with reshard_after_forward=True and prefetch=0" in str(forecast)


def test_steps_beyond_the_limit_are_not_called_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the last steps are used, but the ranks recorded the same collectives in all of them."""
    monkeypatch.setattr(sharded_steps_module, "_MOST_VALUES", 1)
    forecast = sharded_forecast(job(tmp_path / "recorded")[1])
    assert len(forecast.steps.window_s) == 2
    assert forecast.skipped_steps == ()
    assert "skipped" not in str(forecast)


def test_a_step_with_another_collective_in_a_part_is_called_skipped(tmp_path: Path) -> None:
    """As if each rank had made an allreduce in the place of an all-gather of step 3."""
    forecast = sharded_forecast([with_allreduce(trace, step=3) for trace in job(tmp_path / "recorded")[1]])
    assert forecast.skipped_steps == (3,)
    assert "1 step was skipped" in str(forecast)


def with_allreduce(trace: Trace, step: int) -> Trace:
    """The same, with an allreduce in the place of the first all-gather of a step."""
    calls = trace.calls
    begin_s = trace.timeline.select(kind="step", item=step).begin_s
    is_later_gather = (calls.launch_s > begin_s) & (calls.kind == calls.kinds.index("allgather"))
    kind = calls.kind.copy()
    kind[np.flatnonzero(is_later_gather)[0]] = len(calls.kinds)
    return attrs.evolve(trace, calls=attrs.evolve(calls, kind=kind, kinds=(*calls.kinds, "allreduce")))


# ---- refusals


def test_traces_that_cannot_tell_are_refused(tmp_path: Path) -> None:
    _, traces = job(tmp_path / "recorded")
    with pytest.raises(ValueError, match="what_if needs the FSDP traces of all 2 ranks, got 1"):
        what_if(traces[:1])
    with pytest.raises(ValueError, match="at least 3 steps of FSDP .*, and have 1 such step"):
        what_if(job(tmp_path / "short", num_steps=2)[1])
    _, other = job(tmp_path / "other", reshard=False)
    with pytest.raises(ValueError, match="at least 3 steps of FSDP .*, and have 0 such steps"):
        what_if([traces[0], other[1]])
    mixed = ShardedMaker(UNEVEN_US, BYTES, alpha_us=200.0, per_byte_us=1e-3)
    for number in range(3):
        mixed.step(number, reshard=number == 2)
    with pytest.raises(ValueError, match="at least 3 steps of FSDP .*, and have 1 such step"):
        what_if(mixed.traces(tmp_path / "mixed"))
    for old, new, message in (
        ("FSDP::all_gather (layers.0)", "FSDP::all_gather (layers.0) [pg=2]", "one group of FSDP per module"),
        ("FSDP::all_gather (layers.0)", "FSDP::all_gather (layers.0, layers.1)", "one module per group"),
    ):
        with pytest.raises(ValueError, match=message):
            what_if([renamed(trace, old, new) for trace in traces])


def test_gathers_in_an_order_of_no_setting_are_refused(tmp_path: Path) -> None:
    """As if backward gathered another group than the one before it."""
    swapped = []
    for trace in job(tmp_path / "recorded")[1]:
        trace = renamed(trace, "FSDP::pre_forward (layers.0)", "FSDP::pre_forward (layers.9)")
        trace = renamed(trace, "FSDP::pre_forward (layers.1)", "FSDP::pre_forward (layers.0)")
        swapped.append(renamed(trace, "FSDP::pre_forward (layers.9)", "FSDP::pre_forward (layers.1)"))
    with pytest.raises(ValueError, match="the recorded all-gathers are in another order"):
        what_if(swapped)


def renamed(trace: Trace, old: str, new: str) -> Trace:
    timeline = trace.timeline
    kinds = tuple([f"range: {new}" if kind == f"range: {old}" else kind for kind in timeline.kinds])
    return attrs.evolve(trace, timeline=attrs.evolve(timeline, kinds=kinds))


def test_gpus_are_refused(tmp_path: Path) -> None:
    traces = []
    for trace in job(tmp_path / "recorded")[1]:
        lanes = tuple(["stream 7" if lane == "gloo" else lane for lane in trace.timeline.lanes])
        traces.append(attrs.evolve(trace, timeline=attrs.evolve(trace.timeline, lanes=lanes)))
    with pytest.raises(ValueError, match="only on CPUs, and these traces are of GPUs"):
        what_if(traces)
    assert isinstance(traces[0].timeline, Timeline)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times_bandwidth": 0}, "times_bandwidth must be .*, got 0"),
        ({"times_latency": -1}, "times_latency must be .*, got -1"),
        ({"prefetch": -1}, "prefetch must be a whole number from 0 to 1000, got -1"),
        ({"reshard_after_forward": 2}, "reshard_after_forward must be True or False, got 2"),
    ],
)
def test_wrong_changes_are_refused(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    forecast = sharded_forecast(job(tmp_path / "recorded")[1])
    with pytest.raises(ValueError, match=message):
        forecast.with_changes(**changes)  # type: ignore[arg-type]

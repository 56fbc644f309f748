"""`diagnose` on jobs made by code, of which every late rank and cause is known, and on real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.diagnose import diagnose, read_traces
from rankscope.diagnose.late_ranks import lateness
from rankscope.diagnose.own_times import own_times
from rankscope.diagnose.trace import PHASES, Trace
from rankscope.timeline import Span, Timeline
from tests.diagnose.jobs import CAUSES, Job, run_jobs
from tests.diagnose.made_jobs import BUCKETS, RANKS, STEPS, RankRecord, job, on_rank, phases

WAYS = [{}, {"gpu": True}, {"buffers": True}, {"metric": True}, {"buffers": True, "metric": True}, {"by_hand": True}]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "_".join(way) or "plain")
@pytest.mark.parametrize("cause", CAUSES)
def test_the_late_rank_and_its_cause_are_named_and_cost_what_their_absence_saves(cause, way):
    healthy = diagnose(job(phases(), **way))
    assert healthy.culprits == []
    assert "balanced" in str(healthy)
    for rank in range(RANKS):
        delay_s = 0.06 if rank % 2 else 0.02
        diagnosis = diagnose(job(phases(**{cause: on_rank(rank, delay_s)}), **way))
        assert [(culprit.rank, culprit.cause) for culprit in diagnosis.culprits] == [(rank, cause)]
        assert diagnosis.culprits[0].cost_s == pytest.approx(diagnosis.step_s - healthy.step_s, rel=0.1)


def test_the_longest_backward_would_name_another_rank():
    traces = job(phases(backward=on_rank(2)))
    took_s = []
    for trace in traces:  # what loss.backward() takes: until the last bucket is reduced
        begins_s = trace.timeline.select(kind="backward").start_s
        took_s.append(float((trace.calls.stop_s[1::2] - begins_s).mean()))
    assert max(took_s) < 1.05 * min(took_s)  # the others wait inside theirs
    assert int(np.argmax(took_s)) != 2
    assert diagnose(traces).culprits[0][:2] == (2, "backward")


def test_every_fourth_step_two_ranks_and_two_culprits():
    diagnosis = diagnose(job(phases(loader=on_rank(3, every=4))))
    assert diagnosis.culprits[0][:2] == (3, "loader")
    assert "2 of 9 steps: its loader takes 63.9 ms in these, compared with 4.01 ms" in str(diagnosis)
    assert diagnose(job(phases(2, forward=on_rank(1, num_ranks=2)))).culprits[0][:2] == (1, "forward")
    both = phases(loader=on_rank(0, 0.08), backward=on_rank(2, 0.05))
    diagnosis = diagnose(job(both))
    assert [culprit[:2] for culprit in diagnosis.culprits] == [(0, "loader"), (2, "backward")]
    saved_s = [
        diagnosis.step_s - diagnose(job(phases(**delays))).step_s for delays in ({"backward": on_rank(2, 0.05)}, {})
    ]
    assert np.cumsum([culprit.cost_s for culprit in diagnosis.culprits]) == pytest.approx(saved_s, rel=0.05)
    on_one = phases(loader=on_rank(1, 0.04), forward=on_rank(1, 0.05))
    assert [culprit[:2] for culprit in diagnose(job(on_one)).culprits] == [(1, "forward"), (1, "loader")]


def test_a_rank_that_is_late_too_seldom_to_be_named_is_not_called_balanced():
    seconds = phases(steps=12, loader=0.1)
    seconds["host"][[4, 8], 3] += 0.05  # of steps of 0.14 s
    diagnosis = diagnose(job(seconds))
    assert diagnosis.culprits == []
    assert "balanced" not in str(diagnosis)
    assert f"2 of 11 steps, by {_number(diagnosis.late_s[[3, 7], 3].mean())} ms" in str(diagnosis)
    seconds["host"][4, 3] -= 0.05
    assert "balanced" in str(diagnose(job(seconds)))


def _number(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def test_where_the_late_rank_has_no_trace_nobody_is_named_or_called_balanced():
    traces = [replace(trace, group_ranks={"0": (0, 1, 2, 3)}) for trace in job(phases(forward=on_rank(2, 0.07)))]
    diagnosis = diagnose([*traces[:2], traces[3]])
    assert (diagnosis.culprits, diagnosis.missing) == ([], (2,))
    assert diagnosis.waiting_s.min(axis=1).mean() == pytest.approx(0.07, rel=0.1)
    assert f"wait {_number(diagnosis.exposed_s)} ms per step, perhaps for rank 2" in str(diagnosis)
    assert "balanced" not in str(diagnosis)
    assert "perhaps for ranks 2 and 3" in str(diagnose(traces[:2]))
    there = diagnose(traces[1:])  # the late one is
    assert there.culprits[0].rank == 2
    assert "perhaps" not in str(there)
    healthy = [replace(trace, group_ranks={"0": (0, 1, 2, 3)}) for trace in job(phases())][1:]
    assert "balanced" not in str(diagnose(healthy))


def test_the_verdict_states_means_over_all_steps_where_a_rank_is_late_in_each():
    late_s = on_rank(2, 0.06)
    late_s[3, 2] = 0.4  # and one bad step
    late_s[::2, 0] += 0.02
    diagnosis = diagnose(job(phases(backward=late_s)))
    backward_s = diagnosis.phase_s[:, :, PHASES.index("backward")]
    usual_s = np.median(np.delete(backward_s, 2, axis=1), axis=1).mean()
    for seconds in (diagnosis.late_s.mean(axis=0)[2], backward_s[:, 2].mean(), usual_s):
        assert f" {_number(seconds)} ms" in str(diagnosis)


def test_one_bad_step_of_a_balanced_job_names_nobody():
    late_s = np.zeros((STEPS, RANKS))
    late_s[4, 1] = 0.5
    assert diagnose(job(phases(host=late_s))).culprits == []
    late_s[6, 1] = 0.5
    diagnosis = diagnose(job(phases(host=late_s)))
    assert diagnosis.culprits[0][:2] == (1, "host")
    assert "in 2 of 9 steps" in str(diagnosis)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_rank_that_is_slower_in_all_it_does_is_not_called_starved(gpu):
    """A throttled GPU or CPU looks like this, and so does a shared core: the traces of a profiler do not tell which."""
    for factor in (1.5, 2.5):
        seconds = {name: phase_s.copy() for name, phase_s in phases().items()}
        for phase_s in seconds.values():
            phase_s[:, 2] *= factor
        diagnosis = diagnose(job(seconds, gpu=gpu))
        assert [culprit[:2] for culprit in diagnosis.culprits] == [(2, "slower")]
        assert f"{factor} times" in str(diagnosis)
    seconds["forward"][:, 2] = seconds["forward"][:, 1]  # a part that is as fast as on the others
    assert "slower" not in {culprit.cause for culprit in diagnose(job(seconds, gpu=gpu)).culprits}


def test_time_without_a_core_is_a_cause_where_it_was_recorded():
    own_s = np.full((STEPS, RANKS, len(PHASES)), 0.01)
    own_s[:, 1, PHASES.index("backward")] += 0.05
    window_s, starved_s = np.full((STEPS, RANKS), 0.12), np.zeros((STEPS, RANKS))
    assert lateness(range(RANKS), window_s, own_s, starved_s).culprits[0].cause == "backward"
    starved_s[:, 1] = 0.04
    assert lateness(range(RANKS), window_s, own_s, starved_s).culprits[0].cause == "starved"
    starved_s[:, 1] = 0.02  # less than half of the 50 ms that it takes longer
    assert lateness(range(RANKS), window_s, own_s, starved_s).culprits[0].cause == "backward"
    spans = [Span(0, "cpu", "starved", step, 1.0, 1.0 + 0.001 * step) for step in range(STEPS)]
    trace = job(phases())[0]
    trace = replace(trace, timeline=Timeline.concat([trace.timeline, Timeline.of(spans)]))
    assert own_times(trace).starved_s == pytest.approx(0.001 * np.arange(1, STEPS))


def test_copies_to_the_gpu_are_a_cause():
    traces = job(phases(host=on_rank(1)), gpu=True)
    loads = traces[1].timeline.select(kind="loader")
    late = [Span(1, "stream 9", "memcpy h2d", 1 << 20, stop_s, stop_s + 0.06) for stop_s in loads.stop_s]
    traces[1] = replace(traces[1], timeline=Timeline.concat([traces[1].timeline, Timeline.of(late)]))
    assert diagnose(traces).culprits[0][:2] == (1, "h2d")


def test_own_time_and_waiting_make_up_each_window():
    for way in WAYS:
        diagnosis = diagnose(job(phases(forward=on_rank(1)), **way))
        assert diagnosis.host_s.sum(axis=2) == pytest.approx(diagnosis.phase_s[..., PHASES.index("host")])
        assert diagnosis.phase_s.sum(axis=2) + diagnosis.waiting_s == pytest.approx(diagnosis.window_s)
        assert np.ptp(diagnosis.window_s, axis=1) == pytest.approx(0, abs=1e-9)
        frame = diagnosis.to_frame()
        assert len(frame) == (STEPS - 1) * RANKS
        assert frame.own_s.to_numpy() == pytest.approx(frame[[f"{kind}_s" for kind in PHASES]].sum(axis=1).to_numpy())
        assert frame.groupby("rank").late_s.mean().idxmax() == 1


def test_buckets_are_named_and_share_what_is_exposed():
    diagnosis = diagnose(job(phases(forward=on_rank(1)), buffers=True, metric=True))
    names = {bucket.name: bucket for bucket in diagnosis.buckets}
    assert list(names) == ["broadcast 0 in forward", "DDP bucket 0", "DDP bucket 1", "allreduce 0 between phases"]
    assert [names[f"DDP bucket {place}"].num_bytes for place in range(2)] == [*BUCKETS]
    assert names["DDP bucket 1"].last_rank == 1
    assert names["DDP bucket 1"].late_s == pytest.approx(0.06, rel=0.1)
    assert sum(bucket.exposed_s for bucket in diagnosis.buckets) == pytest.approx(diagnosis.exposed_s, rel=0.01)
    assert diagnosis.hidden_s > 0
    assert sum(bucket.hidden_s for bucket in diagnosis.buckets) == pytest.approx(diagnosis.hidden_s, rel=0.01)


def test_the_second_culprit_of_two_ranks_is_late_once_the_first_is_mended():
    seconds = phases(2, loader=on_rank(0, 0.08, num_ranks=2), backward=on_rank(1, 0.05, num_ranks=2))
    diagnosis = diagnose(job(seconds))
    assert [culprit[:2] for culprit in diagnosis.culprits] == [(0, "loader"), (1, "backward")]
    assert "would be the next that is late" in str(diagnosis)


def test_a_bucket_that_queues_behind_another_is_not_hidden_by_that():
    traces = job(phases(forward=on_rank(1)))
    queued = []
    for trace in traces:  # the second bucket is launched with the first, and waits until that is done
        calls, launch_s = trace.calls, trace.calls.launch_s.copy()
        launch_s[1::2] = launch_s[::2] + 1e-6
        queued.append(replace(trace, calls=replace(calls, launch_s=launch_s)))
    diagnosis = diagnose(queued)
    assert sum(bucket.hidden_s for bucket in diagnosis.buckets) == pytest.approx(diagnosis.hidden_s, rel=0.01)
    assert sum(bucket.exposed_s + bucket.hidden_s for bucket in diagnosis.buckets) < diagnosis.step_s
    took_s = np.mean([trace.calls.stop_s - trace.calls.launch_s for trace in queued], axis=0)
    both_s = [bucket.exposed_s + bucket.hidden_s for bucket in diagnosis.buckets]
    assert both_s[1] < 0.5 * took_s[3::2].mean()


@pytest.mark.parametrize("has_ranges", [True, False])
def test_the_collectives_of_fsdp_are_named_if_the_trace_has_its_ranges(has_ranges: bool) -> None:
    traces = []
    for trace in job(phases(), buffers=True):
        kinds = (*trace.timeline.kinds, "range: FSDP::all_gather (layer)") if has_ranges else trace.timeline.kinds
        calls = replace(trace.calls, kinds=("reduce_scatter", "allgather"))
        traces.append(replace(trace, calls=calls, timeline=replace(trace.timeline, kinds=kinds)))
    names = [bucket.name.removeprefix("FSDP ") for bucket in diagnose(traces).buckets]
    assert names == ["allgather 0 in forward", *(f"reduce_scatter {place} in backward" for place in (0, 1))]
    assert all(bucket.name.startswith("FSDP ") == has_ranges for bucket in diagnose(traces).buckets)


def test_traces_that_do_not_fit_say_so_first():
    traces = job(phases(forward=on_rank(1)))
    assert "only one rank" in str(diagnose(traces[:1]))
    assert diagnose(traces[:1]).culprits == []
    shorter = job(phases(steps=7))[3]
    diagnosis = diagnose([*traces[:3], shorter])
    assert diagnosis.steps == tuple(range(1, 7))
    assert "6 steps" in diagnosis.problems[0]
    assert diagnosis.culprits[0][:2] == (1, "forward")
    whole = [replace(trace, group_ranks={"0": (0, 1, 2, 3)}) for trace in traces]
    assert diagnose(whole[:3]).missing == (3,)
    calls = traces[2].calls
    other = replace(calls, num_bytes=np.where(np.arange(len(calls)) == 4, 5, calls.num_bytes))
    odd = diagnose([*traces[:2], replace(traces[2], calls=other), traces[3]])
    assert "Rank 2 made allreduce of 5 bytes" in odd.problems[0]
    assert odd.culprits[0][:2] == (1, "forward")


def test_traces_without_steps_or_collectives():
    traces = job(phases())
    spans = traces[1].timeline
    without = replace(traces[1], timeline=spans.select(kind=[kind for kind in spans.kinds if kind != "step"]))
    with pytest.raises(ValueError, match="has no steps"):
        diagnose([traces[0], without])
    alone = diagnose([_silent(trace) for trace in traces])
    assert (alone.culprits, alone.exposed_s, len(alone.steps)) == ([], 0.0, STEPS)
    assert f"{_number(alone.window_s.mean())} ms" in str(alone)
    assert diagnose(job(phases(steps=1))).steps == (0,)


def _silent(trace: Trace) -> Trace:
    return replace(trace, calls=RankRecord(trace.rank, 0.0).trace().calls)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(RANKS)), st.sampled_from(CAUSES), st.integers(0, RANKS - 1))
def test_ranks_have_no_order(order, cause, rank):
    seconds = phases(**{cause: on_rank(rank)})
    before = diagnose(job(seconds)).culprits
    after = diagnose(job({name: phase_s[:, list(order)] for name, phase_s in seconds.items()})).culprits
    assert (
        [(order[culprit.rank], culprit.cause) for culprit in after]
        == [culprit[:2] for culprit in before]
        == [(rank, cause)]
    )
    assert [culprit.cost_s for culprit in after] == pytest.approx([culprit.cost_s for culprit in before])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=RANKS, max_size=RANKS), st.sampled_from(CAUSES))
def test_clocks_do_not_matter(shifts_s, cause):
    traces = job(phases(**{cause: on_rank(2)}))
    moved = []
    for trace, shift_s in zip(traces, shifts_s, strict=True):
        times = {name: getattr(trace.calls, name) + shift_s for name in ("launch_s", "start_s", "stop_s")}
        moved.append(replace(trace, timeline=trace.timeline.shifted(shift_s), calls=replace(trace.calls, **times)))
    before, after = diagnose(traces), diagnose(moved)
    assert [culprit[:2] for culprit in after.culprits] == [culprit[:2] for culprit in before.culprits] == [(2, cause)]
    assert after.phase_s == pytest.approx(before.phase_s, abs=1e-6)


@pytest.mark.slow
def test_a_real_late_rank_is_named(tmp_path):
    """The delay is ten times a phase, so that a busy machine does not hide it."""
    late = [Job("forward", 2, 0.2, num_steps=6, batch_norm=True), Job("loader", 1, 0.2, num_steps=6, metric=True)]
    for ran in run_jobs(tmp_path, late):
        diagnosis = diagnose(read_traces(ran.folder))
        assert diagnosis.culprits[0][:2] == (ran.job.rank, ran.job.cause)
        assert diagnosis.problems == ()
        assert [bucket.name for bucket in diagnosis.buckets if bucket.name.startswith("DDP")] == [
            f"DDP bucket {n}" for n in range(4)
        ]

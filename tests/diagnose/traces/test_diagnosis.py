"""`diagnose` on jobs made by code, of which every late rank and cause is known, and on real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.diagnose import diagnose, read_traces
from rankscope.diagnose.traces.trace import PHASES
from rankscope.timeline import Span, Timeline
from tests.diagnose.traces.jobs import CAUSES, Job, run_jobs
from tests.diagnose.traces.made_jobs import RANKS, STEPS, job, on_rank, phases

WAYS = [{}, {"gpu": True}, {"buffers": True}, {"metric": True}, {"buffers": True, "metric": True}, {"by_hand": True}]


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


def test_every_fourth_step_two_ranks_and_two_culprits():
    diagnosis = diagnose(job(phases(loader=on_rank(3, every=4))))
    assert [culprit[:2] for culprit in diagnosis.culprits] == [(3, "loader")]
    assert "in 2 of 9 steps" in str(diagnosis)
    assert diagnose(job(phases(2, forward=on_rank(1, num_ranks=2)))).culprits[0][:2] == (1, "forward")
    diagnosis = diagnose(job(phases(loader=on_rank(0, 0.08), backward=on_rank(2, 0.05))))
    assert {culprit[:2] for culprit in diagnosis.culprits} == {(0, "loader"), (2, "backward")}
    saved_s = diagnosis.step_s - diagnose(job(phases())).step_s
    assert sum(culprit.cost_s for culprit in diagnosis.culprits) == pytest.approx(saved_s, rel=0.05)


def test_where_the_late_rank_has_no_trace_nobody_is_named_or_called_balanced():
    traces = [replace(trace, num_ranks=4) for trace in job(phases(forward=on_rank(2, 0.07)))]
    diagnosis = diagnose([*traces[:2], traces[3]])
    assert diagnosis.culprits == []
    assert diagnosis.waiting_s.min(axis=1).mean() == pytest.approx(0.07, rel=0.1)
    assert "no trace of rank 2" in str(diagnosis)
    assert "balanced" not in str(diagnosis)
    assert diagnose(traces[1:]).culprits[0].rank == 2  # the late one is there
    unread = [replace(trace, left_out=("rank4.json: cut short",)) for trace in job(phases())]
    assert "balanced" not in str(diagnose(unread))
    assert "rank4.json" in diagnose(unread).problems[0]


def test_copies_to_the_gpu_are_a_cause():
    traces = job(phases(host=on_rank(1)), gpu=True)
    loads = traces[1].timeline.select(kind="loader")
    late = [Span(1, "stream 9", "memcpy h2d", 1 << 20, stop_s, stop_s + 0.06) for stop_s in loads.stop_s]
    traces[1] = replace(traces[1], timeline=Timeline.concat([traces[1].timeline, Timeline.of(late)]))
    assert diagnose(traces).culprits[0][:2] == (1, "h2d")


def test_own_time_and_waiting_make_up_each_window():
    for way in WAYS:
        diagnosis = diagnose(job(phases(forward=on_rank(1)), **way))
        assert diagnosis.phase_s.sum(axis=2) + diagnosis.waiting_s == pytest.approx(diagnosis.window_s)
        assert np.ptp(diagnosis.window_s, axis=1) == pytest.approx(0, abs=1e-9)
        assert diagnosis.phase_s.shape == (STEPS - 1, RANKS, len(PHASES))
        assert diagnosis.late_s.mean(axis=0).argmax() == 1


def test_traces_that_do_not_fit_say_so_first():
    traces = job(phases(forward=on_rank(1)))
    assert "only one rank" in str(diagnose(traces[:1]))
    assert diagnose(traces[:1]).culprits == []
    diagnosis = diagnose([*traces[:3], job(phases(steps=7))[3]])
    assert diagnosis.steps == tuple(range(1, 7))
    assert diagnosis.culprits[0][:2] == (1, "forward")
    assert "no trace of rank 3" in str(diagnose([replace(trace, num_ranks=4) for trace in traces[:3]]))
    assert diagnose(job(phases(steps=1))).steps == (0,)


def test_accumulated_gradients_are_reduced_in_every_second_step():
    """The window of such a step has all of its micro-batches."""
    traces = []
    for trace in job(phases(backward=on_rank(3))):
        starts_s = trace.timeline.select(kind="step").start_s
        reduced = [call for call in trace.calls if np.searchsorted(starts_s, call.launch_s, side="right") % 2 == 0]
        traces.append(replace(trace, calls=tuple(reduced)))
    diagnosis = diagnose(traces)
    assert diagnosis.steps == (3, 5, 7, 9)
    assert diagnosis.culprits[0][:2] == (3, "backward")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=RANKS, max_size=RANKS), st.sampled_from(CAUSES))
def test_clocks_do_not_matter(shifts_s, cause):
    traces = job(phases(**{cause: on_rank(2)}))
    moved = []
    for trace, shift_s in zip(traces, shifts_s, strict=True):
        calls = []
        for call in trace.calls:
            launch_s, start_s, stop_s = (at_s + shift_s for at_s in (call.launch_s, call.start_s, call.stop_s))
            calls.append(call._replace(launch_s=launch_s, start_s=start_s, stop_s=stop_s))
        moved.append(replace(trace, timeline=trace.timeline.shifted(shift_s), calls=tuple(calls)))
    before, after = diagnose(traces), diagnose(moved)
    assert [culprit[:2] for culprit in after.culprits] == [culprit[:2] for culprit in before.culprits] == [(2, cause)]
    assert after.phase_s == pytest.approx(before.phase_s, abs=1e-6)


@pytest.mark.slow
def test_a_real_late_rank_is_named(tmp_path):
    """The delay is many times a phase, so that a busy machine does not hide it."""
    jobs = [Job("forward", 2, 0.8, num_steps=6, batch_norm=True), Job("loader", 1, 0.8, num_steps=6, metric=True)]
    jobs += [Job(cause, 1, 0.8, num_steps=6, is_sharded=True) for cause in ("forward", "backward")]
    for ran in run_jobs(tmp_path, jobs):
        diagnosis = diagnose(read_traces(ran.folder))
        assert diagnosis.culprits[0][:2] == (ran.job.rank, ran.job.cause)
        assert diagnosis.problems == ()
        names = {call.name: call.num_calls for call in diagnosis.calls}
        assert names["FSDP allgather in forward" if ran.job.is_sharded else "allreduce in backward"] >= 4

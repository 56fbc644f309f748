"""Pipelines: torch's schedules, the papers' closed forms, the longest path of a graph, and real ranks."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from itertools import chain, combinations
from typing import Any

import pytest
import torch

from rankscope.timeline import Timeline
from rankscope.train.pipeline_parallel import (
    SCHEDULES,
    PipelineError,
    PipelineSchedule,
    bubble_share,
    build,
    measure,
    messages,
    simulate,
    verify,
)
from rankscope.train.pipeline_parallel.explorer import bubbles
from rankscope.train.pipeline_parallel.run import MESSAGE_BYTES
from rankscope.train.pipeline_parallel.schedule import Pass, Rows, ScheduleKind
from tests.extents import first_in_test

SIZES = [("GPipe", 1), ("1F1B", 1), *((name, 2) for name in list(SCHEDULES)[2:]), ("Interleaved1F1B", 3)]
EVERY = [build(name, p, m, v) for name, v in SIZES for p, m in ((1, 4), (2, 4), (3, 9), (4, 8), (4, 10))]


@pytest.mark.parametrize(("forward_s", "inputs_s", "weights_s"), [(1, 1, 1), (1, 1.25, 0.75), (3, 2, 2)])
@pytest.mark.parametrize(("p", "m"), first_in_test(2, [(2, 4), (4, 16), (8, 32)]))
def test_bubbles_are_the_papers(forward_s: float, inputs_s: float, weights_s: float, p: int, m: int) -> None:
    backward_s = inputs_s + weights_s

    def idle_s(name: str, num_chunks: int) -> float:
        share = weights_s / backward_s
        timeline = simulate(build(name, p, m, num_chunks), forward_s, backward_s, weights_share=share)
        return bubble_share(timeline) / (1 - bubble_share(timeline)) * m * (forward_s + backward_s)

    assert idle_s("GPipe", 1) == pytest.approx((p - 1) * (forward_s + backward_s))
    assert idle_s("1F1B", 1) == pytest.approx((p - 1) * (forward_s + backward_s))
    for v in (2, 4):
        assert idle_s("LoopedBFS", v) == pytest.approx((p - 1) * (forward_s + backward_s) / v)
        assert idle_s("Interleaved1F1B", v) == pytest.approx((p - 1) * (forward_s + backward_s) / v)
        assert idle_s("InterleavedZeroBubble", v) == pytest.approx((p - 1) * (forward_s + inputs_s - weights_s) / v)
    if forward_s == inputs_s == weights_s:
        assert idle_s("ZBVZeroBubble", 2) == pytest.approx(0, abs=1e-9)


def test_activations_in_flight_are_the_papers() -> None:
    for p, m in ((2, 4), (4, 8), (4, 16)):
        flight = {name: build(name, p, m).activations_in_flight() for name in SCHEDULES}
        assert flight["GPipe"] == (m,) * p
        assert flight["1F1B"] == tuple(p - rank for rank in range(p))
        assert flight["LoopedBFS"] == (2 * m,) * p
        assert flight["Interleaved1F1B"] == tuple(p + 2 * (p - 1 - rank) + 1 for rank in range(p))
        for name in ("InterleavedZeroBubble", "ZBVZeroBubble"):  # as much as p whole stages, as 1F1B's first rank
            assert max(flight[name]) == 2 * p
        assert flight["DualPipeV"] == (2 * p + 1,) * p


def test_1f1b_is_as_defined() -> None:
    """The last rank's forwards are not torch's: its table counts them from 1, though its execution does not."""
    for p, m in ((1, 3), (2, 3), (4, 8), (8, 9)):
        for rank, row in enumerate(build("1F1B", p, m).ranks):
            num_ahead = min(p - 1 - rank, m)
            kinds = "F" * num_ahead + "FB" * (m - num_ahead) + "B" * num_ahead
            assert row == tuple(Pass(kind, rank, kinds[:place].count(kind)) for place, kind in enumerate(kinds))


def longest_path(schedule: PipelineSchedule, seconds: dict[str, float]) -> float:
    """When the last pass ends, by sorting the graph of dependencies: no queues, no order of events."""
    runs = {}
    for one in chain(*schedule.ranks):
        for part in one.kind.replace("B", "IW"):
            runs[one.stage, part, one.microbatch] = one
    needs: dict[Pass, list[Pass]] = {}
    for row in schedule.ranks:
        for place, one in enumerate(row):
            if one.kind == "F":
                before = (one.stage - 1, "F", one.microbatch)
            elif one.kind == "W":
                before = (one.stage, "I", one.microbatch)
            elif one.stage == schedule.num_stages - 1:
                before = (one.stage, "F", one.microbatch)
            else:
                before = (one.stage + 1, "I", one.microbatch)
            needs[one] = [*row[max(place - 1, 0) : place], *([runs[before]] if before in runs else [])]
    ends: dict[Pass, float] = {}
    for one in TopologicalSorter(needs).static_order():
        ends[one] = max((ends[need] for need in needs[one]), default=0.0) + seconds[one.kind]
    return max(ends.values())


def test_a_step_takes_the_longest_path() -> None:
    for schedule in EVERY:
        stages_per_rank = schedule.num_stages / len(schedule.ranks)
        seconds = {"F": 1.0, "I": 1.5, "W": 0.5, "B": 2.0}
        expected = longest_path(schedule, seconds) / stages_per_rank
        timeline = simulate(schedule, 1, 2, weights_share=0.25)
        timeline.check()
        assert timeline.end_s == pytest.approx(expected)


def test_bubbles_are_the_rest_of_the_step() -> None:
    for name, message_s in (("GPipe", 0.0), ("1F1B", 0.004), ("ZBVZeroBubble", 0.001)):
        timeline = simulate(build(name, 4, 6), 0.010, 0.020, message_s=message_s)
        passes = timeline.select(lane="compute")
        whole = Timeline.of([*passes, *bubbles(timeline, 4)])
        whole.check()
        for rank in range(4):
            assert whole.select(rank=rank).busy_s == pytest.approx(timeline.makespan_s)
            waits_s = whole.select(rank=rank, kind="wait").busy_s
            assert waits_s == pytest.approx(timeline.makespan_s - 6 * 0.030)


def test_rounding_leaves_no_bubbles() -> None:
    timeline = simulate(build("GPipe", 7, 10), 0.007, 0.014, message_s=0.002)
    assert all(wait.stop_s - wait.start_s > 0.0005 for wait in bubbles(timeline, 7))


def test_messages_take_time_one_after_the_other() -> None:
    plain = simulate(build("GPipe", 3, 1), 3, 6, message_s=0.5)
    assert plain.makespan_s == 3 * 3 + 3 * 6 + 4 * 0.5
    assert len(plain.select(lane="send")) == 4
    for schedule in EVERY:
        is_v_shaped = schedule.name in ("ZBVZeroBubble", "DualPipeV")  # whose middle stages are on one rank
        hops = schedule.num_stages - 1 - is_v_shaped
        assert sum(messages(schedule)) == (2 * schedule.num_microbatches * hops if len(schedule.ranks) > 1 else 0)


# ---- text, and what cannot run


def test_text_reads_back() -> None:
    for schedule in EVERY:
        assert PipelineSchedule.from_text(schedule.to_text()) == schedule
    text = "zb ranks=2 microbatches=2 chunks=1\n0: 0F0 0F1 0I0 0W0 0I1 0W1\n1: 1F0 1I0 1W0 1F1 1I1 1W1"
    verify(PipelineSchedule.from_text(text))


def changed(schedule: PipelineSchedule, rank: int, row: list[Pass]) -> PipelineSchedule:
    return PipelineSchedule("changed", (*schedule.ranks[:rank], tuple(row), *schedule.ranks[rank + 1 :]))


def test_what_is_dropped_doubled_or_on_two_ranks_is_refused() -> None:
    for schedule in (build("Interleaved1F1B", 3, 6), build("ZBVZeroBubble", 2, 4)):
        for rank, row in enumerate(schedule.ranks):
            for place, one in enumerate(row):
                part = str(one).replace("B", "I")
                with pytest.raises(PipelineError, match=f"^{part} runs 0 times"):
                    verify(changed(schedule, rank, [*row[:place], *row[place + 1 :]]))
                with pytest.raises(PipelineError, match=f"^{part} runs 2 times"):
                    verify(changed(schedule, rank, [*row, one]))
    with pytest.raises(PipelineError, match="one rank"):
        verify(PipelineSchedule.from_text("split\n0: 0F0\n1: 0B0"))


def can_end(schedule: PipelineSchedule) -> bool:
    try:
        return longest_path(schedule, dict.fromkeys("FIWB", 1.0)) > 0
    except CycleError:
        return False


def test_what_is_reordered_is_refused_where_it_cannot_end_and_only_there() -> None:
    num_refused = 0
    names = {"GPipe": (3, 3), "1F1B": (3, 4), "Interleaved1F1B": (2, 4), "ZBVZeroBubble": (2, 3)}
    for schedule in (build(name, *sizes) for name, sizes in names.items()):
        for rank, row in enumerate(schedule.ranks):
            for first, second in combinations(range(len(row)), 2):
                swapped = list(row)
                swapped[first], swapped[second] = row[second], row[first]
                wrong = changed(schedule, rank, swapped)
                if can_end(wrong):
                    verify(wrong)
                else:
                    num_refused += 1
                    with pytest.raises(PipelineError, match="^ranks wait forever"):
                        verify(wrong)
    assert num_refused > 100


def test_a_schedule_of_ones_own_is_built_and_simulated_and_torch_is_not_asked_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_by_one(num_ranks: int, num_microbatches: int, num_chunks: int | None) -> Rows:
        return tuple(
            tuple(Pass(kind, rank, number) for number in range(num_microbatches) for kind in "FB")
            for rank in range(num_ranks)
        )

    monkeypatch.setitem(SCHEDULES, "one_by_one", ScheduleKind(rows=one_by_one))
    schedule = build("one_by_one", 3, 4)
    assert simulate(schedule, 1, 2).makespan_s == 4 * 3 * (1 + 2)
    assert schedule.activations_in_flight() == (1, 1, 1)
    with pytest.raises(ValueError, match="schedule.name"):
        measure(schedule, 0.001, 0.001)


# ---- real ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_ranks", "num_microbatches"),
    first_in_test(
        3,
        [
            ("1F1B", 4, 5),
            ("Interleaved1F1B", 2, 4),
            ("ZBVZeroBubble", 2, 4),
            ("DualPipeV", 2, 4),
            ("GPipe", 4, 5),
            ("LoopedBFS", 2, 4),
            ("InterleavedZeroBubble", 2, 4),
        ],
    ),
)
def test_real_ranks_keep_to_the_schedule(name: str, num_ranks: int, num_microbatches: int) -> None:
    if name in ("ZBVZeroBubble", "DualPipeV") and torch.__version__ < "2.13":
        pytest.skip("in this torch, a rank sends shapes to itself, which Gloo cannot do")
    schedule = build(name, num_ranks, num_microbatches)
    predicted = simulate(schedule, 0.004, 0.008)
    timeline, num_bytes = measure(schedule, 0.004, 0.008, timeout_s=240)
    passes = timeline.select(lane="compute")
    passes.check()
    assert passes.end_s >= predicted.end_s
    sizes: list[Any] = [[] for _ in range(num_ranks)]
    for span, size in zip(timeline, num_bytes.tolist(), strict=True):
        if span.kind == "send":
            sizes[span.rank].append(size)
    assert sizes == [[MESSAGE_BYTES] * number for number in messages(schedule)]
    for rank in range(num_ranks):
        ran = [(span.kind, span.item) for span in passes.select(rank=rank)]
        assert ran == [(span.kind, span.item) for span in predicted.select(rank=rank)]
        assert all(seconds >= 0.0019 for seconds in (passes.stop_s - passes.start_s).tolist())

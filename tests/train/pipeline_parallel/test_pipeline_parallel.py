"""Pipelines: schedules against torch's own, bubbles against closed forms, real ranks against one process."""

from __future__ import annotations

import re
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankscope.cluster import Link
from rankscope.train.pipeline_parallel import (
    PipelineError,
    PipelineSchedule,
    bubble_share,
    build,
    make_model,
    measure,
    simulate,
    simulated_bubble,
    traffic,
    verify,
)
from rankscope.train.pipeline_parallel.schedule import PIPELINES, Action

from ...extents import first_in_test

TIMEOUT_S = 240.0
TORCH_NAMES = {"gpipe": "GPipe", "one_f_one_b": "1F1B", "interleaved_1f1b": "Interleaved1F1B"}
SIZES = [(p, m, v) for p in range(1, 7) for m in range(1, 14) for v in range(1, 4)]


def exists(name: str, p: int, m: int, v: int) -> bool:
    return m % max(1, m // p) == 0 if name == "interleaved_1f1b" else v == 1


EVERY = [build(name, *sizes) for name in PIPELINES for sizes in SIZES if exists(name, *sizes)]


def gpipe(num_ranks: int, num_microbatches: int) -> PipelineSchedule:
    return build("gpipe", num_ranks, num_microbatches)


def one_f_one_b(num_ranks: int, num_microbatches: int) -> PipelineSchedule:
    return build("one_f_one_b", num_ranks, num_microbatches)


def interleaved(num_ranks: int, num_microbatches: int, num_chunks: int) -> PipelineSchedule:
    return build("interleaved_1f1b", num_ranks, num_microbatches, num_chunks)


def with_row(schedule: PipelineSchedule, rank: int, row: list[Action]) -> PipelineSchedule:
    rows = [*schedule.actions[:rank], row, *schedule.actions[rank + 1 :]]
    return replace(schedule, name="corrupted", actions=rows)


# ---- against torch's own tables


def torch_order(name: str, num_ranks: int, num_microbatches: int, num_chunks: int) -> list[list[str]]:
    """The passes that torch's schedule lists for each rank, as text."""
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    try:
        rows = visualizer.get_schedule_ops(TORCH_NAMES[name], num_ranks, num_microbatches, num_chunks)
    except (AssertionError, AttributeError):
        pytest.skip("this torch has no table of that schedule")
    return [[str(a) for a in row if a is not None and a.computation_type.value in "FB"] for row in rows]


def own_order(schedule: PipelineSchedule) -> list[list[str]]:
    return [[schedule.word(rank, action) for action in row] for rank, row in enumerate(schedule.actions)]


GPIPES = [("gpipe", p, m, 1) for p, m in ((1, 1), (2, 3), (4, 4), (4, 8), (5, 2), (8, 9))]
CHUNKED = [(2, 4, 2), (4, 8, 3), (4, 10, 2), (4, 3, 2), (3, 8, 2), (4, 5, 4), (1, 3, 2), (8, 16, 4)]


@pytest.mark.parametrize("sizes", [*GPIPES, *(("interleaved_1f1b", *chunked) for chunked in CHUNKED)])
def test_schedules_are_torchs(sizes: tuple[str, int, int, int]) -> None:
    assert own_order(build(*sizes)) == torch_order(*sizes)


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 3), (4, 4), (4, 8), (8, 9)])
def test_1f1b_is_torchs_but_for_a_slip_in_torchs_table(num_ranks: int, num_microbatches: int) -> None:
    """The table of torch 2.13 counts the last rank's forwards from 1 (its execution does not: see the real ranks)."""
    own = own_order(one_f_one_b(num_ranks, num_microbatches))
    torchs = torch_order("one_f_one_b", num_ranks, num_microbatches, 1)
    assert own[:-1] == torchs[:-1]
    if own[-1] != torchs[-1]:
        assert own[-1] == [re.sub(r"(?<=F)\d+", lambda number: str(int(number[0]) - 1), word) for word in torchs[-1]]
        rows = "\n".join(f"{rank}: {' '.join(row)}" for rank, row in enumerate(torchs))
        text = f"theirs ranks={num_ranks} microbatches={num_microbatches} chunks=1\n{rows}"
        with pytest.raises(ValueError, match=f"microbatch must be .*, got {num_microbatches}"):
            PipelineSchedule.from_text(text)


# ---- bubbles and activations, exactly


@pytest.mark.parametrize(
    ("forward", "backward"),
    first_in_test(3, [(1, 2), (Fraction(1, 3), Fraction(5, 7)), (0.1, 0.0), (1, 1), (7, 3)]),
)
def test_bubbles_are_the_closed_forms_exactly(forward: Any, backward: Any) -> None:
    for schedule in EVERY:
        expected = bubble_share(schedule.name, schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks)
        assert simulated_bubble(schedule, forward, backward) == expected, schedule.to_text()


def most_in_flight(schedule: PipelineSchedule) -> list[int]:
    """The papers' closed forms, for each rank.

    GPipe keeps all m, 1F1B min(p-r, m) on rank r. Interleaved 1F1B keeps min(v·m, (v-1)·k + 2(p-1-r) + 1) activations
    of a v-th of a rank's layers each, k being the microbatches of a round: p where m is a multiple of p.
    """
    p, m, v = schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks
    ahead = (v - 1) * (m // max(1, m // p)) + 1
    of_rank = {
        "gpipe": lambda rank: m,
        "one_f_one_b": lambda rank: min(p - rank, m),
        "interleaved_1f1b": lambda rank: min(v * m, ahead + 2 * (p - 1 - rank)),
    }[schedule.name]
    return [of_rank(rank) for rank in range(p)]


def test_activations_in_flight_are_the_closed_forms() -> None:
    for schedule in EVERY:
        assert list(schedule.activations_in_flight()) == most_in_flight(schedule), schedule.to_text()
    assert most_in_flight(one_f_one_b(4, 8)) == [4, 3, 2, 1]
    assert most_in_flight(interleaved(4, 8, 2)) == [11, 9, 7, 5]


# ---- stages that differ, and links: by hand, and against another method


def test_one_microbatch_goes_through_all_stages_and_back() -> None:
    schedule, link = gpipe(3, 1), Link(0.5, 100.0)
    step = simulate(schedule, [1, 2, 3], [4, 5, 6], link, activation_bytes=50)
    assert step.makespan_s == 1 + 2 + 3 + 6 + 5 + 4 + 4 * (0.5 + 0.5)
    assert step.select(lane="send").busy_s == 4
    assert [(span.rank, span.start_s) for span in step.select(kind="backward")] == [(2, 8.0), (1, 15.0), (0, 21.0)]


def longest_path(schedule: PipelineSchedule, forward: list[float], backward: list[float]) -> float:
    """When the last pass ends, by sorting the graph of dependencies: no queues, no order of events."""
    needs: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {}
    last = schedule.num_stages - 1
    for rank, row in enumerate(schedule.actions):
        names = [(action.kind, action.microbatch, schedule.stage(rank, action)) for action in row]
        for place, (kind, microbatch, stage) in enumerate(names):
            before = [names[place - 1]] if place else []
            if kind == "F" and stage > 0:
                before.append(("F", microbatch, stage - 1))
            if kind == "B":
                before.append(("F", microbatch, stage) if stage == last else ("B", microbatch, stage + 1))
            needs[kind, microbatch, stage] = before
    ends: dict[tuple[str, int, int], float] = {}
    for name in TopologicalSorter(needs).static_order():
        seconds = (forward if name[0] == "F" else backward)[name[2]]
        ends[name] = max((ends[need] for need in needs[name]), default=0.0) + seconds
    return max(ends.values())


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(PIPELINES)),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3)),
    seed=st.integers(0, 2**16),
)
def test_uneven_stages_take_the_longest_path(name: str, sizes: tuple[int, int, int], seed: int) -> None:
    assume(exists(name, *sizes))
    schedule = build(name, *sizes)
    times = np.random.default_rng(seed).integers(0, 9, (2, schedule.num_stages)).tolist()
    assert simulate(schedule, *times).end_s == longest_path(schedule, *times)


def test_a_free_link_changes_nothing_and_a_slow_one_is_a_rank_sending_all_the_time() -> None:
    schedule = one_f_one_b(2, 8)
    free = simulate(schedule, 1, 2, Link(0.0, float("inf")), 100)
    assert free.makespan_s == simulate(schedule, 1, 2).makespan_s
    slow = simulate(gpipe(2, 8), 1, 2, Link(100.0, 1e9))
    slow.check()
    sends = slow.select(rank=0, lane="send")
    assert sends.makespan_s == sends.busy_s == 800


def test_bytes_sent_are_counted_and_in_closed_form() -> None:
    for schedule in EVERY:
        p, m, v = schedule.num_ranks, schedule.num_microbatches, schedule.num_chunks
        assert sum(traffic(schedule, 10.0)) == (2 * m * (p * v - 1) * 10.0 if p > 1 else 0)


# ---- text


def test_text_reads_back_and_may_have_comments_and_empty_lines() -> None:
    for each in EVERY:
        assert PipelineSchedule.from_text(each.to_text()) == each
    text = "# by hand\n\nmine ranks=1 microbatches=1 chunks=2\n\n0: 0F0 1F0 1B0 0B0\n"
    schedule = PipelineSchedule.from_text(text)
    verify(schedule)
    assert schedule.actions == ((Action("F", 0, 0), Action("F", 0, 1), Action("B", 0, 1), Action("B", 0, 0)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this one is empty"),
        ("mine", "line 1: expected 'name ranks=… microbatches=… chunks=…'"),
        ("mine ranks=0 microbatches=1 chunks=1", "num_ranks must be a whole number from 1 to 256, got 0"),
        ("mine ranks=2 microbatches=1 chunks=1\n0: 0F0", "expected 2 lines, one for each rank, got 1"),
        ("mine ranks=1 microbatches=1 chunks=1\n1: 0F0", "line 2: expected rank 0:, got '1:'"),
        ("mine ranks=1 microbatches=1 chunks=1\n0: 0F0 0W0", "line 2: expected an action like 0F0 or 3B1, got '0W0'"),
        ("mine ranks=2 microbatches=1 chunks=1\n0: 1F0\n1: 0F0", "line 2: rank 0 has no stage 1, in '1F0'"),
        ("mine ranks=1 microbatches=1 chunks=1\n0: 0F1", "microbatch must be a whole number from 0 to 0, got 1"),
        (7, "text must be a str, got 7"),
    ],
)
def test_wrong_text_is_refused(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        PipelineSchedule.from_text(text)


# ---- corrupted schedules


def test_what_is_dropped_or_doubled_is_named() -> None:
    schedule = interleaved(3, 6, 2)
    for rank, row in enumerate(schedule.actions):
        for place, action in enumerate(row):
            word = schedule.word(rank, action)
            with pytest.raises(PipelineError) as dropped:
                verify(with_row(schedule, rank, [*row[:place], *row[place + 1 :]]))
            # without its forward it is the backward that is wrong first
            assert dropped.value.rank == rank
            assert dropped.value.action in (word, word.replace("F", "B"))
            with pytest.raises(PipelineError, match=f"rank {rank}, {word}: comes twice") as doubled:
                verify(with_row(schedule, rank, [*row[: place + 1], action, *row[place + 1 :]]))
            assert (doubled.value.rank, doubled.value.action) == (rank, word)


def can_end(schedule: PipelineSchedule) -> bool:
    times = [1.0] * schedule.num_stages
    try:
        return longest_path(schedule, times, times) > 0
    except CycleError:
        return False


def test_what_is_reordered_is_refused_where_it_cannot_end_and_only_there() -> None:
    refused = 0
    for schedule in (gpipe(3, 3), one_f_one_b(3, 4), interleaved(2, 4, 2)):
        for rank, row in enumerate(schedule.actions):
            for first, second in combinations(range(len(row)), 2):
                swapped = list(row)
                swapped[first], swapped[second] = row[second], row[first]
                wrong = with_row(schedule, rank, swapped)
                places = {action: place for place, action in enumerate(swapped)}
                early = any(places[a] < places[a._replace(kind="F")] for a in row if a.kind == "B")
                if early or not can_end(wrong):
                    refused += 1
                    with pytest.raises(PipelineError, match=r"rank \d, \d[FB]\d: (comes before|waits for)"):
                        verify(wrong)
                else:
                    verify(wrong)
                    assert simulated_bubble(wrong) >= simulated_bubble(schedule)
    assert refused > 100


def test_a_deadlock_names_who_waits_for_what() -> None:
    text = "stuck ranks=2 microbatches=2 chunks=1\n0: 0F0 0B0 0F1 0B1\n1: 1F1 1B1 1F0 1B0"
    with pytest.raises(PipelineError, match="rank 0, 0B0: waits for 1B0, which never runs") as error:
        simulate(PipelineSchedule.from_text(text), 1, 1)
    assert (error.value.rank, error.value.action) == (0, "0B0")


# ---- bad input


# ---- real ranks


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    plans = [gpipe(4, 5), gpipe(4, 1), one_f_one_b(4, 4), one_f_one_b(4, 7), interleaved(4, 4, 2)]
    plans.append(interleaved(4, 6, 3))
    return {plan.to_text(): run for plan, run in zip(plans, measure(plans, timeout_s=TIMEOUT_S), strict=True)}


@pytest.mark.slow
def test_real_ranks_keep_to_the_schedule(runs: dict[str, Any]) -> None:
    for text, run in runs.items():
        assert run.executed.to_text() == text
        run.timeline.check()
        begun = {(s.rank, s.kind, s.item): s.start_s for s in run.timeline}
        ended = {(s.rank, s.kind, s.item): s.stop_s for s in run.timeline}
        for microbatch in range(run.executed.num_microbatches):  # nobody begins before its input has been computed
            for rank in range(3):
                assert begun[rank + 1, "forward", microbatch] >= ended[rank, "forward", microbatch]
                assert begun[rank, "backward", microbatch] >= ended[rank + 1, "backward", microbatch]


@pytest.mark.slow
def test_real_ranks_compute_what_one_process_does_and_send_what_is_predicted(runs: dict[str, Any]) -> None:
    for run in runs.values():
        model = make_model(run.executed.num_stages, 32)
        assert [g.shape for g in run.gradients] == [p.shape for p in model.parameters()]
        assert run.gradients_off < 1e-12
        assert max(float(gradient.abs().max()) for gradient in run.gradients) > 1e-4
        wrong = replace(run, gradients=(run.gradients[0] * (1 + 1e-6), *run.gradients[1:]))
        assert wrong.gradients_off > 1e-9
        assert run.sent_bytes == traffic(run.executed, 4 * 32 * 8)


@pytest.mark.slow
def test_a_pass_takes_at_least_the_time_it_is_told_to() -> None:
    plan = one_f_one_b(2, 2)
    (run,) = measure([plan], [0.01, 0.02], 0.03, num_steps=2, timeout_s=TIMEOUT_S)
    took_s = {(s.rank, s.kind): s.stop_s - s.start_s for s in run.timeline}
    assert took_s[0, "forward"] >= 0.01
    assert took_s[1, "forward"] >= 0.02
    assert min(took_s[0, "backward"], took_s[1, "backward"]) >= 0.03
    assert run.timeline.end_s >= simulate(plan, [0.01, 0.02], 0.03).makespan_s
